// Counts down the seconds of the locks' page from what the server has written. Without this
// script they stand still. No lock is asked for again: that is what "Look again" is for.
"use strict";

(() => {
  const clocks = Array.from(document.querySelectorAll("[data-redlock-left]"), (element) => ({
    element,
    left: Number(element.dataset.redlockLeft),
  }));
  // The nodes were asked just before the answer arrived here.
  const [visit] = performance.getEntriesByType("navigation");
  const begin = visit ? visit.responseStart : 0;

  function tick() {
    const gone = (performance.now() - begin) / 1000;
    for (const clock of clocks) {
      const left = Math.max(0, clock.left - gone);
      clock.element.textContent = left.toFixed(1);
      clock.element.classList.toggle("redlock-over", left === 0);
    }
  }

  if (clocks.length > 0) {
    tick();
    setInterval(tick, 1000);
  }

  // What scrolls, and only that, is reached by keyboard; not all browsers see to it themselves.
  const observer = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const { scrollHeight, scrollWidth, clientHeight, clientWidth } = target;
      if (scrollHeight > clientHeight || scrollWidth > clientWidth) {
        target.tabIndex = 0;
      } else {
        target.removeAttribute("tabindex");
      }
    }
  });
  document.querySelectorAll(".redlock-long, .redlock-scroll").forEach((each) => observer.observe(each));
})();

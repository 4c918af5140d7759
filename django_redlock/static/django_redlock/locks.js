// Counts down the seconds on the pages of locks and of one lock, and loads their tables anew while
// somebody looks at them. Without this script a page does not change, and "Look again" loads it anew.
"use strict";

(() => {
  const PATIENCE = 30000; // milliseconds for an answer
  const tables = document.getElementById("redlock-live");
  if (!tables) {
    return; // the settings are wrong, and the page says so
  }
  const stale = document.getElementById("redlock-stale");
  const every = Number(tables.dataset.redlockEvery) * 1000;
  let asked = performance.now();

  function tick() {
    const gone = (performance.now() - asked) / 1000;
    for (const clock of tables.querySelectorAll("[data-redlock-left]")) {
      const left = Math.max(0, Number(clock.dataset.redlockLeft) - gone);
      clock.textContent = left.toFixed(left < 10000 ? 1 : 0); // as the server writes them
      clock.classList.toggle("redlock-over", left === 0);
    }
  }

  // Who selects a text, or is at a link by keyboard, is not to lose it.
  function isInUse() {
    const focused = document.activeElement;
    return !getSelection().isCollapsed || (tables.contains(focused) && focused.matches(":focus-visible"));
  }

  async function load() {
    const response = await fetch(location.href, {
      cache: "no-store",
      redirect: "manual", // to the login, where a session has ended: that is no page of ours
      signal: AbortSignal.timeout(PATIENCE),
    });
    const arrived = performance.now();
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const found = page.getElementById("redlock-live");
    if (!response.ok || !found) {
      throw new Error(`status ${response.status}`);
    }
    if (!isInUse()) {
      asked = arrived;
      tables.replaceChildren(...found.childNodes);
      tick();
    }
  }

  async function look() {
    if (!document.hidden && !isInUse()) {
      stale.hidden = await load().then(() => true, () => false);
    }
    setTimeout(look, every);
  }

  setInterval(tick, 1000);
  setTimeout(look, every);
})();

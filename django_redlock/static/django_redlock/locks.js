// Keeps the locks' page up to date. Seconds count down from what the server has written, and every
// few seconds the same page is asked for again: what has changed is taken over, and everything else
// stays the very element that it is, with its focus, selection and scroll position. Without this
// script the page does not change, and "Look again" loads it anew. What the script says is in
// attributes of the page, which is in the reader's language.
"use strict";

(() => {
  const PATIENCE = 30000; // milliseconds for an answer
  const SHARE = 4; // after a slow answer, so many times as long passes: few tabs cost little
  const SLOWEST = 8; // so many intervals pass at most, while no answer is of use
  const KEY = "django_redlock.paused"; // stays while this tab walks through pages and searches
  const OWN = new Set(["open", "tabindex"]); // attributes that the server does not write

  const content = document.getElementById("content-main");
  const words = document.querySelector("[data-redlock-told]")?.dataset ?? {};
  const every = Number(words.redlockEvery) * 1000;
  const [visit] = performance.getEntriesByType("navigation");
  let asked = visit ? visit.responseStart : 0; // the nodes were asked just before the answer came
  let paused = sessionStorage.getItem(KEY) !== null;
  let trouble = "";
  let failures = 0;
  let busy = false;
  let timer = 0;

  // -- what is shown

  // While nothing is asked, the seconds are those of the time that the page names.
  function tick() {
    const gone = paused || trouble ? 0 : (performance.now() - asked) / 1000;
    for (const clock of content.querySelectorAll("[data-redlock-left]")) {
      const left = Math.max(0, Number(clock.dataset.redlockLeft) - gone);
      write(clock, left.toFixed(1));
      clock.classList.toggle("redlock-over", left === 0);
    }
  }

  // A text node that stays keeps the selection that begins or ends elsewhere.
  function write(element, text) {
    if (element && element.textContent !== text) {
      (element.firstChild ?? element.appendChild(new Text())).data = text;
    }
  }

  function show() {
    const button = content.querySelector("[data-redlock-pause]");
    if (button) {
      button.hidden = false;
      write(button, paused ? button.dataset.goOn : button.dataset.pause);
    }
    const told = content.querySelector("[data-redlock-told]");
    write(told, paused ? words.paused : trouble || words.every);
    told?.classList.toggle("redlock-odd", trouble !== "" && !paused);
    tick();
    content.querySelectorAll(".redlock-long, .redlock-scroll").forEach((each) => observer.observe(each));
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

  // -- what has changed

  const isClock = (node) => node.hasAttribute("data-redlock-left");

  // Two nodes with one signature stand for the same thing. That of a row is the name of the lock or
  // task. A text comes and goes with the element before it, so that no element has to be moved.
  function signature(node) {
    if (node.nodeType !== Node.ELEMENT_NODE) {
      const before = node.previousElementSibling;
      return `${node.nodeName} ${before ? signature(before) : ""}`;
    }
    if (node.localName === "tr") {
      return Array.from(node.querySelectorAll("th, [data-redlock-id]"), (each) => each.textContent).join("\n");
    }
    return [node.localName, node.id, isClock(node) ? "" : node.classList[0]].join(" ");
  }

  function update(old, found) {
    if (old.nodeType !== Node.ELEMENT_NODE) {
      if (old.data !== found.data) {
        old.data = found.data;
      }
    } else if (!old.hasAttribute("data-redlock-own") && !old.isEqualNode(found)) {
      updateAttributes(old, found);
      if (!isClock(found)) {
        updateChildren(old, found);
      }
    }
  }

  function updateAttributes(old, found) {
    for (const { name, value } of found.attributes) {
      if (old.getAttribute(name) !== value) {
        old.setAttribute(name, value);
      }
    }
    for (const { name } of Array.from(old.attributes)) {
      if (!found.hasAttribute(name) && !OWN.has(name)) {
        old.removeAttribute(name);
      }
    }
  }

  function updateChildren(old, found) {
    const known = new Map(); // the children by their signatures, each of which several may have
    for (const child of old.childNodes) {
      const sign = signature(child);
      if (!known.has(sign)) {
        known.set(sign, []);
      }
      known.get(sign).push(child);
    }
    const pairs = Array.from(found.childNodes, (child) => [known.get(signature(child))?.shift(), child]);
    known.forEach((rest) => rest.forEach((child) => child.remove()));
    let next = old.firstChild;
    for (const [child, fresh] of pairs) {
      if (child && child === next) {
        next = next.nextSibling;
      } else {
        old.insertBefore(child ?? fresh, next);
      }
      if (child) {
        update(child, fresh);
      }
    }
  }

  function takeOver(found) {
    const focused = document.activeElement;
    update(content, found);
    if (focused !== document.activeElement && focused.isConnected) {
      focused.focus({ preventScroll: true }); // its row was moved
    }
  }

  // -- asking

  // Returns what is wrong, in words; "" if the page is up to date.
  async function ask() {
    let response = null;
    let text = "";
    let arrived = 0;
    try {
      const signal = AbortSignal.timeout(PATIENCE);
      response = await fetch(location.href, { cache: "no-store", redirect: "manual", signal });
      arrived = performance.now();
      text = await response.text();
    } catch {
      return words.silent;
    }
    if (response.type === "opaqueredirect") {
      return words.ended;
    }
    if (response.status === 403) {
      return words.forbidden;
    }
    const found = new DOMParser().parseFromString(text, "text/html").querySelector("#content-main.redlock");
    if (!found) {
      return words.other.replace("{status}", response.status);
    }
    if (!paused) {
      asked = arrived;
      takeOver(found);
    }
    return "";
  }

  async function look() {
    clearTimeout(timer);
    if (!every || busy || paused || document.hidden) {
      return;
    }
    busy = true;
    const begin = performance.now();
    trouble = await ask();
    busy = false;
    failures = trouble ? failures + 1 : 0;
    show();
    const pause = Math.max(every, SHARE * (performance.now() - begin));
    later(trouble ? every * Math.min(2 ** failures, SLOWEST) : pause);
  }

  function later(milliseconds) {
    clearTimeout(timer);
    timer = setTimeout(look, milliseconds);
  }

  content.addEventListener("click", (event) => {
    if (!event.target.closest("[data-redlock-pause]")) {
      return;
    }
    paused = !paused;
    if (paused) {
      sessionStorage.setItem(KEY, "");
    } else {
      sessionStorage.removeItem(KEY);
    }
    show();
    look();
  });
  document.addEventListener("visibilitychange", look);

  show();
  setInterval(tick, 1000);
  later(every);
})();

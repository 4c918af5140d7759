// What the theme leaves out for people who hear a page, or use no mouse.
(function () {
  "use strict";
  const SCROLLED = ".highlight pre, .table-wrapper, .screen";

  // What scrolls sideways is reached by Tab, so that the arrow keys move it; the rest is passed over.
  function letKeysScroll() {
    for (const each of document.querySelectorAll(SCROLLED)) {
      if (each.scrollWidth > each.clientWidth) {
        each.tabIndex = 0;
      } else {
        each.removeAttribute("tabindex");
      }
    }
  }

  function name(selector, label) {
    document.querySelector(selector)?.setAttribute("aria-label", label);
  }

  document.addEventListener("DOMContentLoaded", () => {
    for (const each of document.querySelectorAll('.caption[role="heading"]')) {
      each.setAttribute("aria-level", "2");
    }
    name(".sidebar-drawer", "All pages");
    name(".toc-drawer", "On this page");
    letKeysScroll();
    addEventListener("load", letKeysScroll);
    addEventListener("resize", letKeysScroll);
  });
})();

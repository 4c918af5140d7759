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

  // The list of all pages is longer than a window: it begins where this page stands.
  function showThisPage() {
    const list = document.querySelector(".sidebar-scroll");
    const page = document.querySelector(".sidebar-tree .current-page");
    if (list && page) {
      const below = page.getBoundingClientRect().top - list.getBoundingClientRect().top;
      list.scrollTop += below - list.clientHeight / 2;
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
    showThisPage();
    letKeysScroll();
    addEventListener("load", letKeysScroll);
    addEventListener("resize", letKeysScroll);
  });
})();

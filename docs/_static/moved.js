// Headings that have moved to another page: the server never sees what follows the "#".
(function () {
  "use strict";
  const moved = [[/\/reference\/settings\.html$/, /^#([ew]\d{3}|system-checks)$/, "checks.html"]];
  for (const [page, heading, to] of moved) {
    if (page.test(location.pathname) && heading.test(location.hash)) {
      location.replace(to + (location.hash === "#system-checks" ? "" : location.hash));
    }
  }
})();

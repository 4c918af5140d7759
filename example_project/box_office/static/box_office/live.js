// Shows what changes without loading the page anew: what is half-typed and the focus stay, and a
// screen reader tells the new lines only. Without this script the page works as well.
//
// Each second it fetches the page that `data-at` names, and takes the elements with `data-live`.

const EVERY = 1000; // milliseconds
let latest = 0; // the number of the last request: what an older one finds is out of date
let timer = 0;

// Replace only the children that differ; of a child with the focus its successor gets it.
function update(old, found) {
  const fresh = Array.from(found?.children ?? []);
  fresh.forEach((child, index) => {
    const before = old.children[index];
    if (!before) {
      old.append(child);
    } else if (!before.isEqualNode(child)) {
      const at = Array.from(before.querySelectorAll("a, button")).indexOf(document.activeElement);
      before.replaceWith(child);
      if (at >= 0) {
        const links = Array.from(child.querySelectorAll("a, button"));
        const usable = (link) => !link.disabled; // a seat may just have been sold
        (links.slice(at).find(usable) ?? links.findLast(usable))?.focus({ preventScroll: true });
      }
    }
  });
  while (old.children.length > fresh.length) {
    old.lastElementChild.remove();
  }
}

async function show(url, options, parts) {
  clearTimeout(timer);
  latest += 1;
  const mine = latest;
  try {
    const response = await fetch(url, options);
    if (response.status === 404) {
      location.reload(); // what the page shows was deleted
    }
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    if (response.ok && mine === latest) {
      document.querySelectorAll(parts).forEach((old) => update(old, page.getElementById(old.id)));
    }
  } catch {
    // The site is closed or busy: look again.
  }
  if (mine === latest) {
    later();
  }
}

function look() {
  if (!document.hidden) {
    // Not into the cache: after Back a form must have the key that it was sent with.
    show(document.body.dataset.at, { cache: "no-store", headers: { "X-Look": "1" } }, "[data-live]");
  }
}

function later() {
  clearTimeout(timer);
  timer = setTimeout(look, EVERY);
}

document.querySelectorAll("form[data-here]").forEach((form) => {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const action = event.submitter?.getAttribute("formaction") ?? form.action;
    show(action, { method: "POST", body: new FormData(form) }, "[data-live], #messages");
  });
});
document.addEventListener("visibilitychange", look);
later();

// Shows what changes without loading the page anew: what is half-typed and the focus stay, and a
// screen reader tells the new lines only. Without this script the page works as well.
//
// Of the page that it fetches it takes the elements with `data-live`, by their ids. `#pace` says
// after how many milliseconds it looks again, and where.

let timer = 0;
let sending = false;
let requests = 0; // what an older one finds is out of date

function links(part) {
  return Array.from(part.querySelectorAll("a, button"));
}

// Replace only the children that differ; a link that has the focus keeps it, or one near to it gets it.
function update(id, page) {
  const old = document.getElementById(id);
  const found = page.getElementById(id);
  if (!old || !found) {
    return;
  }
  const now = Array.from(found.children);
  now.forEach((child, index) => {
    const before = old.children[index];
    if (!before) {
      old.append(child);
    } else if (!before.isEqualNode(child)) {
      const focused = links(before).indexOf(document.activeElement);
      before.replaceWith(child);
      if (focused >= 0) {
        const usable = (link) => !link.disabled; // a seat may just have been sold
        const now = links(child);
        (now.slice(focused).find(usable) ?? now.findLast(usable))?.focus({ preventScroll: true });
      }
    }
  });
  while (old.children.length > now.length) {
    old.lastElementChild.remove();
  }
}

function parts() {
  return Array.from(document.querySelectorAll("[data-live]"), (part) => part.id);
}

async function show(request, ids) {
  requests += 1;
  const mine = requests;
  const response = await request;
  if (response.status === 404) {
    location.reload(); // what the page shows was deleted
  }
  if (!response.ok) {
    throw new Error(`status ${response.status}`);
  }
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  if (mine === requests) {
    ids.forEach((id) => update(id, page));
  }
}

function pace() {
  return document.querySelector("#pace > *")?.dataset ?? {};
}

function later() {
  clearTimeout(timer);
  if (pace().every && !document.hidden) {
    timer = setTimeout(look, Number(pace().every));
  }
}

async function look() {
  if (sending) {
    return;
  }
  try {
    await show(fetch(pace().at ?? location.href), parts());
  } catch {
    // The site is closed or busy: look again.
  }
  if (!sending) {
    later();
  }
}

async function send(event) {
  event.preventDefault();
  if (sending) {
    return;
  }
  sending = true;
  clearTimeout(timer);
  const form = event.target;
  const action = event.submitter?.getAttribute("formaction") || form.action;
  try {
    await show(fetch(action, { method: "POST", body: new FormData(form) }), [...parts(), "messages"]);
  } catch {
    location.reload();
  } finally {
    sending = false;
    later();
  }
}

document.querySelectorAll("form[data-here]").forEach((form) => {
  form.addEventListener("submit", send);
});
document.addEventListener("visibilitychange", () => {
  clearTimeout(timer);
  if (!document.hidden && pace().every) {
    look();
  }
});
later();

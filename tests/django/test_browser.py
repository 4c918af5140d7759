"""The admin page in a real browser: Debian's chromium, driven by Playwright.

Playwright's synchronous interface runs an event loop in the thread of the test. There Django
refuses its database and we refuse our locks, rightly: they would block that loop. So the users
are made before the browser starts, and locks are taken and released in another thread.
"""

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db.models.signals import post_save

from django_redlock import LeaseLost, redlock
from django_redlock import admin as page_of_locks
from tests.django.test_admin import PAGE
from tests.support.hostile import HOSTILE
from tests.support.looked_at import A, B, finish, group, in_memory, put, queue, stop_clocks
from tests.support.pages.chromium import CHROMIUM, QUIETLY, need, why_not

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page

pytestmark = pytest.mark.slow

DESK, PHONE = (1280, 800), (390, 844)
NEVER = 3600  # seconds
LAPTOP, HALF, TABLET = (1100, 800), (1030, 800), (800, 1000)  # with the sidebar of the admin


class Visitor:
    """A superuser in front of a browser, who notes what should not happen."""

    def __init__(self, browser: "Browser", url: str, options: dict[str, Any]) -> None:
        self.context = browser.new_context(base_url=url, **options)
        self.context.set_default_timeout(60_000)  # of waiting only: a busy machine is slow
        self.page: Page = self.context.new_page()
        self.mishaps: list[str] = []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.mishaps.append(f"error: {error}"))
        self.page.on("dialog", self._dismiss)

    def _hear(self, message: "ConsoleMessage") -> None:
        if message.type in {"error", "warning"} and "favicon" not in message.location["url"]:
            self.mishaps.append(f"{message.type}: {message.text}")

    def _dismiss(self, dialog: "Dialog") -> None:
        self.mishaps.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def log_in(self) -> None:
        """Ask for the page, be sent to the login, and come to the page."""
        answer = self.page.goto(PAGE)
        assert answer is not None
        assert answer.headers["content-security-policy"].startswith("default-src 'self'")
        self.page.fill("#id_username", "operator")
        self.page.fill("#id_password", "sesame")
        self.page.click("[type=submit]")
        self.page.wait_for_selector("text=healthy (5 of 5 nodes vote")
        self.page.wait_for_load_state()

    def follow(self, selector: str) -> None:
        """Click on what leads to a page; wait until its scripts have run: one opens the sidebar."""
        with self.page.expect_navigation():
            self.page.click(selector)

    def names(self) -> list[str]:
        """The locks on the page."""
        return self.page.locator(".redlock-locks tbody th").all_inner_texts()

    def seconds(self) -> list[float]:
        """All seconds left on the page."""
        found = self.page.locator(".redlock-locks [data-redlock-left]").all_inner_texts()
        return [float(each) for each in found]


@pytest.fixture
def nodes_of_the_page() -> Iterator[Any]:
    """The nodes that the page shows: in memory."""
    with in_memory("default"):
        yield group("default")


@pytest.fixture
def visit(live_server, nodes_of_the_page) -> Iterator[Callable[..., Visitor]]:
    """Come to the page with a browser of your own, logged in; nothing may go wrong in it."""
    need("the page", why_not())
    from playwright.sync_api import sync_playwright

    User.objects.create_superuser("operator", password="sesame")
    visitors: list[Visitor] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIETLY)

        def visit(size: tuple[int, int] = DESK, **options: Any) -> Visitor:
            options["viewport"] = {"width": size[0], "height": size[1]}
            visitors.append(Visitor(browser, live_server.url, options))
            visitors[-1].log_in()
            return visitors[-1]

        yield visit
        for each in visitors:
            each.context.close()
        browser.close()
    for each in visitors:
        assert each.mishaps == []


@contextmanager
def elsewhere(name: str, *, label: str = "", **options: Any) -> Iterator[Callable[[], None]]:
    """Hold a lock, taken in another thread; calling what this gives releases it."""
    with ThreadPoolExecutor(1) as thread, ExitStack() as stack:
        template = redlock.using(label=label) if label else redlock
        lease = thread.submit(template(name, **{"renew": False} | options).acquire).result()

        def release() -> None:
            thread.submit(lease.release).result()

        stack.callback(release)
        yield release


@pytest.mark.nightly
def test_a_lock_counts_down_and_disappears(visit, monkeypatch):
    """Seconds run down in the page; a released lock is gone when somebody looks again."""
    monkeypatch.setattr(page_of_locks, "REFRESH", NEVER)
    with elsewhere("invoice:42", ttl=60) as release:
        visitor = visit()
        page = visitor.page
        assert visitor.names() == ["invoice:42"]
        before = visitor.seconds()
        page.evaluate("window.notReloaded = true")
        page.wait_for_function(
            "limit => Number(document.querySelector('[data-redlock-left]').textContent) < limit",
            arg=before[0] - 1.5,
        )
        after = visitor.seconds()
        assert len(before) == len(after) >= 6
        assert all(1 < b - a < 10 for a, b in zip(after, before, strict=True))
        release()
        assert visitor.names() == ["invoice:42"]
        assert page.evaluate("window.notReloaded")
        visitor.follow("text=Look again")
        page.wait_for_selector("text=No lock is held.")
        assert visitor.names() == []


@pytest.mark.nightly
def test_without_javascript(visit):
    """Without scripts the page stands, its seconds too, and a link loads it anew."""
    stop_clocks(group("default"))
    with elsewhere("invoice:42", ttl=30) as release:
        visitor = visit(java_script_enabled=False)
        assert visitor.names() == ["invoice:42"]
        before = visitor.seconds()
        assert set(before) == {30.0}
        visitor.page.wait_for_timeout(1500)
        assert visitor.seconds() == before
        assert not visitor.page.locator("#redlock-stale").is_visible()
        release()
        visitor.follow("text=Look again")
        visitor.page.wait_for_selector("text=No lock is held.")


@pytest.mark.parametrize(
    "scripts",
    [
        pytest.param(True, id="scripts"),
        pytest.param(False, id="no scripts", marks=pytest.mark.nightly),
    ],
)
def test_a_lock_is_taken_away_in_two_clicks(visit, scripts, tmp_path: Path):
    """From the list to the log, on a phone and in the dark; the holder is told why."""
    lost: list[str] = []

    def hold() -> None:
        lease = redlock("report:42", ttl=60, renew=False).acquire()
        held.set()
        taken.wait(60)
        try:
            lease.extend()
        except LeaseLost as error:
            lost.append(str(error))

    logged: list[str] = []  # noted by the thread of the request: another leaves a connection open

    def note(instance: LogEntry, **_: object) -> None:
        logged.append(instance.change_message)

    held, taken = threading.Event(), threading.Event()
    post_save.connect(note, sender=LogEntry)
    visitor = visit(PHONE, color_scheme="dark", java_script_enabled=scripts)
    with ThreadPoolExecutor(1) as thread:
        holder = thread.submit(hold)
        assert held.wait(60)
        visitor.page.goto(PAGE)
        visitor.follow("text=report:42")
        visitor.page.fill("#id_reason", "hangs since noon")
        visitor.page.screenshot(path=tmp_path / "release.png", full_page=True)
        visitor.follow("text=Take it away")
        visitor.page.wait_for_selector(
            "text=/report:42: taken away on 5 of 5 nodes, free in at most/"
        )
        visitor.page.wait_for_selector("text=revoked by operator: hangs since noon")
        taken.set()
        holder.result()
    post_save.disconnect(note, sender=LogEntry)
    for said in (lost, logged):
        assert len(said) == 1
        assert "revoked by operator: hangs since noon" in said[0]


@pytest.mark.nightly
def test_hostile_names(visit):
    """Hostile text is words in the list, the search and an error; nothing is executed."""
    for name in HOSTILE:
        put(group("default"), name, f"{A}:5:{name[:100]}", *range(5))
    visitor = visit()
    shown = [name.replace("\u202e", "\\u202e").replace("\u200b", "\\u200b") for name in HOSTILE]
    assert sorted(visitor.names()) == sorted(shown)
    for name in HOSTILE:
        visitor.page.fill("#searchbar", name)
        visitor.follow("#toolbar [type=submit]")
        found = sum(name in each for each in HOSTILE)  # a part of a name is found, too
        visitor.page.wait_for_selector(f"text=/^\\s*{found} rows?\\s*$/")
        assert len(visitor.names()) == found
        visitor.page.goto(f"{PAGE}?{urlencode({'alias': name, 'q': name})}")
        assert "REDLOCK has no alias" in visitor.page.inner_text(".redlock-banner")
        visitor.page.goto(PAGE)


# Each width, and both schemes at one: no width depends on a colour.
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        (DESK, "light"),
        (DESK, "dark"),
        (LAPTOP, "light"),
        (HALF, "dark"),
        (TABLET, "light"),
        (PHONE, "dark"),
    ],
)
def test_light_and_dark_wide_and_narrow(visit, tmp_path: Path, size, scheme):
    """Nothing sticks out at any width, sidebar or not, and the colours are those of the admin."""
    nodes = group("default")
    stop_clocks(nodes)
    put(nodes, "import:7", f"{A}:1795263992757438:worker-1:640", 0, 1, seconds=10)
    put(nodes, "split", f"{A}:1795263992757438:worker-1:640", 0, 1, seconds=10)
    put(nodes, "split", f"{B}:1795263992757439:worker-2:641", 2, 3, seconds=10)
    put(nodes, "x" * 512, f"{A}:1795263992757438:{'y' * 200}", *range(5), seconds=10)
    run = f"{A}:5:worker-1:640(reports.tasks.sync):{uuid.uuid4()}"
    put(nodes, "account:7", run, *range(5), seconds=10)
    queue(nodes, "reports.tasks.sync", "account:8", str(uuid.uuid4()), *range(5))
    queue(nodes, "t" * 80, "x" * 400, "i" * 64, 0, 1)
    finish(nodes, "reports.tasks.sync", str(uuid.uuid4()), *range(5))
    with elsewhere("invoice:42", ttl=30):
        visitor = visit(size, color_scheme=scheme)
        page = visitor.page
        visitor.follow("text=with finished tasks")
        sidebar = page.locator("#nav-sidebar").bounding_box()
        assert (sidebar is not None and sidebar["x"] >= 0) == (size != PHONE)
        page.screenshot(path=tmp_path / f"locks-{scheme}-{size[0]}.png", full_page=True)
        for element in ("html", ".redlock-nodes", ".results"):
            sticks_out = page.eval_on_selector(element, "e => e.scrollWidth - e.clientWidth")
            assert sticks_out <= 0, element
        widths = "e => [...document.querySelectorAll(e)].map(e => e.getBoundingClientRect().width)"
        nodes_wide, locks_wide = (
            page.evaluate(widths, element)[0] for element in (".redlock-nodes", ".results")
        )
        assert locks_wide == pytest.approx(nodes_wide, abs=2)  # Django 6.0 made a row of it
        bar = page.eval_on_selector(".breadcrumbs", "e => getComputedStyle(e).backgroundColor")
        assert bar != "rgba(0, 0, 0, 0)"  # styled by the admin, whose markup differs by version
        trail = page.locator(".breadcrumbs").inner_text().split()
        assert [step for step in trail if step.isalpha()] == ["Home", "Redlock", "Locks"]
        colour = page.eval_on_selector("body", "e => getComputedStyle(e).backgroundColor")
        badge = page.eval_on_selector(".redlock-good", "e => getComputedStyle(e).backgroundColor")
    assert colour == {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 18, 18)"}[scheme]
    assert badge == {"light": "rgb(221, 255, 221)", "dark": "rgb(0, 107, 27)"}[scheme]
    assert (tmp_path / f"locks-{scheme}-{size[0]}.png").stat().st_size > 10_000


# In how many lines each word of the table of locks stands; a word has letters alone.
LINES = """() => {
  const broken = [];
  for (const bdi of document.querySelectorAll(".redlock-locks bdi")) {
    const texts = document.createTreeWalker(bdi, NodeFilter.SHOW_TEXT);
    const range = document.createRange();
    let node, word = "";
    const end = () => {
      const tops = new Set([...range.getClientRects()].map(each => Math.round(each.top)));
      if (word.length > 1 && tops.size > 1) broken.push(word);
      word = "";
    };
    while ((node = texts.nextNode())) {
      for (let i = 0; i <= node.data.length; i++) {
        if (/[a-z]/i.test(node.data[i] ?? "")) {
          if (!word) range.setStart(node, i);
          word += node.data[i];
          range.setEnd(node, i + 1);
        } else if (word && i < node.data.length) end();
      }
    }
    end();
  }
  return broken;
}"""


@pytest.mark.parametrize("size", [DESK, LAPTOP, PHONE], ids=["desk", "laptop", "phone"])
def test_no_name_is_broken_inside_of_a_word(visit, size):
    """Nor that of a holder; five columns of nodes leave little room."""
    nodes = group("default")
    for name in ("run:reports.tasks.reconciliation:4f1c09a2", "reconciliation:customer/4711"):
        label = f"worker-2:871(reports.tasks.reconciliation):{uuid.uuid4()}"
        put(nodes, name, f"{A}:1795854357685844:{label}", *range(5))
    with elsewhere("invoice:42", ttl=60):
        page = visit(size).page
        assert page.evaluate(LINES) == []
        for element in ("html", ".results"):
            assert page.eval_on_selector(element, "e => e.scrollWidth - e.clientWidth") <= 0
        page.eval_on_selector_all("wbr", "all => all.forEach(each => each.remove())")
        rule = ".redlock-locks bdi { overflow-wrap: anywhere; display: block; width: 5rem; }"
        page.evaluate("rule => document.styleSheets[0].insertRule(rule)", rule)
        assert "reconciliation" in page.evaluate(LINES)  # it would notice


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_slots_of_a_limited_lock(visit, size, scheme):
    """They stand together, fit into the page, and lead to pages of their own."""
    with elsewhere("openai", limit=5) as _, elsewhere("openai", limit=5), elsewhere("other"):
        visitor = visit(size, color_scheme=scheme)
        page = visitor.page
        *both, last = visitor.names()
        assert last == "other"
        assert all(each.startswith("openai (slot ") and each.endswith(" of 5)") for each in both)
        assert page.locator("text=openai: 2 of 5 held; slots are numbered from 0.").is_visible()
        wide = page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
        assert wide <= 0
        visitor.follow(f"text={both[0]}")
        assert visitor.names() == both[:1]

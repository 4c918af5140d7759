"""The auditor of pages finds each mistake here, and none in a good page."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.pages.auditor import SCHEMES, SIZES, ZOOMED
from tests.support.pages.faults import Fault

pytestmark = pytest.mark.slow

GOOD = """\
<!doctype html>
<html lang="en">
<head>
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Locks</title>
<style>
:root { color-scheme: light dark; background: light-dark(#fff, #111); }
:any-link { color: light-dark(#00e, #9cf); }
::placeholder { color: inherit; }
p { margin: 4rem 0 0; line-height: 1.5; }
.of-css::before { content: "No. "; }
.pale::before, .pale::placeholder { color: light-dark(#aaa, #444); }
:focus-visible { outline: 3px solid CanvasText; }
</style>
</head>
<body>
<main>
<h1>Locks</h1>
<p>Nobody holds a lock. <a href="#all">All names</a></p>
<ul id="all"><li class="of-css">one</li></ul>
<form>
<label>Name <input name="q"></label>
<input aria-label="Pattern" placeholder="report:*">
<button>Search</button>
</form>
</main>
</body>
</html>
"""
TEXT = "Somebody holds a lock that has quite a long name"
# What is wrong in some views only. axe-core does not look at the zoomed page: it judges no layout.
DARK, PHONE, NARROW = "dark", "390 px", "390 px, 200 %"
# The element, the rule that finds it, the views in which it is wrong, and a page's source of it.
MISTAKES = (
    ("grey", "contrast", "", '<p id="grey" style="color: #999; background: #fff">{}</p>'),
    ("grey", "color-contrast", "axe", ""),
    ("dim", "contrast", DARK, '<p id="dim" style="color: light-dark(#000, #444)">{}</p>'),
    ("faded", "contrast", "", '<p id="faded" style="opacity: 0.4">{}</p>'),
    ("label", "contrast", "", '<p id="label" class="of-css pale">{}</p>'),
    ("hint", "contrast", "", '<input id="hint" class="pale" aria-label="x" placeholder="a name">'),
    ("phone", "sticks-out", PHONE, '<p id="phone" style="width: 600px; text-align: right">{}</p>'),
    ("zoom", "sticks-out", NARROW, '<p id="zoom" style="width: 60rem; text-align: right">{}</p>'),
    ("scroll", "overflow", "", '<pre id="scroll" style="width: 6rem; overflow: auto">{}</pre>'),
    ("scroll", "scrollable-region-focusable", "axe", ""),
    ("low", "cut-off", "", '<p id="low" style="height: 0.5rem; overflow: hidden">{}</p>'),
    ("slim", "cut-off", "", '<pre id="slim" style="width: 6rem; overflow: clip">{}</pre>'),
    ("left", "sticks-out", "", '<p id="left" style="margin-left: -3rem">{}</p>'),
    ("below", "overlap", "", '<p id="below">{}</p><p style="margin-top: -1.5rem">{}</p>'),
    ("nameless", "label", "axe", '<input id="nameless">'),
    ("missing", "names-nothing", "", '<ul id="missing" aria-describedby="x"><li>one</li></ul>'),
    ("unseen", "focus-unseen", "once", '<p><a href="#all" id="unseen" style="outline: 0">{}</a>'),
    ("missed", "not-by-keyboard", "once", '<p><a href="#all" id="missed" onfocus="blur()">{}</a>'),
    ("nobody", "console", "once", "<script>nobody()</script>"),
    ("gone", "console", "once", '<img alt="" src="http://127.0.0.1:1/gone.png">'),
    ("hello", "console", "once", "<script>alert('hello')</script>"),
    ("html", "overflow", NARROW, ""),  # of what is too wide
    ("html", "document-title", "axe", ""),
    ("html", "html-has-lang", "axe", ""),
)
BAD = (
    GOOD.replace("<title>Locks</title>", "")
    .replace(' lang="en"', "")
    .replace("</main>", "".join(each[3].replace("{}", TEXT) for each in MISTAKES) + "</main>")
)
Audit = Callable[..., list[Fault]]


@pytest.fixture(scope="module")
def audit(auditor) -> Iterator[Audit]:
    """Look at a page of this text, which a server of one page serves."""
    page = ""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(404 if "no such page" in page else 200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            with suppress(BrokenPipeError):  # the browser was closed
                self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    def audit(text: str, **options: int) -> list[Fault]:
        nonlocal page
        page = text
        found: list[Fault] = auditor.audit(f"http://127.0.0.1:{server.server_port}/", **options)
        return found

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield audit
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def found(audit: Audit) -> list[Fault]:
    """What is wrong with the page that has all mistakes."""
    return audit(BAD)


def test_a_good_page_has_no_faults(audit):
    """Nothing is wrong with it in any view; a status that is expected is no fault."""
    assert audit(GOOD) == []
    assert audit(GOOD.replace("Nobody holds", "There is no such page of"), status=404) == []


def test_a_page_may_be_dark_by_an_element_alone(audit):
    """A <meta> makes the browser's own ground dark: its text can be read there, a grey one not."""
    plain = GOOD[: GOOD.index("<style>")] + GOOD[GOOD.index("</style>") + len("</style>") :]
    plain = plain.replace("<title>", '<meta name="color-scheme" content="light dark">\n<title>')

    def pale_headings(text: str) -> set[str]:
        found = [each for each in audit(text) if each.rule == "contrast"]
        return {each.view.split(",")[0] for each in found if each.where.endswith("h1")}

    assert pale_headings(plain) == set()
    assert pale_headings(plain.replace("<h1>", '<h1 style="color: #222">')) == {"dark"}


AGAIN = """const newest = () => document.querySelector('button');
const again = () => { newest().outerHTML = '<button>Search</button>' }"""


@pytest.mark.parametrize(
    ("script", "missed"),
    [
        ("button.replaceWith(button.cloneNode(true))", []),
        ("link.replaceWith(link.cloneNode(true))", []),  # Tab has reached the old one
        (
            f"{AGAIN}; again(); newest().onfocus = () => setTimeout(again)",
            [],
        ),  # Tab reaches the second
        ("document.activeElement.outerHTML = '<input aria-label=q>'", []),  # the focus is nowhere
        ("button.remove()", []),
        ("button.outerHTML = '<button onfocus=\"blur()\">Search</button>'", ["not-by-keyboard"]),
    ],
)
def test_a_page_may_change_while_its_elements_are_reached(audit, script, missed):
    """Tab must reach what takes an element's place, unless it has reached the element before."""
    change = (
        "<script>document.querySelector('[name=q]').onfocus = () => {"
        " const link = document.querySelector('p a'), button = document.querySelector('button');"
        f" {script}; }};</script>"
    )
    page = GOOD.replace("</main>", f"{change}</main>")
    assert [fault.rule for fault in audit(page)] == missed


@pytest.mark.parametrize(("where", "rule", "views"), [each[:3] for each in MISTAKES])
def test_a_mistake_is_found(found, where, rule, views):
    """Each mistake is found where it is, by its rule, in the views that have it and no others."""
    every = {f"{scheme}, {size.name}" for scheme in SCHEMES for size in SIZES}
    wrong = {
        "": every,
        "once": {""},
        "axe": {each for each in every if ZOOMED.name not in each},
        DARK: {each for each in every if DARK in each},
        PHONE: {each for each in every if PHONE in each},
        NARROW: {each for each in every if PHONE in each or ZOOMED.name in each},
    }
    same = [fault for fault in found if fault.rule == rule]
    seen = {fault.view for fault in same if where in f"{fault.where} {fault.text}"}
    assert seen == wrong[views], "\n".join(map(str, found))

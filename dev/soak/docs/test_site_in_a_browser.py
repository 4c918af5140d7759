"""The pages as a reader's browser shows them, on a desk and a phone, in light and dark.

The layout is the theme's. Ours are tables, code, pictures and names. axe-core finds nothing.
"""

from __future__ import annotations

import functools
import html
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT

pytestmark = [pytest.mark.slow]
SECONDS = 300  # for a build beside other tests
DESK, PHONE = 1280, 390
READABLE = 0.9  # of its size at which the letters of a picture were chosen
TAG = re.compile(r"<[^>]+>")
PERMALINK = re.compile(r'<a class="headerlink".*?</a>', re.DOTALL)
# What is left of a markup that was not understood, in the text of a page.
RAW = r"``|:(?:ref|class|func|meth|doc|term):|<!--|^:::|^#{1,4} \w|\]\((?:\.\./|[\w-]+\.md)"
LOOK = """() => {
  const wide = document.documentElement.clientWidth;
  const article = document.querySelector("article");
  const code = Array.from(article.querySelectorAll("pre, code"));
  const faults = [];
  const inside = (each) => each.closest(".table-wrapper, .screen, pre");
  for (const each of article.querySelectorAll("img, pre, table, code, h1, h2, h3")) {
    const box = each.getBoundingClientRect();
    const scrolls = each.matches("table") || inside(each.parentElement);
    if ((!scrolls || (each.matches(".cards") && wide < 736)) && box.right > wide + 1) {
      faults.push(`${each.localName} sticks out: ${each.textContent.slice(0, 40)}`);
    }
  }
  for (const each of article.querySelectorAll("img")) {
    const box = each.getBoundingClientRect();
    if (box.width > 0 && box.width < Math.min(each.naturalWidth, 736) * READABLE) {
      faults.push(`${each.getAttribute("src")} is ${box.width} of ${each.naturalWidth} px wide`);
    }
  }
  for (const cell of article.querySelectorAll("td, th")) {
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    const range = document.createRange();
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      for (const {0: word, index} of node.data.matchAll(/(?:(?<!\\S)-{1,2})?[\\p{L}\\p{N}]+/gu)) {
        range.setStart(node, index);
        range.setEnd(node, index + word.length);
        const boxes = Array.from(range.getClientRects()).filter((each) => each.width > 1);
        if (new Set(boxes.map((each) => Math.round(each.top / 8))).size > 1) {
          faults.push(`"${word}" is broken`);
        }
      }
    }
  }
  for (const found of article.innerText.matchAll(RAW)) {
    const near = article.innerText.slice(Math.max(0, found.index - 30), found.index + 30);
    if (!code.some((each) => each.innerText.includes(found[0]))) {
      faults.push(`raw markup: ${near}`);
    }
  }
  const contents = document.querySelector(".toc-drawer:not(.no-toc)");
  if (wide >= 1280 && contents && contents.getBoundingClientRect().right > wide) {
    faults.push("the contents of the page are not to be seen");
  }
  return faults;
}""".replace("READABLE", str(READABLE)).replace("RAW", f"/{RAW.replace('/', chr(92) + '/')}/gm")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages, as `make docs` builds them."""
    out = tmp_path_factory.mktemp("html")
    command = [sys.executable, "-m", "sphinx", "-q", "-E", "-b", "html", "docs", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=SECONDS)
    return out


class Quiet(SimpleHTTPRequestHandler):
    """It writes no log."""

    def log_message(self, *_args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site(built: Path) -> Iterator[str]:
    """The address of the pages; none for the icon that the browser asks for."""
    handler = functools.partial(Quiet, directory=str(built))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def texts(pattern: str, page: str) -> list[str]:
    """What stands in some elements, without marks and permalinks."""
    found = re.findall(pattern, PERMALINK.sub("", page), re.DOTALL)
    return [" ".join(html.unescape(TAG.sub("", each)).split()) for each in found]


def test_each_page_has_one_name(built):
    """In its title, its heading, the navigation, and the links at the feet of its neighbours."""
    pages = {each: each.read_text() for each in built.rglob("*.html") if "<h1>" in each.read_text()}
    names = {page.resolve(): texts("<h1>(.*?)</h1>", text)[0] for page, text in pages.items()}
    assert len(names) > 40
    for page, text in pages.items():
        title = texts("<title>(.*?)</title>", text)[0]  # the icons have titles, too
        assert title.removesuffix(" - django-redlock 0.1.0") == names[page.resolve()] or (
            page.name == "index.html" and title == "django-redlock 0.1.0"
        )
        links = re.findall(r'<a class="reference internal" href="([^"#]+)">([^<]+)</a></li>', text)
        assert len(links) > 40
        for address, name in links:
            target = (page.parent / address).resolve()
            assert " ".join(html.unescape(name).split()) == names[target]
        for direction in ("prev", "next"):
            found = re.findall(
                rf'<a class="{direction}-page" href="([^"]+)">(.*?)</a>', text, re.DOTALL
            )
            for address, shown in found:
                (name,) = texts('<div class="title">(.*?)</div>', shown) or ["Home"]
                home = address.endswith("index.html") and name == "Home"
                assert home or name == names[(page.parent / address).resolve()]


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_a_page_can_be_read(auditor, built, site, width):
    """No page is wider than its window, no word of a table is broken, no picture is too small."""
    wrong = {}
    for page in sorted(built.rglob("*.html")):
        name = page.relative_to(built).as_posix()
        if "<h1>" not in page.read_text() or name in {"search.html", "genindex.html"}:
            continue
        if found := auditor.look(site + name, LOOK, width):
            wrong[name] = found
    assert wrong == {}


@pytest.mark.parametrize(
    "page",
    [
        *("index", "how-to/views", "how-to/which-lock", "how-to/runbook", "how-to/status"),
        *("explanation/what-if", "reference/commands", "reference/options"),
    ],
)
def test_everybody_can_read_the_page(auditor, site, page):
    """In both schemes and all sizes axe-core finds nothing, and the browser does not complain."""
    assert auditor.audit(f"{site}{page}.html", layout=False) == []


@pytest.mark.parametrize(
    ("typed", "page"),
    [("stuck lock", "how-to/runbook"), ("heroku", "how-to/managed-services"), ("FAQ", "faq")],
)
def test_the_search_shows_the_page_first(auditor, site, typed, page):
    """As the browser shows it: an entry of the index that is no main one comes last."""
    script = """async () => {
      const shown = () => document.querySelector(".search-summary, #search-summary")?.innerText;
      for (let i = 0; i < 200 && !/found/.test(shown() ?? ""); i++) {
        await new Promise((done) => setTimeout(done, 50));
      }
      return document.querySelector("#search-results li a").getAttribute("href");
    }"""
    assert page in auditor.look(f"{site}search.html?q={typed.replace(' ', '+')}", script)

"""Walk from the home page to the answers of the twenty tasks, and count pages and words on the way.

    python -m dev.tools.walk docs/_build/html

``docs/tasks.toml`` has the questions, and for each the page and the sentences that answer it
completely. The walker reads a page from its top, or from the heading that a link leads to, up to
the link that it follows, and the last page up to the end of the last sentence. Of all ways by links
in the text it takes the one with the fewest words. It fails for a task that takes too many pages or
words, and for one whose sentences are not on their page. ``--report``: it only prints.
"""

from __future__ import annotations

import argparse
import heapq
import posixpath
import re
import sys
import tomllib
from bisect import bisect_left
from functools import cache, cached_property
from html.parser import HTMLParser
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeAlias

from .prose import DOCS, WORD

TASKS: Final = DOCS / "tasks.toml"
HOME: Final = "index"
QUOTES: Final = str.maketrans("‘’“”", "''\"\"")  # noqa: RUF001 - as Sphinx writes them
FAR: Final = 4  # pages: no way is longer
INLINE: Final = frozenset(
    {"a", "code", "span", "em", "strong", "kbd", "sup", "sub", "cite", "b", "i"}
)
VOID: Final = frozenset({"br", "img", "input", "hr", "source", "link", "meta", "wbr", "col"})


# A page and the words above where one begins to read it; the pages on the way; the words read.
Arrival: TypeAlias = tuple[tuple[str, int], tuple[str, ...], int]


class Task(NamedTuple):
    """A question, where its answer stands, and how much may be read until then."""

    letter: str
    question: str
    page: str
    answer: tuple[str, ...]
    most_pages: int
    most_words: int


class Way(NamedTuple):
    """A way to an answer: the pages, and the words that were read on them."""

    pages: tuple[str, ...]
    words: int


class Page(HTMLParser):
    """The text of a built page, with what its links and headings stand at.

    Attributes:
        text: the words of the page, with one space between two of them.
        words: how many there are.
    """

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[str] = []
        self._inside = 0
        self._hidden = 0
        self._open: list[tuple[str, bool]] = []
        self._anchors: dict[str, int] = {}
        self._links: list[tuple[str, int]] = []
        self._href = ""

    @classmethod
    @cache
    def read(cls, path: Path) -> Self:
        """Read a file, once."""
        page = cls()
        page.feed(path.read_text(encoding="utf-8"))
        return page

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin an element; what is outside of the article, or of its controls, is no text."""
        given = dict(attrs)
        if tag == "article":
            self._inside += 1
        if self._inside and tag not in INLINE:
            self._parts.append(" ")
        classes = (given.get("class") or "").split()
        hides = tag in {"script", "style", "button"} or "headerlink" in classes
        if self._inside and given.get("id"):
            self._anchors[str(given["id"])] = len(self._parts)
        if self._inside and tag == "a" and not hides:
            self._href = given.get("href") or ""
        if tag not in VOID:
            self._open.append((tag, hides))
            self._hidden += hides

    def handle_endtag(self, tag: str) -> None:
        """End an element."""
        while self._open:
            name, hides = self._open.pop()
            self._hidden -= hides
            if name == tag:
                break
        if tag == "a" and self._href:
            self._links.append((self._href, len(self._parts)))
            self._href = ""
        if tag == "article":
            self._inside -= 1

    def handle_data(self, data: str) -> None:
        """Take text."""
        if self._inside and not self._hidden:
            self._parts.append(data)

    @cached_property
    def text(self) -> str:
        """All of the text."""
        return plain("".join(self._parts))

    @cached_property
    def words(self) -> int:
        """How many words there are."""
        return count(self.text)

    def before(self, part: int) -> int:
        """Count the words before a part."""
        return bisect_left(self._begins, self._offsets[part])

    @cached_property
    def _begins(self) -> list[int]:
        """Where each word begins, in characters."""
        return [word.start() for word in WORD.finditer("".join(self._parts))]

    @cached_property
    def _offsets(self) -> list[int]:
        """Where each part begins, and where the last one ends."""
        return [0, *accumulate(map(len, self._parts))]

    def links(self) -> list[tuple[str, int]]:
        """Return the links, each with the words before its end."""
        return [(href, self.before(part)) for href, part in self._links]

    def at(self, anchor: str) -> int:
        """Return how many words stand above an anchor; 0 of the page itself, or an unknown one."""
        return self.before(self._anchors[anchor]) if anchor in self._anchors else 0

    def span(self, sentences: tuple[str, ...]) -> tuple[int, int] | None:
        """Return the words before the first of the sentences, and before the end of the last.

        None: one is missing, or there is none.
        """
        spans = []
        for sentence in sentences:
            wanted = plain(sentence)
            at = self.text.find(wanted)
            if at < 0:
                return None
            spans.append((count(self.text[:at]), count(self.text[: at + len(wanted)])))
        return (min(begin for begin, _ in spans), max(end for _, end in spans)) if spans else None


def plain(text: str) -> str:
    """Return a text with one space between two words, and the quotes of a keyboard."""
    return " ".join(text.translate(QUOTES).split())


def count(text: str) -> int:
    """Count words."""
    return len(WORD.findall(text))


def tasks(path: Path = TASKS) -> list[Task]:
    """Return the tasks of the file."""
    found = tomllib.loads(path.read_text(encoding="utf-8"))
    most = found["most"]
    return [
        Task(
            each["letter"],
            each["question"],
            each.get("page", ""),
            tuple(each.get("answer", ())),
            each.get("pages", most["pages"]),
            each.get("words", most["words"]),
        )
        for each in found["task"]
    ]


def walk(built: Path, task: Task) -> Way | None:
    """Return the way with the fewest words to the answer of a task; None: there is none."""
    html = built / f"{task.page}.html"
    if not task.answer or not html.is_file():
        return None
    span = Page.read(html).span(task.answer)
    if span is None:
        return None
    begin, end = span
    ways = [
        Way(pages, words + end - start)
        for (page, start), pages, words in _ways(built, task.page)
        if page == task.page and start <= begin
    ]
    short = [each for each in ways if len(each.pages) <= task.most_pages]
    return min(short or ways, key=lambda way: way.words, default=None)


def _ways(built: Path, to: str) -> list[Arrival]:
    """Return arrivals at a page: where one begins to read it, the pages on the way, the words."""
    found: list[Arrival] = []
    going: list[tuple[int, tuple[str, ...], tuple[str, int]]] = [(0, (HOME,), (HOME, 0))]
    seen: set[tuple[tuple[str, int], int]] = set()
    while going:
        words, pages, at = heapq.heappop(going)
        if (at, len(pages)) in seen:  # by fewer words
            continue
        seen.add((at, len(pages)))
        page, start = at
        if page == to:
            found.append((at, pages, words))
        for href, before in _links(built, page):
            target, _, anchor = href.partition("#")
            file = built / f"{target or page}.html"
            if before < start or target in pages or not file.is_file():
                continue
            begins = Page.read(file).at(anchor)
            if target and page != to and len(pages) < FAR:
                further = (words + before - start, (*pages, target), (target, begins))
                heapq.heappush(going, further)
            elif not target and begins > before:
                heapq.heappush(going, (words + before - start, pages, (page, begins)))
    return found


@cache
def _links(built: Path, page: str) -> tuple[tuple[str, int], ...]:
    """Return the links of a page, to others and to its own headings: the first to each."""
    found: dict[str, int] = {}
    for href, before in Page.read(built / f"{page}.html").links():
        if re.match(r"\w+:", href):
            continue
        if href.startswith("#"):
            found.setdefault(href, before)
            continue
        path, _, anchor = href.partition("#")
        name = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
        if name.endswith(".html"):
            found.setdefault(name.removesuffix(".html") + (f"#{anchor}" if anchor else ""), before)
    return tuple(found.items())


def verdict(task: Task, way: Way | None) -> str:
    """Return what is wrong with a way; "" if nothing is."""
    if not task.answer:
        return "no answer yet"
    if way is None:
        return f"the answer is not on {task.page}, or no way leads there"
    if len(way.pages) > task.most_pages:
        return f"more than {task.most_pages} pages"
    return f"more than {task.most_words} words" if way.words > task.most_words else ""


def main(arguments: list[str] | None = None) -> int:
    """Print the way of each task; return 1 if one is too long or missing."""
    parser = argparse.ArgumentParser(prog="python -m dev.tools.walk", description=__doc__)
    parser.add_argument("built", type=Path, help="the folder of the built pages")
    parser.add_argument("--report", action="store_true", help="do not fail")
    parser.add_argument("--tasks", type=Path, default=TASKS, help="the file of the tasks")
    given = parser.parse_args(arguments)
    failed = False
    for task in tasks(given.tasks):
        way = walk(given.built, task)
        wrong = verdict(task, way)
        failed = failed or bool(wrong)
        taken = f"{len(way.pages)} pages, {way.words:>5,} words" if way else "-"
        print(f"{task.letter}  {taken:22}{task.question}")
        print(f"   {' > '.join(way.pages) if way else ''}{f'  FAILED: {wrong}' if wrong else ''}")
    return int(failed and not given.report)


if __name__ == "__main__":
    sys.exit(main())

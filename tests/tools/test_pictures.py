"""The drawings of README and documentation say what their data say, in letters that can be read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations, pairwise
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest

from dev.museum.drawing import EDGE, SIZES, WIDTH, box, width
from dev.tools import pictures
from django_redlock.work.options import UNTIL_FINISHED, UNTIL_STARTED, WHILE_RUNNING
from tests.docs.pages import ROOT

pytestmark = pytest.mark.tools

DRAWN = {name: draw() for name, draw in pictures.PICTURES.items()}
ON_A_PHONE = 358 / WIDTH  # what a page of 390 px leaves to a picture, beside its margins
SMALLEST = 11  # px
PLACES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("docs/**/*.md"))]
PICTURE = re.compile(r"!\[([^\]]*)\]\([^)]*_static/pictures/([a-z-]+)\.svg\)")


class Part(NamedTuple):
    """A rectangle around something that is drawn."""

    what: str
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Part) -> bool:
        """Whether they have a place in common."""
        beside = self.right <= other.left or other.right <= self.left
        return not (beside or self.bottom <= other.top or other.bottom <= self.top)

    def lies_in(self, other: Part) -> bool:
        """Whether nothing of it is outside of the other."""
        wide = other.left <= self.left and self.right <= other.right
        return wide and other.top <= self.top and self.bottom <= other.bottom


def parts(svg: str, tag: str) -> Iterator[Part]:
    """The texts, the boxes or the lines of a picture."""
    for found in ET.fromstring(svg).iter(f"{{http://www.w3.org/2000/svg}}{tag}"):  # noqa: S314 -- ours
        kind, of = found.get("class", ""), lambda key, el=found: float(el.get(key, 0))
        if tag == "text":
            words = found.text or ""
            size, wide = (
                min(SIZES.get(each, 13) for each in [*kind.split(), ""]),
                width(words, kind),
            )
            back = {"middle": wide / 2, "end": wide}
            left = of("x") - next((back[each] for each in kind.split() if each in back), 0)
            yield Part(words, left, of("y") - 0.75 * size, left + wide, of("y") + 0.22 * size)
        elif tag == "rect" and kind not in {"ground", "gap"}:
            yield Part(kind, of("x"), of("y"), of("x") + of("width"), of("y") + of("height"))
        elif tag == "line" and kind != "hatch":
            xs, ys = sorted([of("x1"), of("x2")]), sorted([of("y1"), of("y2")])
            yield Part(kind, xs[0] - 0.5, ys[0] - 0.5, xs[1] + 0.5, ys[1] + 0.5)


def faults(svg: str) -> list[str]:
    """What cannot be read in a picture."""
    texts, boxes = list(parts(svg, "text")), list(parts(svg, "rect"))
    lines = list(parts(svg, "line"))
    paper = Part("sheet", EDGE, 0, WIDTH - EDGE + 1, float("inf"))
    found = [f"{text.what!r} leaves the sheet" for text in texts if not text.lies_in(paper)]
    for first, second in combinations(texts, 2):
        found += [f"{first.what!r} over {second.what!r}"] * first.meets(second)
    for text in texts:
        found += [f"{text.what!r} on a line {each.what}" for each in lines if text.meets(each)]
        found += [
            f"{text.what!r} over the edge of a box {each.what}"
            for each in boxes
            if text.meets(each) and not text.lies_in(each)
        ]
    return found


@pytest.mark.parametrize("name", DRAWN)
class TestEach:
    def test_is_what_the_script_draws(self, name: str) -> None:
        path = pictures.FOLDER / f"{name}.svg"
        assert path.read_text(encoding="utf-8") == DRAWN[name], "make pictures"

    def test_words_lie_in_their_boxes_and_over_nothing(self, name: str) -> None:
        assert faults(DRAWN[name]) == []

    def test_is_small_needs_nothing_from_elsewhere_and_has_both_schemes(self, name: str) -> None:
        svg = DRAWN[name]
        assert len(svg.encode()) < 12_000
        assert "prefers-color-scheme:dark" in svg
        assert not re.search(r"href|url\((?!#)|@import|@font-face|<script", svg)

    def test_tells_in_words_what_it_shows(self, name: str) -> None:
        space = "{http://www.w3.org/2000/svg}"
        root = ET.fromstring(DRAWN[name])  # noqa: S314 -- ours
        assert root.findtext(f"{space}title")
        assert len(root.findtext(f"{space}desc") or "") > 80

    def test_is_on_a_page_with_words_for_who_does_not_see_it(self, name: str) -> None:
        shown = [PICTURE.findall((ROOT / place).read_text()) for place in PLACES]
        words = [alt for found in shown for alt, which in found if which == name]
        assert words
        assert all(len(alt) > 30 for alt in words)


def test_no_letters_are_too_small_on_a_telephone() -> None:
    """Where a picture is as wide as the text of a page of 390 px."""
    assert min(SIZES.values()) * ON_A_PHONE >= SMALLEST


def test_words_that_are_too_long_are_found() -> None:
    """The look above sees what it is there for."""
    paper = pictures.Drawing()
    paper.under.append(box("pale", 10, 10, 40, 20))
    paper.text(14, 24, "much too long for it")
    assert faults(paper.file("", "")) == [
        "'much too long for it' over the edge of a box pale",
    ]


def test_no_picture_is_left_over() -> None:
    """Each file belongs to a drawing."""
    assert {path.stem for path in pictures.FOLDER.iterdir()} == set(DRAWN)


class TestTheDataAreThoseOfThePackage:
    def test_votes(self) -> None:
        for moment in pictures.VOTES[: pictures.SECOND + 1]:
            assert not moment.votes or len(moment.votes) == 5
            assert not moment.votes or moment.votes[pictures.DOWN - 1] == "-"

    def test_modes(self) -> None:
        modes = {WHILE_RUNNING, UNTIL_STARTED, UNTIL_FINISHED}
        assert set(pictures.MODES) == modes

    @pytest.mark.parametrize("mode", pictures.MODES)
    def test_which_messages_are_sent(self, mode: str) -> None:
        """As the table of modes of the page about Celery says."""
        _, fates = pictures.MODES[mode]
        runs = {each: fate for each, fate in fates.items() if isinstance(fate, float)}
        for message, fate in fates.items():
            at = pictures.SENT[message]
            before = {each: begin for each, begin in runs.items() if pictures.SENT[each] < at}
            waits = [f"not sent: {each} waits" for each, begin in before.items() if at < begin]
            busy = [
                f"not sent: {each} runs"
                for each, begin in before.items()
                if begin <= at < begin + pictures.RUN
            ]
            refused = {WHILE_RUNNING: [], UNTIL_STARTED: waits, UNTIL_FINISHED: waits + busy}[mode]
            assert [fate] * bool(refused) == refused
            assert refused or isinstance(fate, float) or fate.startswith("skipped")
        spans = sorted((begin, begin + pictures.RUN) for begin in runs.values())
        assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))

    def test_no_slot_has_two_holders(self) -> None:
        for row in pictures.SLOTS.rows:
            spans = sorted((bar.start, bar.end) for bar in pictures.SLOTS.bars if bar.row == row)
            assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))

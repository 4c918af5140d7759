from __future__ import annotations

from itertools import combinations
from typing import NamedTuple
from xml.etree import ElementTree as ET

from hypothesis import given
from hypothesis import strategies as st

from museum import history
from museum.checker import judge
from museum.story import rows
from museum.timeline import draw, width
from tests.support.hostile import HOSTILE

from .histories import cell, event, histories, played

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = {"svg", "title", "desc", "style", "defs", "pattern", "rect", "g", "line", "circle", "text"}
NAMES = st.one_of(st.sampled_from(["A", "B", *HOSTILE]), st.text(min_size=1, max_size=30))


class Label(NamedTuple):
    """A line of text: where it is, and how large at most."""

    words: str
    left: float
    right: float
    top: float
    bottom: float


def labels(svg: str) -> list[Label]:
    """All lines of text of a picture."""
    found = []
    for text in ET.fromstring(svg).iter(f"{SVG}text"):  # noqa: S314 - our own
        x, y, size = (float(text.attrib[key]) for key in ("x", "y", "font-size"))
        is_bold = text.get("class") in {"bold", "alarm"}
        words = text.text or ""
        room = width(words, size, is_bold=is_bold)
        left = x - {"end": room, "middle": room / 2}.get(text.get("text-anchor", ""), 0)
        found.append(Label(words, left, left + room, y - size * 0.8, y + size * 0.2))
    return found


def overlapping(found: list[Label]) -> list[tuple[str, str]]:
    """The labels that share a place."""
    return [
        (a.words, b.words)
        for a, b in combinations(found, 2)
        if a.left < b.right and b.left < a.right and a.top < b.bottom and b.top < a.bottom
    ]


def is_readable(svg: str) -> None:
    """Nothing but drawings, labels that are inside and apart, and large enough on a phone."""
    root = ET.fromstring(svg)  # noqa: S314 - our own
    assert {each.tag.removeprefix(SVG) for each in root.iter()} <= DRAWN
    assert not any(
        key.startswith("on") or "href" in key for each in root.iter() for key in each.attrib
    )
    _, _, wide, high = map(float, root.attrib["viewBox"].split())
    assert wide == 390
    found = labels(svg)
    assert all(label.top >= 0 and label.bottom <= high for label in found)
    assert all(label.left >= 0 and label.right <= wide for label in found), found
    assert overlapping(found) == []
    sizes = {float(text.attrib["font-size"]) for text in root.iter(f"{SVG}text")}
    assert min(sizes) >= 12


@given(histories(NAMES), st.sampled_from(["A lock", *HOSTILE]))
def test_whatever_happened_can_be_read(events, words):
    """Well-formed, no label on another one or outside, and no text is anything but text."""
    is_readable(draw(played(events, cell(words, words, words))))


TWO = "Two holders at once: A and B."
STORY = [
    event(0.0, "A", history.ASKS),
    event(0.1, "A", history.HOLDS, until=1.1, fence=7),
    event(0.2, "A", history.READS, value=0),
    event(0.3, "A", history.STOPPED),
    event(0.4, "museum", history.CHANGED, words="server 2 has restarted empty"),
    event(0.5, "B", history.HOLDS, until=5.5, fence=7),
    event(0.6, "B", history.WRITES, value=1),
    event(3.0, "A", history.GOES_ON),
    event(3.1, "A", history.WRITES, value=1),
    event(3.2, "A", history.WRITES, value=2, done=False),
    event(3.3, "A", history.LOST),
    event(3.4, "B", history.KILLED),
    event(9.0, "museum", history.FINAL, value=1),
]


def test_a_story_says_what_happened_and_what_is_wrong():
    """Who asks, holds, reads, writes, is stopped and killed; overlaps, a lost update, a fence."""
    found = rows(STORY, judge(STORY), frozenset())
    assert [f"{row.words} {row.alarm}".strip() for row in found] == [
        "A asks for the lock",
        "A has the lock for 1.00 s, fence 7",
        "A reads 0",
        "A is stopped",
        "server 2 has restarted empty",
        f"B has the lock for 5.00 s, fence 7 {TWO} The fence is not higher than 7.",
        "B writes 1",
        "the time of A is over",
        "A goes on",
        "A writes 1 An update is lost.",
        "the row refuses the 2 of A",
        "B is killed",
        "the number is 1, after 2 writes",
    ]


def test_a_picture_shows_each_of_it():
    """Bars of holds, two at once in red, the stop hatched, the death a cross, and the long wait."""
    svg = draw(played(STORY, cell(why="So it is.")))
    for kind in ("hold", "two", "stop", "cross", "dot wrong", "cut"):
        assert f'class="{kind}"' in svg
    words = [label.words for label in labels(svg)]
    assert "1.9 s later" in words
    assert {"A", "B", "servers", "So it is.", "two at once", "stopped", "killed"} <= set(words)


def test_a_picture_is_told_to_those_who_do_not_see_it():
    """Its title and its description have all that the rows say."""
    root = ET.fromstring(draw(played(STORY)))  # noqa: S314 - our own
    title, desc = root.find(f"{SVG}title"), root.find(f"{SVG}desc")
    assert title is not None
    assert desc is not None
    assert root.attrib["aria-labelledby"] == f"{title.attrib['id']} {desc.attrib['id']}"
    assert root.attrib["role"] == "img"
    assert title.text == "A lock: something happens"
    assert desc.text is not None
    assert desc.text.startswith(
        "Seen: fences out of order, lost updates, two holders. 0.00 s: A asks"
    )
    assert "3.10 s: A writes 1. An update is lost." in desc.text

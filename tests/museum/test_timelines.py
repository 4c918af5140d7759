from __future__ import annotations

import re
from itertools import combinations
from typing import NamedTuple
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from museum import history
from museum.checker import Break, judge
from museum.history import Event
from museum.lettering import width, wrapped
from museum.sheet import STYLE
from museum.story import FOLD, MANY, rows
from museum.timeline import draw
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


def test_labels_that_overlap_are_noticed():
    """The check can fail: a label that is moved up lies on the one above it."""
    svg = draw(played([event(0, "A", history.ASKS), event(1, "A", history.REFUSED)]))
    moved = re.sub(r'y="[^"]+"( font-size="13">A does)', r'y="81"\1', svg)
    assert moved != svg
    with pytest.raises(AssertionError):
        is_readable(moved)


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


@pytest.mark.parametrize(
    "what", [each for name, each in vars(history).items() if name.isupper() and name != "FINAL"]
)
def test_each_kind_of_event_can_be_told(what):
    """Also one that the words know nothing of: its name is a verb."""
    events = [event(0, "A", what), event(9, "museum", history.FINAL)]
    is_readable(draw(played(events)))
    quiet = {history.POINT}
    assert any(row.what == what for row in rows(events, judge(events), frozenset())) == (
        what not in quiet
    )


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


def test_a_client_is_stopped_where_it_stopped_itself():
    """The words of the point are told with the stop, and not with a later one."""
    events = [
        event(0, "A", history.POINT, where="between two steps"), event(1, "A", history.STOPPED),
        event(2, "A", history.GOES_ON), event(3, "A", history.STOPPED),
    ]  # fmt: skip
    words = [row.words for row in rows(events, judge(events), frozenset())]
    assert words == ["A is stopped: between two steps", "A goes on", "A is stopped"]


def test_a_client_that_starves_is_said():
    """Where it is refused."""
    events = [event(0, "A", history.ASKS), event(6, "A", history.REFUSED)]
    found = rows(events, judge(events), frozenset({Break.STARVED}))
    assert found[-1].alarm == "0 who came later got the lock before."


def test_a_wait_that_nobody_could_end_is_said():
    """Where it ends."""
    events = [event(0, "A", history.ASKS), event(6, "A", history.REFUSED)]
    found = rows(events, judge(events), frozenset({Break.STUCK}))
    assert found[-1].alarm == "Nobody could have the lock for 6.0 s."


def test_a_long_story_is_folded_around_what_is_wrong():
    """Beginning, end and the first of each wrong thing stay; the rest is counted."""
    many = [event(float(at), "A", history.READS, value=at) for at in range(100)]
    wrong = [event(50.1, "A", history.HOLDS), event(50.2, "B", history.HOLDS)]
    events: list[Event] = sorted(
        [*many, *wrong, event(200, "museum", history.FINAL)], key=lambda e: e.at
    )
    found = rows(events, judge(events), frozenset({Break.TWO}))
    assert len(found) < MANY
    assert any(row.alarm.startswith("Two holders") for row in found)
    assert [row.words for row in found[:3]] == ["A reads 0", "A reads 1", "A reads 2"]
    assert found[-1].what == history.FINAL
    folded = [row.words for row in found if row.what == FOLD]
    assert folded == ["… 42 more events …", "… 42 more events …"]


def test_words_are_broken_where_they_are_too_long():
    """At spaces, and within a word that has no room; seconds stay with their number."""
    assert wrapped("one two", 1000, 13) == ["one two"]
    assert wrapped("one two", width("one tw", 13), 13) == ["one", "two"]
    assert wrapped("for 6.0 s", width("for 6.0", 13), 13) == ["for", "6.0 s"]
    assert "".join(wrapped("x" * 50, 100, 13)) == "x" * 50
    assert wrapped("", 100, 13) == []


# -- colours --------------------------------------------------------------------------------------


def luminance(colour: str) -> float:
    """The relative luminance of a colour, as WCAG defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_colours_are_told_apart(scheme):
    """Words by 4.5 to 1 against the ground, bars by 3 to 1, in light and dark."""
    colours = dict(re.findall(r"--(\w+):(#[0-9a-f]{6})", re.split("@media", STYLE)[scheme]))
    ground = luminance(colours["ground"])

    def contrast(name: str) -> float:
        low, high = sorted([ground, luminance(colours[name])])
        return (high + 0.05) / (low + 0.05)

    assert min(map(contrast, ["ink", "muted", "red"])) >= 4.5
    assert min(map(contrast, ["hold", "red", "hatch"])) >= 3

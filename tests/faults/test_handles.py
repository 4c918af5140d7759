"""The rig of handles beside heals, revokes, rests and faults: it plays, and it can fail."""

from __future__ import annotations

from typing import Any

import pytest

from dev.soak.faults.handles import Play, judge, perform
from tests.support.replays import note_broken

Line = dict[str, Any]


def has(lease: str, moment: float, fence: int, **more: Any) -> Line:
    """The line of a lease that began then, on nodes 0 to 2 of five."""
    facts = {"name": "n", "since": moment - 0.1, "nodes": [0, 1, 2], "how": "giver"}
    return {"what": "has", "lease": lease, "moment": moment, "fence": fence, **facts, **more}


def believes(lease: str, moment: float) -> Line:
    """The line of a belief."""
    return {"what": "believes", "lease": lease, "moment": moment}


def line(what: str, moment: float, **more: Any) -> Line:
    """Any other line."""
    return {"what": what, "moment": moment, **more}


GAVE = [has("a", 1.0, 1), line("gave", 1.5, lease="a", name="n", until=3.5)]
TRIED = [*GAVE, line("tries", 1.7, handle="a"), line("denied", 2.0, handle="a", code="too_late")]


@pytest.mark.parametrize(
    ("history", "beliefs", "found"),
    [
        ([has("a", 1.0, 1), has("b", 2.0, 2)], [believes("a", 2.1)], "two believers"),
        ([has("a", 1.0, 2), has("b", 2.0, 2)], [], "the fence of b"),
        ([has("a", 1.0, 1), has("b", 2.0, 2), line("rests", 1.1, lease="a", until=2.5)], [], "min"),
        (TRIED, [], "lost"),
        ([*TRIED, line("killed", 1.2, node=4)], [], "lost"),
        ([*TRIED, line("revoking", 2.1, name="n", number=1)], [], "lost"),
        (
            [*GAVE, *(line("tries", 1.7, handle="a"), line("adopted", 2.0, handle="a")) * 2],
            [],
            "twi",
        ),
    ],
)
def test_the_judge_finds_what_must_not_be(history, beliefs, found):
    """Two believers, a fence that does not grow, a min_hold cut short, a handle lost or doubled."""
    (wrong,) = judge(history, beliefs, 5).wrong
    assert found in wrong


@pytest.mark.parametrize(
    ("history", "fate"),
    [
        ([*GAVE, line("tries", 1.7, handle="a"), line("adopted", 2.0, handle="a")], "adopted"),
        (GAVE, "that nobody tried"),
        ([*GAVE, line("tries", 1.7, handle="a")], "of adopters that were killed"),
        ([*TRIED, line("killed", 1.2, node=2)], "of nodes that restarted"),
        ([*TRIED, line("revoking", 1.2, name="n", number=1)], "revoked"),
        ([*GAVE, line("tries", 3.0, handle="a"), line("denied", 3.6, handle="a")], "expired"),
    ],
)
def test_the_judge_explains_a_handle(history, fate):
    """It was adopted, or a deadline, a revoke, a restart or a death explains that it was not."""
    outcome = judge(history, [], 5)
    assert outcome.wrong == []
    (told,) = [key for key, count in outcome.figures.items() if count and "handles " in key]
    assert told.startswith(f"handles {fate}")


@pytest.mark.slow
def test_handles_beside_heals_and_faults():
    """A short play: some handles are adopted, some heals are undone, and nothing is wrong."""
    outcome = perform(Play(seconds=300, handles=20, seed=7))
    assert outcome.wrong == []
    assert outcome.figures["handles"] >= 20
    assert outcome.figures["heals"] > 0


def test_the_judge_knows_that_a_revoked_rest_is_over():
    """Whoever takes the name after that, and the next one, cut nothing short."""
    history = [
        *(has("a", 1.0, 1), line("rests", 1.1, lease="a", name="n", until=5.0)),
        *(
            line("ended", 1.1, lease="a", name="n", code=""),
            line("revoking", 1.2, name="n", number=1),
        ),
        *(has("b", 2.0, 2), line("ended", 2.2, lease="b", name="n", code=""), has("c", 3.0, 3)),
    ]
    assert judge(history, [], 5).wrong == []
    unexplained = [each for each in history if each["what"] != "revoking"]
    (wrong,) = judge(unexplained, [], 5).wrong
    assert wrong.startswith("the min_hold of a")


@pytest.mark.slow
def test_undone_heals_that_wake_lose_handles():
    """The rig finds a heal whose undo wakes a waiter: that one opens the handle."""
    note_broken("_heal")
    outcome = perform(Play(seconds=300, faults=False, broken=True, seed=7))
    assert outcome.figures["handles lost"] > 0

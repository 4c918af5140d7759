"""Conversations of those who wait: where they look and stand, and what becomes of their turn."""

from __future__ import annotations

import gc
import math
import weakref
from itertools import product
from typing import Any

import pytest

from django_redlock.core import acquire
from django_redlock.core import wait as waiting
from django_redlock.core.commands import Look
from django_redlock.core.errors import LockTaken
from django_redlock.core.protocol import BlockOnNode, Command, JoinQueue, LeaveQueue, Wakeup
from tests.simulation.mutants import Patch, rules, with_edits

from .table import KEPT, LOST, NO, SPLIT, UNSENT, WORD, Found, Held, Seen, Table, to

WOKEN = Wakeup(WORD)


def carried(table: Table) -> list[str]:
    """The word that each attempt carries."""
    return [ask.opener for ask in table.grants]


def place(table: Table, name: str = "a") -> int:
    """The node at which those stand who wait for a name."""
    return table.policy.target([name]).queue_nodes[0]


def but(usual: object, others: dict[int, object], table: Table) -> list[object]:
    """The same word of all nodes but some, which count from the queue's node on."""
    found: list[object] = [usual] * table.size
    for after, word in others.items():
        found[(place(table) + after) % table.size] = word
    return found


# -- where ------------------------------------------------------------------------------------


def test_who_was_refused_stands_without_another_look() -> None:
    """The refusal of the queue's node has noted us and told how long; that costs no message.

    Who waits for one name stands at one node; different names burden different ones.
    """
    places = set()
    for name in "abcdefghijklmnopqrstuvwxyz":
        table = Table(5)
        table.talk(table.acquire(name, wait=5), Held(0.3), WOKEN, 5)
        assert table.commands == ["grant", "grant"]
        assert [block.node_index for block in table.blocks] == [place(table, name)]
        assert table.blocks[0].seconds == pytest.approx(0.301)
        assert table.grants[0].waits == 1500  # milliseconds for which that is noted
        places.add(table.blocks[0].node_index)
    assert places == set(range(5))


def test_looks_after_the_first_stand_go_to_all_nodes() -> None:
    """So that every node knows that somebody waits, whoever they stand with; the place is kept."""
    table = Table(5)
    told = [NO, Wakeup(), *[Seen(9.0), Wakeup()] * 3, Seen(0.0), 5]
    table.talk(table.acquire(wait=50), *told)
    looks = [ask for ask in table.asked if ask.command is Command.LOOK]
    assert [to(look) for look in looks] == [{0, 1, 2, 3, 4}] * 4
    assert {block.node_index for block in table.blocks} == {place(table)}
    assert len({id(block.waiter) for block in table.blocks}) == 1
    assert all(look.keys == ("redlock:waits", "redlock:lock:a") for look in looks)


@pytest.mark.parametrize(
    ("refused", "told", "stands"),
    [
        # Of the queue's node, and the one behind it: who was not reached has no queue for us,
        ({0: UNSENT}, [], [1]),
        # one that granted to us has no key of the holder: its look would say "free" for ever,
        ({0: 5}, [0], [1]),
        # one that was not heard may have the key or not, which a look tells,
        ({0: LOST}, [0, {0: LOST}], [1]),
        ({0: LOST}, [0, {0: Seen(0.0)}, {0: Seen(0.0)}], [1]),
        ({0: LOST, 1: LOST}, [0, *[{0: Seen(0.0), 1: Seen(0.0)}] * 3], [2]),
        # and one may be gone in the middle of waiting.
        ({}, [Wakeup(), {0: LOST}], [0, 1]),
    ],
    ids=["not reached", "granted", "silent", "free", "two free", "later"],
)
def test_a_queue_whose_node_has_nothing_moves_to_the_next(
    refused: dict[int, object], told: list[Any], stands: list[int]
) -> None:
    """Everybody goes to the same next one; a node that did not refuse us makes no busy loop."""
    table = Table(5)
    answers = [but(Seen(9.0), each, table) if isinstance(each, dict) else each for each in told]
    table.talk(table.acquire(wait=50), but(Held(9.0), refused, table), *answers, WOKEN, 5)
    assert len(table.grants) == 2
    assert [(block.node_index - place(table)) % 5 for block in table.blocks] == stands


@pytest.mark.parametrize("free", [2, 3])
def test_a_name_that_a_majority_has_not_is_tried(free: int) -> None:
    """A release that was lost at the queue's node costs a look, not the time the key has there."""
    table = Table(5)
    looked = but(Seen(9.0), {1 + i: Seen(0.0) for i in range(free)}, table)
    then: list[object] = [WOKEN, 5] if free == 2 else [5]
    table.talk(table.acquire(wait=50), NO, Wakeup(), looked, *then)
    assert carried(table) == ["", WORD if free == 2 else ""]


@pytest.mark.parametrize(
    ("heard", "split"),
    [
        ([5, 5, Held(owner="a"), Held(owner="b"), Held(owner="b")], True),
        ([5, Held(owner="a"), Held(owner="a"), Held(owner="b"), LOST], False),
        ([5, Held(owner="a"), Held(owner="b"), LOST, LOST], False),
        ([5, Held(owner="a"), Held(owner="b"), Held(owner="c"), LOST], True),
    ],
    ids=["none", "two and one", "one and two", "one and one"],
)
def test_who_may_have_a_majority_by_nodes_that_were_not_heard_is_waited_for(
    heard: list[object], *, split: bool
) -> None:
    """A waiter tries again soon only if surely nobody has the name; else it stands in the queue."""
    table = Table(5)
    told = but(NO, dict(enumerate(heard)), table)  # the queue's node grants it
    table.talk(table.acquire(wait=5), told, 0, *([] if split else [WOKEN]), 5)
    assert len(table.grants) == 2
    assert (len(table.waited), len(table.blocks)) == ((1, 0) if split else (0, 1))


def test_of_several_names_the_one_that_was_refused_is_waited_for() -> None:
    """Its queue, at its node; a node that refused us for another name tells nothing of it."""
    table = Table(5)
    first = place(table, "b")
    refused: list[object] = [Held(9.0, which=1)] * 5
    looked: list[object] = [Seen(9.0)] * 5
    refused[first], looked[first] = Held(9.0), Seen(0.0)
    table.talk(table.acquire("a", "b", wait=5), refused, looked, looked, WOKEN, 5)
    assert {block.waiter.queue for block in table.blocks} == {"redlock:queue:b"}
    look = table.asked[1]
    assert (look.target.names[look.which], to(look)) == ("b", set(range(5)))
    assert [block.node_index for block in table.blocks] == [(first + 1) % 5]


# -- wake-ups ---------------------------------------------------------------------------------


def test_the_word_goes_into_the_next_attempt_only() -> None:
    """With a nonce of its own; if that fails because somebody is first, the word is spent."""
    table = Table(3)
    table.talk(table.acquire(wait=5), NO, WOKEN, NO, Wakeup(), Seen(0.0), 5)
    assert carried(table) == ["", WORD, ""]
    assert len({ask.nonce for ask in table.grants} | {WORD}) == 4


@pytest.mark.parametrize("wakeup", ["x", "D" * 32, "d" * 31, "d" * 33, "next", f"{WORD}\n"])
def test_what_is_no_word_is_not_carried(wakeup: str) -> None:
    """Whoever can write to the queue cannot make us take what is another's: it would match."""
    table = Table(3)
    table.talk(table.acquire(wait=5), NO, Wakeup(wakeup), 5)
    assert carried(table) == ["", ""]
    table = Table(3)
    with pytest.raises(LockTaken):
        table.talk(table.acquire(), KEPT, Found(wakeup))
    assert len(table.grants) == 1


def test_a_word_that_is_not_used_is_passed_on() -> None:
    """Refused with a word by nobody in particular, or not heard: the next in line is woken."""
    for answer in (SPLIT, [5, KEPT, KEPT], KEPT, LOST, [LOST, NO, UNSENT]):
        table = Table(3)
        granted = [WOKEN, 5] if answer in ([5, KEPT, KEPT], KEPT) else [5]
        table.talk(table.acquire(wait=5), NO, WOKEN, answer, 0, *granted)
        release = table.asked[2]
        assert (release.command, release.flags, release.reserve) == (Command.RELEASE, "1", 0)
        assert release.nonce == table.asked[1].nonce  # as a word, it opens what we may have left


@pytest.mark.parametrize(
    ("waited_for", "refused_for", "woken"),
    [(0, 1, "100"), (1, 0, "010"), (2, 1, "101"), (1, 1, "100"), (0, 0, None)],
)
def test_of_several_names_only_the_owned_one_is_left_to_its_owner(
    waited_for: int, refused_for: int, woken: str | None
) -> None:
    """Who carries the word of one name and is refused for another wakes the next for the first.

    And for those before the refused one, which were free. Nobody else will.
    """
    table = Table(3)
    steps = table.acquire("a", "b", "c", wait=5)
    refusals = [Held(9.0, which=which) for which in (waited_for, refused_for)]
    then = table.until(steps, refusals[0], True, WOKEN, refusals[1])
    if woken is not None:
        assert (then.command, to(then)) == (Command.RELEASE, {0, 1, 2})
        assert (then.reserve, then.flags, then.target.names) == (0, woken, ("a", "b", "c"))
        then = steps.send(table.votes(then, NO))
    assert isinstance(then, JoinQueue)


@pytest.mark.parametrize("granted", [True, False])
def test_a_word_that_came_when_we_left_is_carried(granted: bool) -> None:
    """The node pushed while we gave up: the last attempt goes with the word, or passes it on."""
    table = Table(3, wakeup=WORD)
    steps = table.acquire(wait=0.5)
    if granted:
        table.talk(steps, NO, Wakeup(), 5)
    else:
        with pytest.raises(LockTaken):
            table.talk(steps, NO, Wakeup(), KEPT)
        assert (table.asked[-1].command, table.asked[-1].flags) == (Command.RELEASE, "1")
    assert carried(table) == ["", WORD]


# -- time -------------------------------------------------------------------------------------


def test_who_is_not_the_first_of_the_process_asks_nobody() -> None:
    """All the time in the local line costs no message; at its end comes the last attempt."""
    table = Table(3, first=False)
    with pytest.raises(LockTaken):
        table.talk(table.acquire(wait=7), NO, NO)
    assert (table.commands, table.blocks) == (["grant", "grant"], [])
    _, line, leaves, _ = table.effects
    assert (line.seconds, type(leaves)) == (7, LeaveQueue)


@pytest.mark.parametrize("seconds", [0.9, 1.0])
def test_who_stood_in_the_local_line_for_long_looks_first(seconds: float) -> None:
    """A refusal of a second ago is no look: the note it made may be old news.

    It tries at once if a look finds the name gone at the queue's node, which has refused it.
    """
    table = Table(3, now=0.0)
    steps = table.acquire(wait=7)
    assert isinstance(table.until(steps, NO), JoinQueue)
    table.now += seconds
    then = steps.send(True)
    assert isinstance(then, BlockOnNode if seconds == 0.9 else Look)
    if isinstance(then, Look):
        then = steps.send(table.votes(then, but(Seen(9.0), {0: Seen(0.0)}, table)))
        assert isinstance(then, LeaveQueue)
    steps.close()


@pytest.mark.parametrize("left", [9.0, None])
def test_a_key_without_an_expiry_is_looked_at_now_and_then(left: float | None) -> None:
    """An operator's or a foreign client's key that never expires ends when it is deleted.

    ``wait=inf``: no last attempt, two looks a second at most, a node forgets us after 10 s.
    """
    table = Table(3)
    told = [Held(left), *[Wakeup(), Seen(left)] * 300, Wakeup(), Seen(0.0), 5]
    table.talk(table.acquire(wait=math.inf), *told)
    assert len(table.grants) == 2
    assert {(block.seconds, block.longest) for block in table.blocks} == {(0.9, 10.0)}
    assert table.effects[1].seconds == math.inf


def test_a_name_found_free_is_tried_at_once_by_the_first_and_soon_by_all() -> None:
    """After standing everybody may see it at the same moment: 10 ms at most part them.

    A nap does not outlast the holder, nor the waiter for whom the name is reserved.
    """
    for refused in (Held(0.05), Held(0.05, owner="")):
        table = Table(3)
        table.talk(table.acquire(wait=5), refused, Wakeup(), Seen(0.0), 5)
        assert table.blocks[0].seconds == pytest.approx(0.051)
        assert table.waited == [0.01]
    table = Table(3)
    table.talk(table.acquire(wait=5), [LOST, NO, NO], 0, Seen(0.0), 5)
    assert table.waited == []


def test_looks_that_nobody_answers_end_in_an_attempt() -> None:
    """The attempt says what is the matter; pauses keep it from being a busy loop."""
    table = Table(3)
    table.talk(table.acquire(wait=5), NO, Wakeup(), LOST, 5)
    assert table.commands == ["grant", "look", "grant"]
    assert table.waited == [0.1]


def test_stands_that_break_do_not_spin() -> None:
    """A node that refuses BLPOP, or a connection: looks become rare, as with any waiting."""
    table, broken = Table(3), Wakeup(broken=True)
    told = [NO, broken, *[Seen(9.0), broken] * 99, Seen(9.0), WOKEN, 5]
    table.talk(table.acquire(wait=math.inf), *told)
    assert len(table.grants) == 2
    assert table.now - 100 > 45
    assert table.waited[:3] == pytest.approx([0.02, 0.04, 0.08])


def test_notes_outlast_the_time_between_two_looks() -> None:
    """Else a release between them would find that nobody waits, and wake nobody."""
    assert waiting.FRESH + waiting.LOOK_EVERY[1] < waiting.NEWS + waiting.LOOK_EVERY[0]
    assert waiting.LOOK_EVERY[1] < waiting.NEWS
    assert waiting.FRESH < 1.0  # seconds that a word lies in the queue at least


# -- not waiting ------------------------------------------------------------------------------


def test_who_does_not_wait_takes_what_is_kept_for_nobody() -> None:
    """A majority keeps the name: the word that nobody took is taken, from the queue's node."""
    table = Table(5)
    assert table.talk(table.acquire(), [KEPT, KEPT, KEPT, NO, NO], Found(WORD), 5).fence == 5
    assert table.commands == ["grant", "claim", "grant"]
    claim = table.asked[1]
    assert (to(claim), claim.keys) == ({place(table)}, ("redlock:queue:a",))
    assert carried(table) == ["", WORD]


@pytest.mark.parametrize(
    ("answers", "commands"),
    [
        # No word in the queue: whoever took it is on its way.
        ([KEPT, Found("")], ["grant", "claim"]),
        # A claimed word is tried once, and is passed on unless somebody quicker has it all.
        ([KEPT, Found(WORD), KEPT, 0], ["grant", "claim", "grant", "release"]),
        # A holder is a holder, whatever two of five nodes remember.
        ([[KEPT, KEPT, NO, NO, NO]], ["grant"]),
    ],
    ids=["taken", "once", "minority"],
)
def test_who_does_not_wait_leaves_what_is_kept_for_somebody(
    answers: list[object], commands: list[str]
) -> None:
    """What is not claimed, or in vain, is taken."""
    table = Table(5)
    with pytest.raises(LockTaken):
        table.talk(table.acquire(), *answers)
    assert table.commands == commands
    assert commands[-1] != "release" or table.asked[-1].flags == "1"


# -- interruption -----------------------------------------------------------------------------

# What a waiter is answered until it is in line, standing, looking again, or sent away by its node.
POINTS: dict[str, list[object]] = {
    "in line": [NO],
    "standing": [NO, True],
    "looking": [NO, True, Wakeup()],
    "broken": [NO, True, Wakeup(broken=True)],
}


@pytest.mark.parametrize("point", POINTS)
def test_who_is_interrupted_leaves_the_line_and_passes_the_turn_on(point: str) -> None:
    """At every step: out of the line first; a word that had come by then wakes the next.

    That deletes nothing: it has a nonce of its own, and no node has a key of it. GeneratorExit
    passes at once: ``close()`` would fail if anything were yielded.
    """
    for wakeup, error in product(("", "garbage", WORD), (RuntimeError, KeyboardInterrupt)):
        table, raised = Table(3), error("now")
        steps = table.acquire(wait=5)
        table.until(steps, *POINTS[point])
        assert isinstance(steps.throw(raised), LeaveQueue)
        answer: Any = wakeup
        if wakeup == WORD:
            ask = steps.send(wakeup)
            assert (ask.command, to(ask)) == (Command.RELEASE, {0, 1, 2})
            assert (ask.nonce != WORD, ask.touched) == (True, frozenset())
            assert (ask.reserve, ask.flags) == (0, "1")
            answer = table.votes(ask, 0)
        with pytest.raises(error) as caught:
            steps.send(answer)
        assert caught.value is raised
    steps = table.acquire(wait=5)
    table.until(steps, *POINTS[point])
    steps.close()
    assert steps.gi_frame is None


@pytest.mark.parametrize("undoing", [False, True])
def test_who_is_interrupted_with_the_word_in_hand_wakes_the_next(undoing: bool) -> None:
    """Between being woken and being granted, or while it undoes: on all nodes.

    Also if nothing was granted: whoever had the word owes the next a turn.
    """
    table = Table(3)
    steps = table.acquire(wait=5)
    then = table.until(steps, NO, True, WOKEN, *([KEPT] if undoing else []))
    assert then.command is (Command.RELEASE if undoing else Command.GRANT)
    release = steps.throw(KeyboardInterrupt())
    assert (release.command, release.nonce) == (Command.RELEASE, then.nonce)
    assert (to(release), release.reserve, release.flags) == ({0, 1, 2}, 0, "1")


def test_a_dropped_waiter_drops_its_place() -> None:
    """The waiter is held by the generator alone, so that forgetting one means leaving."""
    table = Table(3)
    steps = table.acquire(wait=5)
    waiter = weakref.ref(table.until(steps, NO).waiter)
    assert waiter() is not None
    steps.close()
    del steps
    gc.collect()
    assert waiter() is None


@pytest.mark.parametrize(
    ("edit", "proof"),
    [
        (
            Patch(
                waiting,
                "wait_in_line",
                rules.undoing(lambda undo, thrown, _: None if thrown else undo),
            ),
            lambda: test_who_is_interrupted_leaves_the_line_and_passes_the_turn_on("standing"),
        ),
        (
            Patch(waiting, "_wakeup_in", lambda _: lambda found: found),
            lambda: test_what_is_no_word_is_not_carried("next"),
        ),
        (
            Patch(
                acquire,
                "attempt",
                rules.undoing(lambda undo, thrown, _: undo if thrown or undo.touched else None),
            ),
            test_a_word_that_is_not_used_is_passed_on,
        ),
    ],
    ids=["keeps-its-turn", "any-word", "spends-the-word"],
)
def test_a_broken_rule_is_noticed(edit: Patch, proof: Any) -> None:
    """Who keeps a wake-up leaves all others waiting; who takes any text may take what is held."""
    with with_edits(edit), pytest.raises((AssertionError, RuntimeError)):
        proof()

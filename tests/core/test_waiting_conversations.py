"""Conversations of those who wait: where they look and stand, and what becomes of their turn."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from django_redlock.backend import Backend
from django_redlock.core import acquire, hold
from django_redlock.core import policy as policies
from django_redlock.core import wait as waiting
from django_redlock.core.commands import Acquire
from django_redlock.core.errors import LockTaken
from django_redlock.core.policy import HEAD_START, HandOver
from django_redlock.core.protocol import (
    BlockOnNode,
    Command,
    JoinQueue,
    LeaveQueue,
    Request,
    Sleep,
    Wakeup,
)
from django_redlock.leases.lease import Lease
from django_redlock.nodes.memory import MemoryNodes
from tests.simulation.mutants import Patch, rules, with_edits

from .test_conversations import KEPT, LOST, NO, SPLIT, UNSENT, Found, Held, Seen, Table, to, vote

WORD = "d" * 32
IN_VAIN = [Seen(9.0), Wakeup()]
WOKEN = [Seen(9.0), Wakeup(WORD)]


def grants(table: Table) -> list[Acquire]:
    """The attempts."""
    return [ask for ask in table.asked if ask.command is Command.GRANT]


def carried(ask: Acquire) -> str:
    """The word that an attempt carries."""
    return ask.opener


def place(table: Table, name: str = "a") -> int:
    """The node at which those stand who wait for a name."""
    return table.policy.target([name]).queue_nodes[0]


# -- where --------------------------------------------------------------------------------------


def test_who_was_refused_stands_without_another_look() -> None:
    """The refusal of the queue's node has noted us and told how long; that costs no message."""
    table = Table(5)
    table.talk(table.acquire(wait=5), Held(0.3), Wakeup(WORD), 5)
    assert table.commands == ["grant", "grant"]
    (block,) = table.blocks
    assert block.node_index == place(table)
    assert block.seconds == pytest.approx(0.301)
    assert grants(table)[0].waits == 1500  # milliseconds for which that is noted


def test_names_spread_over_the_nodes() -> None:
    """Who waits for one name stands at one node; different names burden different ones."""
    places = {}
    for name in "abcdefghijklmnopqrstuvwxyz":
        table = Table(5)
        table.talk(table.acquire(name, wait=5), NO, Wakeup(WORD), 5)
        places[name] = table.blocks[0].node_index
        assert places[name] == place(table, name)
    assert set(places.values()) == set(range(5))


def test_looks_after_the_first_stand_go_to_all_nodes() -> None:
    """So that every node knows that somebody waits, whoever they stand with; the place is kept."""
    table = Table(5)
    table.talk(table.acquire(wait=50), NO, Wakeup(), *IN_VAIN * 3, Seen(0.0), 5)
    looks = [ask for ask in table.asked if ask.command is Command.LOOK]
    assert len(looks) == 4
    assert [to(look) for look in looks] == [{0, 1, 2, 3, 4}] * 4
    assert {block.node_index for block in table.blocks} == {place(table)}
    assert {id(block.waiter) for block in table.blocks} == {id(table.blocks[0].waiter)}
    assert all(look.keys == ("redlock:waits", "redlock:lock:a") for look in looks)


@pytest.mark.parametrize("gone", [LOST, UNSENT])
def test_a_queue_whose_node_is_gone_moves_to_the_next(gone: str) -> None:
    """At the refusal already, or in the middle of waiting: everybody goes to the same next one."""
    table = Table(5)
    first, second = place(table), (place(table) + 1) % 5
    ballot: list[object] = [Held(9.0)] * 5
    ballot[first] = gone
    table.talk(table.acquire(wait=50), ballot, *_moved(first, gone), 5)
    assert {block.node_index for block in table.blocks} == {second}

    table = Table(5)
    looked: list[object] = [Seen(9.0)] * 5
    looked[first] = LOST
    table.talk(table.acquire(wait=50), Held(9.0), Wakeup(), looked, Wakeup(WORD), 5)
    assert [block.node_index for block in table.blocks] == [first, second]


def _moved(first: int, gone: str) -> list[object]:
    """What is asked when the first node was gone at the refusal."""
    looked: list[object] = [Seen(9.0)] * 5
    looked[first] = LOST
    return [0, looked, Wakeup(WORD)] if gone == LOST else [Wakeup(WORD)]


def test_nobody_stands_where_the_holder_has_nothing() -> None:
    """A node that granted to us has no key of the holder: its look would say "free" for ever."""
    table = Table(5)
    first = place(table)
    ballot: list[object] = [Held(9.0)] * 5
    ballot[first] = 5
    table.talk(table.acquire(wait=5), ballot, 0, Wakeup(WORD), 5)
    assert [block.node_index for block in table.blocks] == [(first + 1) % 5]


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
    words = [(heard * 2)[5 - place(table) + i] for i in range(5)]  # the queue's node grants it
    table.talk(table.acquire(wait=5), words, 0, *([] if split else [Wakeup(WORD)]), 5)
    assert len(grants(table)) == 2
    assert (len(table.waited), len(table.blocks)) == ((1, 0) if split else (0, 1))


@pytest.mark.parametrize("silent", [1, 2])
def test_a_node_that_did_not_refuse_us_is_no_reason_to_try_again(silent: int) -> None:
    """A look at a node whose vote was lost and that has no key tells nothing: never a busy loop."""
    table = Table(5)
    first = place(table)
    ballot: list[object] = [Held(9.0)] * 5
    looked: list[object] = [Seen(9.0)] * 5
    for i in range(silent):
        ballot[(first + i) % 5], looked[(first + i) % 5] = LOST, Seen(0.0)
    table.talk(table.acquire(wait=5), ballot, 0, *[looked] * (silent + 1), Wakeup(WORD), 5)
    assert len(grants(table)) == 2
    assert [block.node_index for block in table.blocks] == [(first + silent) % 5]


@pytest.mark.parametrize("free", [2, 3])
def test_a_name_that_a_majority_has_not_is_tried(free: int) -> None:
    """A release that was lost at the queue's node costs a look, not the time the key has there."""
    table = Table(5)
    looked: list[object] = [Seen(9.0)] * 5  # at the queue's node, too
    for i in range(free):
        looked[(place(table) + 1 + i) % 5] = Seen(0.0)
    then: list[object] = [Wakeup(WORD), 5] if free == 2 else [5]
    table.talk(table.acquire(wait=50), NO, Wakeup(), looked, *then)
    assert [carried(ask) for ask in grants(table)] == ["", WORD if free == 2 else ""]


def test_of_several_names_the_one_that_was_refused_is_waited_for() -> None:
    """Its queue, at its node; a node that refused us for another name tells nothing of it."""
    table = Table(5)
    first = place(table, "b")
    ballot = [vote(i, Held(9.0))._replace(which=1) for i in range(5)]
    ballot[first] = ballot[first]._replace(which=0)
    looked: list[object] = [Seen(9.0)] * 5
    looked[first] = Seen(0.0)
    steps = table.acquire("a", "b", wait=5)
    ask = steps.send(None)
    line = steps.send(ballot)
    assert isinstance(line, JoinQueue)
    assert line.waiter.queue == "redlock:queue:b"
    look = steps.send(True)
    assert (look.target.names[look.which], to(look)) == ("b", set(range(5)))
    for _ in range(2):
        look = steps.send([vote(i, wakeup) for i, wakeup in enumerate(looked)])
        if isinstance(look, BlockOnNode):
            break
    assert isinstance(look, BlockOnNode)
    assert look.node_index == (first + 1) % 5
    assert ask.keys[3:] == ("redlock:lock:a", "redlock:lock:b")


# -- words --------------------------------------------------------------------------------------


def test_the_word_goes_into_the_next_attempt_only() -> None:
    """With a nonce of its own; if that fails because somebody is first, the word is spent."""
    table = Table(3)
    table.talk(table.acquire(wait=5), NO, Wakeup(WORD), NO, Wakeup(), Seen(0.0), 5)
    assert [carried(ask) for ask in grants(table)] == ["", WORD, ""]
    assert len({ask.nonce for ask in grants(table)} | {WORD}) == 4


@pytest.mark.parametrize("wakeup", ["x", "D" * 32, "d" * 31, "d" * 33, "next", "rest", f"{WORD}\n"])
def test_what_is_no_word_is_not_carried(wakeup: str) -> None:
    """Whoever can write to the queue cannot make us take what is another's: it would match."""
    table = Table(3)
    table.talk(table.acquire(wait=5), NO, Wakeup(wakeup), 5)
    assert [carried(ask) for ask in grants(table)] == ["", ""]
    table = Table(3)
    with pytest.raises(LockTaken):
        table.talk(table.acquire(), KEPT, Found(wakeup))
    assert len(grants(table)) == 1


def test_a_word_that_is_not_used_is_passed_on() -> None:
    """Refused with a word by nobody in particular, or not heard: the next in line is woken."""
    for answer in (SPLIT, [5, KEPT, KEPT], KEPT, LOST, [LOST, NO, UNSENT]):
        table = Table(3)
        table.talk(table.acquire(wait=5), NO, Wakeup(WORD), answer, 0, *_until_granted(answer))
        release = table.asked[2]
        assert (release.command, release.flags) == (Command.RELEASE, "1")
        assert release.nonce == table.asked[1].nonce  # as a word, it opens what we may have left


def _until_granted(answer: object) -> list[object]:
    """What follows, up to the grant."""
    stands = answer in ([5, KEPT, KEPT], KEPT)
    return [Wakeup(WORD), 5] if stands else [5]


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
    refusals = [
        [vote(i, Held(9.0))._replace(which=which) for i in range(3)]
        for which in (waited_for, refused_for)
    ]
    steps.send(None)
    steps.send(refusals[0])
    steps.send(True)
    ask = steps.send(Wakeup(WORD))
    assert (ask.command, ask.opener) == (Command.GRANT, WORD)
    then = steps.send(refusals[1])
    if woken is None:
        assert isinstance(then, JoinQueue)
    else:
        assert (then.command, then.nonce, to(then)) == (Command.RELEASE, ask.nonce, {0, 1, 2})
        assert (then.reserve, then.flags, then.target) == (0, woken, ask.target)
        assert isinstance(steps.send([vote(i, NO) for i in range(3)]), JoinQueue)


def test_a_word_that_came_when_we_left_is_carried() -> None:
    """The node pushed while we gave up: the last attempt goes with the word."""
    table = Table(3, wakeup=WORD)
    table.talk(table.acquire(wait=0.5), NO, Wakeup(), 5)
    assert [carried(ask) for ask in grants(table)] == ["", WORD]
    assert any(isinstance(effect, LeaveQueue) for effect in table.effects)


def test_a_late_word_that_is_of_no_use_is_passed_on() -> None:
    """Who gives up with a word wakes the next."""
    table = Table(3, wakeup=WORD)
    with pytest.raises(LockTaken):
        table.talk(table.acquire(wait=0.5), NO, Wakeup(), KEPT)
    assert table.commands == ["grant", "grant", "release"]
    assert (table.asked[-1].reserve, table.asked[-1].flags) == (0, "1")


# -- time ---------------------------------------------------------------------------------------


def test_who_is_not_the_first_of_the_process_asks_nobody() -> None:
    """All the time in the local line costs no message; at its end comes the last attempt."""
    table = Table(3, first=False)
    with pytest.raises(LockTaken):
        table.talk(table.acquire(wait=7), NO, NO)
    assert (table.commands, table.blocks) == (["grant", "grant"], [])
    (line,) = [effect for effect in table.effects if isinstance(effect, JoinQueue)]
    assert line.seconds == 7
    assert isinstance(table.effects[2], LeaveQueue)


def test_who_stood_in_the_local_line_for_long_looks_first() -> None:
    """A refusal of a second ago is no look: the note it made may be old news."""
    for seconds, commands in ((0.9, ["grant", "grant"]), (1.0, ["grant", "look", "grant"])):
        table = Table(3, now=0.0)
        steps = table.acquire(wait=7)
        steps.send(None)
        assert isinstance(steps.send([vote(i, NO) for i in range(3)]), JoinQueue)
        table.now += seconds
        effect = steps.send(True)
        assert isinstance(effect, BlockOnNode) is (len(commands) == 2)
        steps.close()


def test_an_endless_wait_stands_for_ever() -> None:
    """``wait=inf``: no last attempt, two looks a second at most, a node forgets us after 10 s."""
    table = Table(3)
    table.talk(table.acquire(wait=math.inf), NO, Wakeup(), *IN_VAIN * 1000, *WOKEN, 5)
    assert len(grants(table)) == 2
    assert table.now - 100 == pytest.approx(0.9 * 1001)
    assert {block.longest for block in table.blocks} == {10.0}
    assert next(e for e in table.effects if isinstance(e, JoinQueue)).seconds == math.inf


def test_a_key_without_an_expiry_is_looked_at_now_and_then() -> None:
    """An operator's or a foreign client's key that never expires ends when it is deleted."""
    table = Table(3)
    table.talk(
        table.acquire(wait=9), Held(None), *[Wakeup(), Seen(None)] * 3, Wakeup(), Seen(0.0), 5
    )
    assert {block.seconds for block in table.blocks} == {0.9}


def test_a_name_found_free_is_tried_at_once_by_the_first_and_soon_by_all() -> None:
    """After standing everybody may see it at the same moment: 10 ms at most part them."""
    table = Table(3)
    table.talk(table.acquire(wait=5), NO, Wakeup(), Seen(0.0), 5)
    assert table.waited == [0.01]
    table = Table(3)
    table.talk(table.acquire(wait=5), [LOST, NO, NO], 0, Seen(0.0), 5)
    assert table.waited == []


def test_a_reservation_is_waited_for_like_a_holder() -> None:
    """Who comes while the name is kept for somebody gets it when that one does not come."""
    table = Table(3)
    table.talk(table.acquire(wait=5), Held(0.05, owner=""), Wakeup(), Seen(0.0), 5)
    assert table.blocks[0].seconds == pytest.approx(0.051)


def test_looks_that_nobody_answers_end_in_an_attempt() -> None:
    """The attempt says what is the matter; pauses keep it from being a busy loop."""
    table = Table(3)
    table.talk(table.acquire(wait=5), NO, Wakeup(), LOST, 5)
    assert table.commands == ["grant", "look", "grant"]
    assert table.waited == [0.1]


def test_stands_that_break_do_not_spin() -> None:
    """A node that refuses BLPOP, or a connection: looks become rare, as with any waiting."""
    table = Table(3)
    broken = Wakeup(broken=True)
    table.talk(table.acquire(wait=math.inf), NO, broken, *[Seen(9.0), broken] * 99, *WOKEN, 5)
    assert len(grants(table)) == 2
    assert table.now - 100 > 45
    assert table.waited[:3] == pytest.approx([0.02, 0.04, 0.08])


# -- letting go ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("had", "said", "lost"),
    [
        ([NO, NO, 5, 5, 5], [(NO, 1)] * 5, False),  # woken where it never had the key
        ([LOST, 5, 5, 5, NO], [(NO, 1)] * 5, False),
        ([5] * 5, [(5, 1), *[(NO, 1)] * 4], False),  # woken by the key that it freed
        ([5] * 5, [*[(NO, 1)] * 4, (LOST, 0)], False),  # perhaps woken where it was not heard
        ([5] * 5, [*[(NO, 0)] * 4, (LOST, 0)], True),  # nobody was there to be woken
        ([5] * 5, [(NO, 1)] * 5, True),  # gone even where those who wait are woken
        ([NO, NO, 5, 5, 5], [(NO, 0)] * 5, True),  # nobody was woken
    ],
)
def test_a_release_that_a_woken_waiter_overtook_is_no_loss(
    had: list[object], said: list[tuple[object, int]], lost: bool
) -> None:
    """Whoever we woke may have taken our keys before our release came to them."""
    table = Table(5)
    held = table.grant()._replace(votes=[vote(i, wakeup) for i, wakeup in enumerate(had)])
    lease = Lease(Backend("x", MemoryNodes([]), table.policy), held)
    steps = lease._releasing()
    ask = steps.send(None)
    assert isinstance(ask, Request)
    assert ask.command is Command.RELEASE
    with pytest.raises(StopIteration):
        steps.send([vote(i, wakeup)._replace(woken=n) for i, (wakeup, n) in enumerate(said)])
    assert lease.lost is lost


# -- not waiting --------------------------------------------------------------------------------


def test_who_does_not_wait_takes_what_is_kept_for_nobody() -> None:
    """A majority keeps the name: the word that nobody took is taken, from the queue's node."""
    table = Table(5)
    grant = table.talk(table.acquire(), [KEPT, KEPT, KEPT, NO, NO], Found(WORD), 5)
    assert grant.fence == 5
    assert table.commands == ["grant", "claim", "grant"]
    claim = table.asked[1]
    assert (to(claim), claim.keys) == ({place(table)}, ("redlock:queue:a",))
    assert carried(grants(table)[-1]) == WORD


def test_who_does_not_wait_leaves_what_is_kept_for_somebody() -> None:
    """No word in the queue: whoever took it is on its way."""
    table = Table(3)
    with pytest.raises(LockTaken):
        table.talk(table.acquire(), KEPT, Found(""))
    assert table.commands == ["grant", "claim"]


def test_a_claimed_word_is_tried_once() -> None:
    """If somebody is quicker, that is that; the word is passed on unless that one has it all."""
    table = Table(3)
    with pytest.raises(LockTaken):
        table.talk(table.acquire(), KEPT, Found(WORD), KEPT, 0)
    assert table.commands == ["grant", "claim", "grant", "release"]
    assert (table.asked[-1].reserve, table.asked[-1].flags) == (0, "1")


def test_what_a_minority_keeps_is_not_claimed() -> None:
    """A holder is a holder, whatever two of five nodes remember."""
    table = Table(5)
    with pytest.raises(LockTaken):
        table.talk(table.acquire(), [KEPT, KEPT, NO, NO, NO])
    assert table.commands == ["grant"]


# -- interruption -------------------------------------------------------------------------------


def in_line(table: Table) -> Any:
    """A waiter that is not the first of its process."""
    steps = table.acquire(wait=5)
    steps.send(None)
    assert isinstance(steps.send([vote(i, NO) for i in range(3)]), JoinQueue)
    return steps


def standing(table: Table) -> Any:
    """A waiter that is blocked."""
    steps = in_line(table)
    assert isinstance(steps.send(True), BlockOnNode)
    return steps


def looking(table: Table) -> Any:
    """A waiter that looks again."""
    steps = standing(table)
    assert steps.send(Wakeup()).command is Command.LOOK
    return steps


def broken(table: Table) -> Any:
    """A waiter whose node sent it away."""
    steps = standing(table)
    assert isinstance(steps.send(Wakeup(broken=True)), Sleep)
    return steps


def leaving(table: Table) -> Any:
    """A waiter whose time is up."""
    steps = standing(table)
    table.now += 9
    assert isinstance(steps.send(Wakeup()), LeaveQueue)
    return steps


WAITERS = [in_line, standing, looking, broken, leaving]


@pytest.mark.parametrize("reach", WAITERS)
@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError, SystemExit])
def test_who_is_interrupted_leaves_the_line_and_passes_the_turn_on(
    reach: Callable[[Table], Any], error: type[BaseException]
) -> None:
    """At every step: out of the line first; a word that had come by then wakes the next.

    That deletes nothing: it has a nonce of its own, and no node has a key of it.
    """
    for wakeup in ("", "garbage", WORD):
        steps, raised = reach(Table(3)), error("now")
        assert isinstance(steps.throw(raised), LeaveQueue)
        answer: Any = wakeup
        if wakeup == WORD:
            ask = steps.send(wakeup)
            assert (ask.command, to(ask)) == (Command.RELEASE, {0, 1, 2})
            assert (ask.nonce != WORD, ask.touched) == (True, frozenset())
            assert (ask.reserve, ask.flags) == (0, "1")
            answer = [vote(i, 0) for i in range(3)]
        with pytest.raises(error) as caught:
            steps.send(answer)
        assert caught.value is raised


def test_who_is_interrupted_with_the_word_in_hand_wakes_the_next() -> None:
    """Between being woken and being granted: what undoes the attempt wakes, on all nodes."""
    steps = standing(Table(3))
    grant = steps.send(Wakeup(WORD))
    assert grant.command is Command.GRANT
    release = steps.throw(KeyboardInterrupt())
    assert (release.command, release.nonce, to(release)) == (
        Command.RELEASE,
        grant.nonce,
        {0, 1, 2},
    )
    assert (release.reserve, release.flags) == (0, "1")


def test_who_is_interrupted_while_undoing_with_the_word_wakes_the_next() -> None:
    """Also if nothing was granted: whoever had the word owes the next a turn."""
    steps = standing(Table(3))
    steps.send(Wakeup(WORD))
    first = steps.send([vote(i, KEPT) for i in range(3)])
    assert (first.command, to(first)) == (Command.RELEASE, {0, 1, 2})
    again = steps.throw(KeyboardInterrupt())
    assert (again.command, to(again)) == (Command.RELEASE, {0, 1, 2})
    assert (again.reserve, again.flags) == (0, "1")


@pytest.mark.parametrize("reach", WAITERS)
def test_a_waiter_that_is_dropped_asks_nothing(reach: Callable[[Table], Any]) -> None:
    """GeneratorExit passes at once: ``close()`` would fail if anything were yielded."""
    steps = reach(Table(3))
    steps.close()
    assert steps.gi_frame is None


def test_a_dropped_waiter_drops_its_place() -> None:
    """The waiter is held by the generator alone, so that forgetting one means leaving."""
    steps = in_line(Table(3))
    waiter = weakref.ref(steps.gi_yieldfrom.gi_frame.f_locals["waiter"])
    assert waiter() is not None
    steps.close()
    del steps
    gc.collect()
    assert waiter() is None


def test_notes_outlast_the_time_between_two_looks() -> None:
    """Else a release between them would find that nobody waits, and wake nobody."""
    assert waiting.FRESH + waiting.LOOK_EVERY[1] < waiting.NEWS + waiting.LOOK_EVERY[0]
    assert waiting.LOOK_EVERY[1] < waiting.NEWS
    assert waiting.FRESH < 1.0  # seconds that a word lies in the queue at least


# -- after a hand-over --------------------------------------------------------------------------


def handed_over(table: Table, woken: object = 1, *, held: float = 1.0) -> None:
    """Release a name, and hear from each node for how many names it has woken a waiter."""
    grant = table.grant()
    table.now += held
    table.talk(hold.release(table.policy, grant), woken)


def test_who_has_woken_a_waiter_leaves_it_a_head_start() -> None:
    """Its next attempt for this name comes a moment later, and costs the waiter no message."""
    table = Table(3)
    handed_over(table)
    table.talk(table.acquire(wait=5), 5)
    assert table.commands == ["release", "grant"]
    assert table.waited == [pytest.approx(HEAD_START)]
    table.now += HEAD_START
    table.talk(table.acquire(wait=5), 5)
    assert len(table.waited) == 1


def test_a_head_start_is_part_of_the_wait() -> None:
    """Nobody waits for longer than was asked for."""
    table = Table(3)
    handed_over(table)
    table.talk(table.acquire(wait=HEAD_START / 2), 5)
    assert table.waited == [pytest.approx(HEAD_START / 2)]


def test_a_head_start_is_short_after_a_short_lease() -> None:
    """The name may be idle meanwhile; that is a small part of the time it was held."""
    for held, waited in ((0.004, [pytest.approx(0.0004)]), (0.001, [])):
        table = Table(3)
        handed_over(table, held=held)
        table.talk(table.acquire(wait=5), 5)
        assert table.waited == waited


@pytest.mark.parametrize(
    ("woken", "name", "wait"),
    [(0, "a", 5.0), (NO, "a", 5.0), (LOST, "a", 5.0), (1, "b", 5.0), (1, "a", 0.0)],
    ids=["nobody-waits", "not-ours", "not-heard", "another-name", "does-not-wait"],
)
def test_others_have_no_head_start(woken: object, name: str, wait: float) -> None:
    """A caller does not pause if it has woken no waiter, wants another name, or does not wait."""
    table = Table(3)
    handed_over(table, woken)
    table.talk(table.acquire(name, wait=wait), 5)
    assert table.waited == []


# -- broken variants ----------------------------------------------------------------------------


def believing_any_node(real: Any) -> Any:
    """Take it for news that a node which did not refuse has no key."""
    return lambda line, told, node, **_: real(line, told, node, blocked=True)


def believing_no_break(real: Any) -> Any:
    """Block again at once where the connection broke."""

    def mended(_: object, value: Any) -> Any:
        return value._replace(broken=False) if isinstance(value, Wakeup) else value

    return lambda *args, **facts: rules.driven(real(*args, **facts), votes=mended)


def claiming_again(real: Any) -> Any:
    """Claim once more where somebody was quicker."""

    def acquire_again(*args: Any, **facts: Any) -> Any:
        try:
            return (yield from real(*args, **facts))
        except LockTaken:
            return (yield from real(*args, **facts))

    return acquire_again


@pytest.mark.parametrize(
    ("edit", "proof"),
    [
        (
            Patch(
                waiting,
                "wait_in_line",
                rules.undoing(lambda undo, thrown, _: None if thrown else undo),
            ),
            lambda: test_who_is_interrupted_leaves_the_line_and_passes_the_turn_on(
                standing, RuntimeError
            ),
        ),
        (
            Patch(waiting, "_wakeup_in", lambda _: lambda found: found),
            lambda: test_what_is_no_word_is_not_carried("next"),
        ),
        (
            Patch(waiting.NameLine, "free_in", believing_any_node),
            lambda: test_a_node_that_did_not_refuse_us_is_no_reason_to_try_again(1),
        ),
        (
            Patch(waiting, "_look", rules.looking_at_one_node),
            lambda: test_a_name_that_a_majority_has_not_is_tried(3),
        ),
        (
            Patch(waiting, "_at_the_nodes", believing_no_break),
            test_stands_that_break_do_not_spin,
        ),
        (
            Patch(
                acquire,
                "attempt",
                rules.undoing(lambda undo, thrown, _: undo if thrown or undo.touched else None),
            ),
            test_a_word_that_is_not_used_is_passed_on,
        ),
        (
            Patch(
                acquire,
                "attempt",
                rules.undoing(
                    lambda undo, thrown, _: replace(undo, to=undo.touched) if thrown else undo
                ),
            ),
            test_who_is_interrupted_while_undoing_with_the_word_wakes_the_next,
        ),
        (
            Patch(acquire, "acquire", claiming_again),
            test_a_claimed_word_is_tried_once,
        ),
        (
            Patch(waiting, "FRESH", lambda _: math.inf),
            test_who_stood_in_the_local_line_for_long_looks_first,
        ),
        (
            Patch(
                acquire,
                "ours_to_wake",
                lambda _: lambda *_, names, woken: set(range(names)),
            ),
            lambda: test_of_several_names_only_the_owned_one_is_left_to_its_owner(0, 0, None),
        ),
        (
            Patch(HandOver, "note", lambda _: lambda self, *times: None),
            test_who_has_woken_a_waiter_leaves_it_a_head_start,
        ),
        (
            Patch(
                waiting,
                "head_start",
                lambda real: lambda policy, target, _: real(policy, target, 9.0),
            ),
            test_a_head_start_is_part_of_the_wait,
        ),
        (
            Patch(policies, "HEAD_START_PART", lambda _: math.inf),
            test_a_head_start_is_short_after_a_short_lease,
        ),
        (
            Patch(
                acquire,
                "acquire",
                lambda real: lambda *args, wait, **facts: real(*args, wait=wait or 9.0, **facts),
            ),
            lambda: test_others_have_no_head_start(1, "a", 0.0),
        ),
        (
            Patch(
                HandOver,
                "head_start",
                lambda real: lambda self, _, now: real(self, self._last[0], now),
            ),
            lambda: test_others_have_no_head_start(1, "b", 5.0),
        ),
    ],
    ids=[
        "keeps-its-turn",
        "any-word",
        "believes-any-node",
        "believes-one-node",
        "spins-when-broken",
        "spends-the-word",
        "interrupted-with-the-word",
        "claims-again",
        "old-news",
        "wakes-for-the-taken",
        "competes-with-the-woken",
        "pauses-beyond-the-wait",
        "pauses-for-long-after-little",
        "pauses-without-waiting",
        "pauses-for-any-name",
    ],
)
def test_a_broken_rule_is_noticed(edit: Patch, proof: Callable[[], None]) -> None:
    """Each of these conversations fails where its rule is broken."""
    proof()
    with (
        with_edits(edit),
        pytest.raises((AssertionError, RuntimeError, TypeError, pytest.fail.Exception)),
    ):
        proof()

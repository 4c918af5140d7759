"""Conversations of those who take one of k slots: which they wish, and what becomes of their turn.

A node's word of a refusal is ``Slots``: what it says of each slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from django_redlock.core import acquire, limited
from django_redlock.core.acquire import SPLITS
from django_redlock.core.commands import Acquire, SlotsLeft
from django_redlock.core.errors import LockTaken
from django_redlock.core.protocol import Answer, Command, LeaveQueue, Request, Vote, Wakeup
from django_redlock.core.slots import (
    MARK,
    Entry,
    Slot,
    entry_of,
    label_with,
    read_entry,
    read_label,
)

from .table import LOST, UNSENT, WORD, Found, Table

FREE, HELD = 0.0, 9.0


@dataclass
class Slots:
    """What a node says of all slots: the seconds until each is free; it refuses, or is looked at.

    Attributes:
        reserved: whether the wished slot is reserved for a woken waiter.
        owner: who holds the wished slot else.
    """

    left: Sequence[float | None]
    reserved: bool = False
    owner: str = "0123456789abcdef"


class SlotTable(Table):
    """A table at which the answers may be about slots; draws take the last one, or ``picks``."""

    def take(self, limit: int = 3, wait: float = 0.0, **options: Any) -> Any:
        """Steps to take a slot of "a"."""
        slots = limited.Slots(self.policy, "a", limit)
        return acquire.acquire(self.policy, slots, label="me", ttl=10.0, wait=wait, **options)

    def votes(self, ask: Request, words: object) -> list[Vote]:
        each = words if isinstance(words, list) else [words] * self.size
        plain = [LOST if isinstance(word, Slots) else word for word in each]
        votes = super().votes(ask, plain)
        for i, word in enumerate(each):
            if isinstance(word, Slots):
                votes[i] = told(i, word, ask)
        return votes

    @property
    def wished(self) -> list[int | None]:
        """The slots that were wished, in order."""
        return [ask.target.slot and ask.target.slot.number for ask in self.grants]


def told(i: int, word: Slots, ask: Request) -> Vote:
    """The vote of a node that tells of all slots."""
    reserved = frozenset({0, 1, 2}) if word.reserved else frozenset[int]()
    left = SlotsLeft(tuple(word.left), reserved)
    if ask.command is Command.LOOK:
        return Vote(f"node{i}", Answer.YES, result=left)
    assert isinstance(ask, Acquire)
    which = ask.target.slot.number if ask.target.slot else 0
    owner = "" if word.reserved else word.owner
    mine = 0.05 if word.reserved else left.left[which]
    return Vote(f"node{i}", Answer.NO, left=mine, holder="you", owner=owner, result=left)


FULL = Slots([HELD, HELD, HELD])


# -- names --------------------------------------------------------------------------------------


def test_the_name_of_a_slot_is_read_back():
    """Of names that other clients wrote, each is a plain lock's."""
    assert read_entry(entry_of("a:7", 127)) == Entry("a:7", 127)
    for name in ("a", "a7", f"a{MARK}", f"a{MARK}x", f"a{MARK}1234", f"{MARK}", f"a{MARK}²"):
        assert read_entry(name) == Entry(name, None)
    assert read_label(label_with("host:1(t):id", Slot(0, 5))) == ("host:1(t):id", 5)
    assert read_label("host:1") == ("host:1", None)


def test_all_slots_of_a_name_have_the_queue_node_of_the_name():
    """Waiters for a slot wait for all of them, at one node; each slot has a counter of its own."""
    for name in "abcdefghij":
        policy = SlotTable(5).policy
        slots = limited.Slots(policy, name, 8)
        assert {each.queue_nodes for each in slots} == {policy.target([name]).queue_nodes}
        assert len({each.fields for each in slots}) == 8
        assert {each.name for each in slots} == {name}


# -- wishing ------------------------------------------------------------------------------------


def test_a_free_slot_costs_one_attempt():
    """As a plain lock; the key's label tells how many the holder takes for k."""
    table = SlotTable(5)
    grant = table.talk(table.take(), 5)
    assert table.commands == ["grant"]
    target = grant.target
    assert (target.name, target.slot) == ("a", (table.wished[0], 3))
    assert target.entries == (entry_of("a", table.wished[0]),)
    (ask,) = table.grants
    assert (grant.label, ask.slots) == ("me", 3)
    assert label_with("me", target.slot) in ask.wire()[1]


@pytest.mark.parametrize("wait", [0.0, 5.0])
def test_a_slot_that_a_majority_calls_free_is_wished_next(wait):
    """At once, also by a caller that does not wait; a slot that one node calls free is not."""
    table = SlotTable(5)
    first = table.policy.uniform(0, 3) % 3
    free = Slots([HELD, HELD, FREE])
    stale = Slots([HELD, FREE, HELD])
    table.talk(table.take(wait=wait), [free, free, free, stale, stale], 5)
    assert table.wished == [first, 2]
    assert table.waited == []


def test_a_slot_that_a_minority_calls_free_is_none():
    """The others would refuse it; that the holder's key is not on each node is no news."""
    table = SlotTable(5)
    lacking = Slots([FREE, FREE, FREE])
    with pytest.raises(LockTaken, match=r"^'a': all 3 slots are held, one of them by you$"):
        table.talk(table.take(), [FULL, FULL, FULL, lacking, lacking])
    assert len(table.grants) == 1


def test_nodes_that_were_not_heard_may_make_the_majority():
    """Rather than be told that all are held, a caller that does not wait tries."""
    table = SlotTable(5)
    table.talk(table.take(), [FULL, *[Slots([HELD, FREE, HELD])] * 2, LOST, LOST], 5)
    assert table.wished[1:] == [1]
    table = SlotTable(5)
    with pytest.raises(LockTaken):
        table.talk(table.take(), [FULL, *[Slots([HELD, FREE, HELD])] * 2, UNSENT, UNSENT])


def test_the_refusal_tells_when_the_first_slot_is_free():
    """When a majority has forgotten its holder, should he neither renew nor release."""
    table = SlotTable(3)
    words = [Slots([0.5, 9.0, None]), Slots([0.6, 9.0, None]), Slots([None, 9.0, None])]
    with pytest.raises(LockTaken) as refused:
        table.talk(table.take(), words)
    assert refused.value.code == "full"
    assert refused.value.retry_after == 0.6
    assert refused.value.name == "a"


@pytest.mark.parametrize("wait", [0.0, 60.0])
def test_a_caller_that_others_forestall_every_time_pauses(wait):
    """It wishes each slot once; then it lets time pass, so that no two chase each other.

    What it wished before it was woken does not count. One that does not wait pauses three times.
    """
    table = SlotTable(3)
    free = Slots([FREE, FREE, FREE])
    table.talk(table.take(wait=wait), *[free] * 4, 5)
    assert len(table.grants) == 5
    assert len(table.waited) == 1
    if wait:
        table = SlotTable(3)
        table.talk(table.take(wait=60), FULL, Wakeup(WORD), *[free] * 3, 5)
        assert (len(table.grants), table.waited) == (5, [])
    else:
        with pytest.raises(LockTaken):
            table.talk(table.take(), *[free] * 99)
        assert len(table.waited) == 1 + SPLITS
        assert len(table.grants) == 5 + 4 * (SPLITS + 1)


def test_after_a_split_the_caller_pauses_and_wishes_another_slot():
    """What no node calls taken, of which a majority is not known to call it free."""
    table = SlotTable(5)
    one, other = (Slots([HELD, HELD, FREE], owner=each * 16) for each in "ab")
    table.talk(table.take(wait=5), [5, 5, one, other, LOST], 0, 5)
    assert table.wished[1:] == [2]
    assert table.commands == ["grant", "release", "grant"]


def test_a_claim_is_made_once_as_by_a_plain_lock():
    """For a slot that is reserved for a waiter that may be gone, whichever was wished."""
    table = SlotTable(3)
    reserved = Slots([0.05] * 3, reserved=True)
    table.talk(table.take(), reserved, Found(WORD), 5)
    assert table.commands == ["grant", "claim", "grant"]
    assert table.grants[-1].opener == WORD
    assert table.asked[1].queue == f"redlock:queue:{entry_of('a', table.wished[1] or 0)}"
    table = SlotTable(3)
    none = Found()
    with pytest.raises(LockTaken):
        table.talk(table.take(), reserved, none, none, none)
    assert len({ask.queue for ask in table.asked[1:]}) == 3


# -- waiting ------------------------------------------------------------------------------------


def test_a_refused_caller_blocks_on_all_slots_without_another_look():
    """The refusal noted it for each slot; one line of this process is the name's."""
    table = SlotTable(5)
    table.talk(table.take(wait=5), FULL, Wakeup(WORD, which=1), 5)
    assert table.commands == ["grant", "grant"]
    (block,) = table.blocks
    assert block.waiter.queues == tuple(f"redlock:queue:{entry_of('a', i)}" for i in range(3))
    assert block.waiter.queue not in {*block.waiter.queues, "redlock:queue:a"}
    assert block.node_index == table.policy.target(["a"]).queue_nodes[0]
    assert table.grants[0].waits == 1500


@pytest.mark.parametrize("which", range(3))
def test_a_wake_up_opens_the_slot_of_its_list(which):
    """Whatever was wished before, or has a look found free meanwhile.

    Whoever cannot use it, as no majority has the slot, passes it on to the same slot.
    """
    for come, answers in (([True], [Wakeup(WORD)]), ([False], [WORD])):
        table = SlotTable(3)
        steps = table.take(wait=9)
        line = table.until(steps, FULL)
        steps.send(*come)
        line.waiter.which = which  # as the wake-up comes
        ask = steps.send(*answers)
        assert (ask.target.slot.number, ask.opener) == (which, WORD)
    reserved = Slots([0.05] * 3, reserved=True)
    release = steps.send(table.votes(ask, [reserved, LOST, reserved]))
    assert release.command is Command.RELEASE
    assert release.target.entries == (entry_of("a", which),)
    assert release.wake == {0}


def test_an_interrupted_waiter_passes_its_wake_up_on_to_the_list_of_its_slot():
    """Its own turn is not used; the slot is reserved for the waiter that is woken next."""
    table, which = SlotTable(5), 2
    steps = table.take(wait=9)
    line = table.until(steps, FULL)
    steps.send(True)
    line.waiter.which = which  # as the wake-up comes
    leaves = steps.throw(KeyboardInterrupt)
    assert isinstance(leaves, LeaveQueue)
    passes_on = steps.send(WORD)
    assert passes_on.command is Command.RELEASE
    assert passes_on.target.entries == (entry_of("a", which),)
    assert passes_on.touched == frozenset()
    assert passes_on.wake == (0,)
    with pytest.raises(KeyboardInterrupt):
        steps.send(table.votes(passes_on, 0))


def test_a_look_goes_to_all_nodes_and_is_about_all_slots():
    """A slot is free if a majority says so; until then it blocks again, at the same node."""
    table = SlotTable(5)
    gone, lacking = Slots([HELD, FREE, HELD]), Slots([HELD, FREE, FREE])
    words = [Wakeup(), [lacking, lacking, FULL, FULL, FULL], Wakeup(), gone, 5]
    table.talk(table.take(wait=9), FULL, *words)
    looks = [ask for ask in table.asked if ask.command is Command.LOOK]
    assert [look.slots for look in looks] == [3, 3]
    assert len({block.node_index for block in table.blocks}) == 1
    assert table.wished[-1] == 1


def test_a_waiter_looks_when_the_first_slot_ends():
    """A holder that is dead wakes nobody: then, and not at the next of the seldom looks."""
    table = SlotTable(3)
    words = [Slots([0.3, HELD, HELD]), Slots([0.2, HELD, HELD]), Slots([HELD, HELD, HELD])]
    table.talk(table.take(wait=9), words, Wakeup(), Slots([FREE, HELD, HELD]), 5)
    assert table.blocks[0].seconds == pytest.approx(0.301)
    assert table.wished[-1] == 0

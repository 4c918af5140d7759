"""Broken variants of waiting: of words, of reservations, of looking and of leaving."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from django_redlock.core import acquire, hold, limited
from django_redlock.core import wait as waiting
from django_redlock.core.commands import Acquire
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Answer, LeaveQueue, LockKeys, Steps
from django_redlock.core.slots import Slot, read_entry
from django_redlock.nodes import memory
from django_redlock.nodes.memory import NEXT, MemoryNode
from django_redlock.nodes.queue import LocalQueue
from tests.simulation import places
from tests.simulation.world import Driven

from . import nodes, rules
from .edits import mutant


def leaving_the_line_only(real: Callable[..., None]) -> Callable[..., None]:
    """Leave the line of the process, and stay in the queue of the node."""

    def leave(driven: Driven, effect: LeaveQueue) -> None:
        driven.place = None
        real(driven, effect)

    return leave


def counting_all_slots(real: Callable[..., Any]) -> Callable[..., Any]:
    """Ask a node that refuses one slot for the next one, and count what it says of that."""

    def attempt(policy: Policy, target: LockKeys, **options: Any) -> Steps[Any]:
        steps, reply = real(policy, target, **options), None
        while True:
            try:
                effect = steps.send(reply)
            except StopIteration as stop:
                return stop.value
            reply = yield effect
            for slot in range(effect.slots if isinstance(effect, Acquire) else 0):
                again = frozenset(i for i, vote in enumerate(reply) if vote.answer is Answer.NO)
                if again:
                    other = policy.target(target.names, slot=Slot(slot, effect.slots))
                    more = yield replace(effect, target=other, to=again, nonce=policy.nonce())
                    reply = [more[i] if i in again else vote for i, vote in enumerate(reply)]

    return attempt


def replacing_those_of_all_slots(real: Callable[..., None]) -> Callable[..., None]:
    """Push a word, and drop those that lie in the lists of the other slots."""

    def push(self: MemoryNode, queue: str, wakeup: str, px: int) -> None:
        mine = read_entry(queue).name
        for each in [each for each in self.wakeups if read_entry(each).name == mine]:
            del self.wakeups[each]
        real(self, queue, wakeup, px)

    return push


def noting_one_slot(real: Callable[..., list[int]]) -> Callable[..., list[int]]:
    """Tell of all slots, and note who waits for the one that was wished."""

    def of_slots(
        self: MemoryNode, target: LockKeys, slots: int, waits: int, **more: int
    ) -> list[int]:
        if waits:
            self.waits[target.entries[0]] = int(self.clock()) + waits
        return real(self, target, slots, 0, **more)

    return of_slots


def using_it_for_the_first_slot(real: Callable[..., Any]) -> Callable[..., Any]:
    """Use the wake-up of any list for the first slot."""

    def next_try(self: limited.SlotLine, wakeup: str) -> Any:
        if wakeup:
            self.waiter.which = 0
        return real(self, wakeup)

    return next_try


WAITING: Final = (
    mutant(
        "wakes-nobody",
        "A release wakes nobody.",
        "queued",
        10,
        (hold, "release", rules.handing_over(wake=())),
    ),
    mutant(
        "wakes-if-it-was-ours",
        "A release wakes only where the key was still its own.",
        "queued-giving-up",
        400,
        (MemoryNode, "_release", nodes.waking_for_our_own),
    ),
    mutant(
        "unnoticed",
        "Neither a refusal nor a look notes that somebody waits.",
        "queued",
        10,
        (MemoryNode, "_grant", nodes.noting_no_waiter),
        (MemoryNode, "_look", nodes.looking_only),
    ),
    mutant(
        "looks-before-it-is-noted",
        "A refusal does not note that somebody waits, and passes for a look.",
        "queued",
        20,
        (MemoryNode, "_grant", nodes.noting_no_waiter),
    ),
    mutant(
        "jumps-the-queue",
        "Any client takes a name that is reserved for the waiter that is woken.",
        "queued",
        120,
        (
            memory,
            "_free_with",
            lambda real: lambda wakeup, value: value == NEXT or real(wakeup, value),
        ),
    ),
    mutant(
        "keeps-nothing",
        "A release does not keep the name for who is woken.",
        "queued",
        60,
        (hold, "release", rules.handing_over(reserve=0)),
    ),
    mutant(
        "word-opens-all",
        "A waiter that was woken takes the name from any holder.",
        "queued-lossy",
        20,
        (memory, "_free_with", lambda _: lambda wakeup, value: bool(wakeup)),
    ),
    mutant(
        "wears-the-dead-nonce",
        "A waiter that was woken takes the dead nonce for its own.",
        "queued-lossy",
        20,
        (acquire, "attempt", rules.with_nonce(lambda wakeup="", **_: wakeup)),
    ),
    mutant(
        "counts-what-is-kept",
        "A name that is kept for somebody counts as granted.",
        "queued",
        20,
        (MemoryNode, "_grant", nodes.granting_what_is_reserved),
    ),
    mutant(
        "keeps-it-longer",
        "Each refusal keeps the name for longer.",
        "queued-dying",
        150,
        (MemoryNode, "_grant", nodes.reserving_for_longer),
    ),
    mutant(
        "swallows-the-word",
        "An attempt with the wakeup that fails wakes nobody.",
        "queued-for-two",
        400,
        (acquire, "attempt", rules.undoing(rules.waking_nobody)),
    ),
    mutant(
        "leaves-it-to-any-owner",
        "Who waits for two names leaves it to the owner of one to wake for the other.",
        "queued-for-two",
        400,
        (acquire, "ours_to_wake", rules.waking_for_none),
    ),
    mutant(
        "leaves-with-the-word",
        "Who is interrupted with the wakeup wakes nobody.",
        "queued-giving-up",
        1200,
        (
            waiting,
            "wait_in_line",
            rules.undoing(lambda undo, thrown, _: None if thrown else undo),
        ),
        (
            acquire,
            "attempt",
            rules.undoing(
                lambda undo, thrown, _: replace(undo, to=undo.touched) if thrown else undo
            ),
        ),
    ),
    mutant(
        "short-lived-word",
        "A wakeup that nobody stands there for is gone at once.",
        "queued",
        500,
        (
            MemoryNode,
            "_push",
            lambda real: lambda self, queue, wakeup, _: real(self, queue, wakeup, 0),
        ),
    ),
    mutant(
        "never-looks",
        "Who stands in a queue relies on being woken.",
        "queued-beside-others",
        500,
        (waiting, "_at_the_nodes", rules.never_looking),
    ),
    mutant(
        "believes-one-node",
        "Who stands in a queue believes the node there that the name is held.",
        "queued-losing-releases",
        400,
        (waiting, "_look", rules.looking_at_one_node),
    ),
    mutant(
        "sleeps-through-the-end",
        "Who stands in a queue does not look when the key's time is up.",
        "queued-after-deaths",
        60,
        (waiting, "_at_the_nodes", rules.sleeping_through_the_end),
    ),
    mutant(
        "stays-in-the-queue",
        "Who gives up does not leave the queue.",
        "queued-giving-up",
        10,
        (places, "_leave", leaving_the_line_only),
        real="tests/nodes/test_waiters.py::test_a_cancelled_waiter_gives_its_connection_back",
    ),
    mutant(
        "closes-without-a-word",
        "Who gives up closes its connection and does not look whether it was its turn.",
        "queued-giving-up",
        1200,
        (
            places,
            "_leave_node",
            lambda real: (
                lambda driven, place, waiter, then: real(driven, place, waiter, lambda _: then(""))
            ),
        ),
        real="tests/nodes/test_waiters.py::test_a_word_that_came_before_we_left_is_taken_along",
    ),
    mutant(
        "calls-nobody",
        "Who leaves the line of its process does not call the next.",
        "queued",
        60,
        (LocalQueue, "_call_first", lambda _: lambda self, queue: None),
    ),
    mutant(
        "counts-votes-of-all-slots",
        "A node grants whatever slot is free, and the votes of all slots count together.",
        "queued-for-slots",
        60,
        (acquire, "attempt", counting_all_slots),
    ),
    mutant(
        "one-word-for-all-slots",
        "A release of one slot replaces the wake-up of another.",
        "queued-for-slots",
        400,
        (MemoryNode, "_push", replacing_those_of_all_slots),
    ),
    mutant(
        "noted-for-one-slot",
        "A node notes who waits for the slot that was wished only.",
        "queued-for-slots",
        60,
        (MemoryNode, "_of_slots", noting_one_slot),
    ),
    mutant(
        "opens-another-slot",
        "A wake-up is used for another slot than that of its list.",
        "queued-for-slots",
        60,
        (limited.SlotLine, "next_try", using_it_for_the_first_slot),
    ),
)

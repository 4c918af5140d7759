"""Broken variants of waiting: of words, of reservations, of looking and of leaving."""

from __future__ import annotations

from typing import Final

from django_redlock.core import acquire, hold
from django_redlock.core import wait as waiting
from django_redlock.fanout.memory import node as memory_node
from django_redlock.fanout.memory.group import MemoryNode
from django_redlock.fanout.queue import LocalQueue
from tests.simulation import places

from . import nodes
from .edits import mutant

WAITING: Final = (
    mutant(
        "wakes-nobody",
        "A release wakes nobody.",
        "queued",
        10,
        (hold, "hand_over", "reserve=RESERVED", "reserve=RESERVED, wake=()"),
    ),
    mutant(
        "wakes-if-it-was-ours",
        "A release wakes only where the key was still its own.",
        "queued-giving-up",
        400,
        (
            MemoryNode,
            "_release",
            'if waited and flag != "0":',
            'if outcome == "FREED" and waited and flag != "0":',
        ),
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
        "Anybody takes a name that is kept for who is woken.",
        "queued",
        120,
        (memory_node, "_free_with", "bool(wakeup) and (value == NEXT", "(value == NEXT"),
    ),
    mutant(
        "keeps-nothing",
        "A release does not keep the name for who is woken.",
        "queued",
        60,
        (hold, "hand_over", "reserve=RESERVED", "reserve=0.0"),
    ),
    mutant(
        "word-opens-all",
        "A waiter that was woken takes the name from any holder.",
        "queued-lossy",
        20,
        (memory_node, "_free_with", '(value == NEXT or value.startswith(f"{wakeup}:"))', "True"),
    ),
    mutant(
        "wears-the-dead-nonce",
        "A waiter that was woken takes the dead nonce for its own.",
        "queued-lossy",
        20,
        (acquire, "attempt", "nonce = policy.nonce()", "nonce = wakeup or policy.nonce()"),
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
        (acquire, "attempt", "if (touched or wakeup) and wake", "if False and wake"),
    ),
    mutant(
        "leaves-it-to-any-owner",
        "Who waits for two names leaves it to the owner of one to wake for the other.",
        "queued-for-two",
        400,
        (acquire, "ours_to_wake", "return free - {taken}", "return set()"),
    ),
    mutant(
        "leaves-with-the-word",
        "Who is interrupted with the wakeup wakes nobody.",
        "queued-giving-up",
        1200,
        (waiting, "wait_for_turn", "yield wake_next(policy, target, wakeup, which)", "pass"),
        (acquire, "attempt", "policy.everyone() if wakeup else touched", "touched"),
    ),
    mutant(
        "short-lived-word",
        "A wakeup that nobody stands there for is gone at once.",
        "queued",
        500,
        (MemoryNode, "_push", "self.clock() + px", "self.clock()"),
    ),
    mutant(
        "never-looks",
        "Who stands in a queue relies on being woken.",
        "queued-beside-others",
        500,
        (waiting, "_at_the_nodes", "policy.uniform(*LOOK_EVERY)", "math.inf"),
    ),
    mutant(
        "believes-one-node",
        "Who stands in a queue believes the node there that the name is held.",
        "queued-losing-releases",
        400,
        (waiting, "_at_the_nodes", "sum(map(_is_gone, looked.values()))", "0"),
    ),
    mutant(
        "sleeps-through-the-end",
        "Who stands in a queue does not look when the key's time is up.",
        "queued-after-deaths",
        60,
        (waiting, "_at_the_nodes", "math.inf if ends is None else ends + 0.001", "math.inf"),
    ),
    mutant(
        "stays-in-the-queue",
        "Who gives up does not leave the queue.",
        "queued-giving-up",
        10,
        (places, "_leave", "_leave_node(driven, place, left)", 'left("")'),
        real="tests/fanout/test_waiters.py::test_a_cancelled_waiter_gives_its_connection_back",
    ),
    mutant(
        "closes-without-a-word",
        "Who gives up closes its connection and does not look whether it was its turn.",
        "queued-giving-up",
        1200,
        (places, "_leave_node", 'place.came.wakeup if place.came else ""', '""'),
        real="tests/fanout/test_waiters.py::test_a_word_that_came_before_we_left_is_taken_along",
    ),
    mutant(
        "calls-nobody",
        "Who leaves the line of its process does not call the next.",
        "queued",
        60,
        (LocalQueue, "_remove", "self._call_first(queue)", "pass"),
    ),
)

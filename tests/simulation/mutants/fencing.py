"""Broken variants of the restart guard and of fencing."""

from __future__ import annotations

from typing import Final

from django_redlock.core import acquire
from django_redlock.nodes import admission
from django_redlock.nodes.memory import MemoryNode
from tests.simulation.client import Client
from tests.simulation.network import SimNode

from . import nodes, rules
from .edits import mutant

GUARDED: Final = (
    "tests/faults/test_faults.py"
    "::test_a_node_that_restarted_empty_has_no_vote_until_the_guard_is_over"
)
GUARD: Final = (
    mutant(
        "no-guard",
        "A node that restarted votes at once.",
        "restarts",
        40,
        (SimNode, "guard", lambda _: lambda self: 0.001),
        real=GUARDED,
    ),
    mutant(
        "short-guard",
        "A node that restarted votes after half of the longest ttl.",
        "restarts",
        1000,
        (SimNode, "guard", lambda _: lambda self: 0.4),
        real=GUARDED,
    ),
    mutant(
        "no-epoch",
        "A node that was emptied while it ran votes at once.",
        "restarts",
        80,
        (MemoryNode, "_was_emptied", lambda _: lambda self, epoch: False),
        (SimNode, "votes", lambda _: lambda self: self.world.now >= self.votes_from),
    ),
    mutant(
        "believes-any-clock",
        "A node that boots with a slow clock is admitted by it.",
        "booting",
        200,
        (admission, "_off", lambda real: lambda look, skew: max(0.0, real(look, skew))),
    ),
    mutant(
        "believes-the-uptime",
        "A node without our mark is admitted by its uptime, whatever was done to its clock.",
        "booting",
        400,
        (MemoryNode, "admit", nodes.believing_the_uptime),
    ),
    mutant(
        "any-ttl",
        "A lock asks for a ttl beyond the one that the guard counts on.",
        "restarts",
        200,
        (Client, "_ttl", lambda _: lambda self: 3.0),
        real="tests/test_bad_input.py::test_a_ttl_that_the_alias_does_not_allow",
    ),
    mutant(
        "no-clamp",
        "Nodes believe a client's wall clock, however far ahead it is.",
        "ahead",
        200,
        (MemoryNode, "_grant", nodes.believing_any_clock),
    ),
)

FENCES: Final = (
    mutant(
        "counters-stand-still",
        "A node does not remember the number of a grant.",
        "wishless",
        10,
        (MemoryNode, "_grant", nodes.standing_still),
    ),
    mutant(
        "first-counter-only",
        "Of several names, only the first one's counter is passed.",
        "wishless",
        120,
        (MemoryNode, "_grant", nodes.passing_the_first_counter),
    ),
    mutant(
        "no-raise",
        "The largest number is the token without a majority that acknowledged it.",
        "wishless",
        50,
        (acquire, "_token", rules.asking_for_no_raise(max)),
    ),
    mutant(
        "any-number",
        "A number that one node gave is the token.",
        "wishless",
        40,
        (acquire, "_token", rules.asking_for_no_raise(lambda given: max(given, key=given.count))),
    ),
    mutant(
        "smallest-number",
        "The smallest number is the token, which nodes that gave more did not acknowledge.",
        "wishless",
        20,
        (acquire, "_token", rules.taking_the_smallest),
    ),
    mutant(
        "unheard-raise",
        "One node that acknowledges a raise is enough.",
        "wishless",
        800,
        (acquire, "_token", rules.raising_by_one),
    ),
    mutant(
        "raise-without-lifting",
        "A raise is acknowledged and does not lift the counter.",
        "wishless",
        100,
        (MemoryNode, "_raise", nodes.raising_nothing),
    ),
    mutant(
        "raise-without-compare",
        "A raise is acknowledged for a name that somebody else has.",
        "clockless",
        200,
        (MemoryNode, "_raise", nodes.raising_anything),
    ),
    mutant(
        "no-grant-number",
        "The value has no grant number, so a raise confirms what a repeated grant brought back.",
        "clockless",
        1500,
        (MemoryNode, "_raise", nodes.raising_any_grant),
    ),
)

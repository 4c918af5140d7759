"""Broken variants of voting, of believing and of prolonging."""

from __future__ import annotations

from typing import Final

from django_redlock.core import acquire, hold, policy
from django_redlock.core.policy import Policy
from django_redlock.nodes import memory, replies
from django_redlock.nodes.memory import MemoryNode
from tests.simulation.client import Client

from . import nodes, rules
from .edits import mutant

STEADY: Final = (
    "tests/core/test_clock.py"
    "::test_a_lease_is_measured_by_a_clock_that_nobody_sets_and_that_does_not_sleep"
)


VOTES: Final = (
    mutant(
        "half-is-enough",
        "Half of the nodes count as a majority.",
        "contended",
        10,
        (policy, "majority_of", lambda _: lambda size: max(1, size // 2)),
    ),
    mutant(
        "lost-is-yes",
        "An answer that did not come counts as a yes.",
        "rough",
        10,
        (acquire, "_token", rules.counting_silence),
    ),
    mutant(
        "asks-a-majority",
        "Only as many nodes are asked as are needed.",
        "minority",
        20,
        (acquire, "Acquire", rules.asking_a_majority),
    ),
    mutant(
        "some-names",
        "Of several names, a node looks at the first only.",
        "crowded",
        60,
        (MemoryNode, "_grant", nodes.looking_at_the_first_name),
    ),
    mutant(
        "writes-as-it-goes",
        "Of several names, a node takes the first before it looks at the second.",
        "crowded",
        20,
        (MemoryNode, "_grant", nodes.writing_as_it_goes),
    ),
    mutant(
        "any-answer",
        "The answer to another question counts, too.",
        "slipping",
        600,  # it takes 90 worlds in the mean
        (replies, "vote", rules.any_reply),
    ),
    mutant(
        "any-word",
        "The answer to another question of the same lease counts.",
        "slipping",
        2000,
        (replies, "vote", rules.any_outcome),
        (hold, "_extension", rules.with_a_lease_s_nonce),
    ),
    mutant(
        "hasty-refusal",
        "“Taken” or “unavailable” is told before it is clear which one it is.",
        "calm",
        40,
        (acquire, "granted_or_not", rules.refusing_hastily),
    ),
    mutant(
        "hasty-extension",
        "One denial ends the listening, so that a lost lease looks like an outage.",
        "calm",
        400,
        (hold, "kept_or_not", rules.ending_with_one_denial),
        (hold, "_extension", rules.without_waiting),
    ),
)

HOLD: Final = (
    mutant(
        "ends-at-once",
        "A release does not see to `min_hold`.",
        "tenacious",
        60,
        (hold, "release", rules.holding_for(0.0)),
    ),
    mutant(
        "rests-for-less",
        "`min_hold` ends after nine tenths of its time.",
        "tenacious",
        200,
        (hold, "release", rules.holding_for(0.9)),
    ),
    mutant(
        "opens-what-rests",
        "A name that rests is free.",
        "tenacious",
        40,
        (
            memory,
            "_yields",
            lambda real: lambda value, *who: value.startswith("rest::") or real(value, *who),
        ),
    ),
    mutant(
        "keeps-duplicates",
        "A name that is given twice counts as two.",
        "crowded",
        20,
        (Policy, "target", rules.keeping_duplicates),
    ),
)

LEASE: Final = (
    mutant(
        "late-lease",
        "The lease counts from when the answers are there.",
        "rough",
        80,
        (acquire, "attempt", rules.counting_from_the_reply),
    ),
    mutant(
        "no-second-look",
        "The clock is not looked at again after the votes.",
        "rough",
        40,
        (acquire, "attempt", rules.with_a_clock_that_stands),
    ),
    mutant(
        "no-drift",
        "No allowance for clocks that run apart, whose rates are wrong by at most 0.4 %.",
        "expiring",
        60,
        (Policy, "validity", lambda _: lambda self, ttl: ttl),
    ),
    mutant(
        "wall-clock",
        "The lease is measured by a wall clock, which somebody sets.",
        "stepped",
        60,
        (Client, "clock", lambda _: lambda self: 1000.0 + self.world.now + self.error),
        (Client, "exact", lambda _: lambda self, moment: moment - 1000.0 - self.error),
        real=STEADY,
    ),
    mutant(
        "sleeping-clock",
        "The lease is measured by a clock that stops while the machine is suspended.",
        "stepped",
        50,
        (Client, "clock", lambda real: lambda self: real(self) - self.suspended * self._rate),
        (Client, "exact", lambda real: lambda self, moment: real(self, moment) + self.suspended),
        real=STEADY,
    ),
    mutant(
        "late-extension",
        "An extension counts from when the answers are there.",
        "tenacious",
        300,
        (
            hold,
            "_prolonged",
            lambda real: lambda policy, lease, _, ttl: real(policy, lease, policy.clock(), ttl),
        ),
    ),
    mutant(
        "extends-too-late",
        "Answers to an extension count although the lease has ended meanwhile.",
        "tenacious",
        80,
        (hold, "extend_many", rules.with_a_clock_that_stands),
    ),
    mutant(
        "shortening",
        "An extension makes a key expire earlier than it would have.",
        "tenacious",
        100,
        (MemoryNode, "_prolong", nodes.shortening),
    ),
    mutant(
        "shortened-belief",
        "An extension makes a lease end earlier than it would have.",
        "rough",
        10,
        (
            hold,
            "_prolonged",
            lambda _: lambda policy, lease, start, ttl: lease.grant._replace(deadline=start + ttl),
        ),
    ),
    mutant(
        "extends-by-one",
        "One node is enough to extend.",
        "tenacious",
        500,
        (hold, "_kept", lambda real: lambda *votes: [99 * bool(n) for n in real(*votes)]),
    ),
    mutant(
        "extend-creates",
        "An extension brings back a key that is gone.",
        "rough",
        250,  # it takes 50 worlds in the mean
        (MemoryNode, "_prolong", nodes.taking_again),
    ),
    mutant(
        "revives",
        "An extension takes the name again after the lease has ended.",
        "rough",
        30,
        (hold, "_over", lambda _: lambda leases, now: {}),
        (hold, "extend_many", rules.with_a_clock_that_stands),
        (MemoryNode, "_prolong", nodes.taking_again),
    ),
)

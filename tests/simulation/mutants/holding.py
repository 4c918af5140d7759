"""Broken variants of voting, of believing and of prolonging."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from django_redlock.core import acquire, hold, policy
from django_redlock.core.commands import COMMANDS, Acquire, Extend
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Request, Vote
from django_redlock.fanout.memory.group import MemoryNode
from django_redlock.transport.wire import replies
from tests.simulation.client import Client

from . import nodes
from .edits import mutant

STEADY: Final = (
    "tests/core/test_clock.py"
    "::test_a_lease_is_measured_by_a_clock_that_nobody_sets_and_that_does_not_sleep"
)


def asking_a_majority(real: type[Acquire]) -> Callable[..., Acquire]:
    """Ask only as many nodes as are needed."""

    def request(nonce: str, decided: partial[bool], *fields: Any, **named: Any) -> Acquire:
        to = frozenset(range(decided.keywords["majority"]))
        return real(nonce, decided, *fields, **named, to=to)

    return request


def any_reply(real: Callable[..., Vote | None]) -> Callable[..., Vote | None]:
    """Take a reply to another request for one to this."""
    return lambda request, node, nonce, reply: real(request, node, (reply or [nonce])[0], reply)


def any_outcome(real: Callable[..., Vote | None]) -> Callable[..., Vote | None]:
    """Take the outcome of any other command for the one of this."""
    outcomes = {kind.done for kind in COMMANDS}

    def vote(request: Request, node: str, nonce: bytes, reply: list[Any]) -> Vote | None:
        if reply[1] in outcomes:
            reply = [reply[0], request.done, *reply[2:]]
        return real(request, node, nonce, reply)

    return vote


def extending_by_a_lease_s_nonce(real: Callable[..., Extend]) -> Callable[..., Extend]:
    """Send an extension by the nonce of its first lease."""
    return lambda policy, asked: replace(real(policy, asked), nonce=asked[0][0].nonce)


VOTES: Final = (
    mutant(
        "half-is-enough",
        "Half of the nodes count as a majority.",
        "contended",
        10,
        (policy, "majority_of", "size // 2 + 1", "max(1, size // 2)"),
    ),
    mutant(
        "lost-is-yes",
        "An answer that did not come counts as a yes.",
        "rough",
        10,
        (acquire, "_token", "is YES}", "is not Answer.NO}"),
        (acquire, "_token", "agreeing + count(raised).yes", "policy.size - count(raised).no"),
    ),
    mutant(
        "asks-a-majority",
        "Only as many nodes are asked as are needed.",
        "minority",
        20,
        (acquire, "Acquire", asking_a_majority),
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
        (replies, "vote", any_reply),
    ),
    mutant(
        "any-word",
        "The answer to another question of the same lease counts.",
        "slipping",
        2000,
        (replies, "vote", any_outcome),
        (hold, "_extension", extending_by_a_lease_s_nonce),
    ),
    mutant(
        "hasty-refusal",
        "“Taken” or “unavailable” is told before it is clear which one it is.",
        "calm",
        40,
        (acquire, "granted_or_not", "return hopeless and", "return hopeless or"),
    ),
    mutant(
        "hasty-extension",
        "One denial ends the listening, so that a lost lease looks like an outage.",
        "calm",
        400,
        (hold, "kept_or_not", "no < majority", "no < 1"),
        (hold, "_extension", "worth=some_unheard", "worth=None"),
    ),
)

HOLD: Final = (
    mutant(
        "ends-at-once",
        "A release does not see to `min_hold`.",
        "tenacious",
        60,
        (hold, "release", "if rest > 0:", "if False:"),
    ),
    mutant(
        "rests-for-less",
        "`min_hold` ends after nine tenths of its time.",
        "tenacious",
        200,
        (hold, "release", "grant.since + min_hold", "grant.since + min_hold * 0.9"),
    ),
    mutant(
        "opens-what-rests",
        "A name that rests is free.",
        "tenacious",
        40,
        (
            MemoryNode,
            "_grant",
            "if value is not None and not _yields",
            'if value is not None and not value.startswith("rest::") and not _yields',
        ),
    ),
    mutant(
        "keeps-duplicates",
        "A name that is given twice counts as two.",
        "crowded",
        20,
        (Policy, "target", "tuple(dict.fromkeys(names))", "tuple(names)"),
    ),
)

LEASE: Final = (
    mutant(
        "late-lease",
        "The lease counts from when the answers are there.",
        "rough",
        80,
        (acquire, "attempt", "deadline = start +", "deadline = policy.clock() +"),
    ),
    mutant(
        "no-second-look",
        "The clock is not looked at again after the votes.",
        "rough",
        40,
        (acquire, "attempt", " and policy.clock() < deadline", ""),
    ),
    mutant(
        "no-drift",
        "No allowance for clocks that run apart, whose rates are wrong by at most 0.4 %.",
        "expiring",
        60,
        (Policy, "validity", " - (ttl * self.drift + LEAST_DRIFT)", ""),
    ),
    mutant(
        "wall-clock",
        "The lease is measured by a wall clock, which somebody sets.",
        "stepped",
        60,
        (
            Client,
            "clock",
            "self._offset + self.world.now * self._rate",
            "1000.0 + self.world.now + self.error",
        ),
        (Client, "exact", "(moment - self._offset) / self._rate", "moment - 1000.0 - self.error"),
        real=STEADY,
    ),
    mutant(
        "sleeping-clock",
        "The lease is measured by a clock that stops while the machine is suspended.",
        "stepped",
        50,
        (
            Client,
            "clock",
            "self._offset + self.world.now * self._rate",
            "self._offset + (self.world.now - self.suspended) * self._rate",
        ),
        (
            Client,
            "exact",
            "(moment - self._offset) / self._rate",
            "(moment - self._offset) / self._rate + self.suspended",
        ),
        real=STEADY,
    ),
    mutant(
        "late-extension",
        "An extension counts from when the answers are there.",
        "tenacious",
        300,
        (hold, "_prolonged", "deadline, start + policy", "deadline, policy.clock() + policy"),
    ),
    mutant(
        "extends-too-late",
        "Answers to an extension count although the lease has ended meanwhile.",
        "tenacious",
        80,
        (hold, "extend_many", " and now < leases[i].grant.deadline", ""),
        (hold, "_outcome", "if now >= grant.deadline:", "if False:"),
    ),
    mutant(
        "shortening",
        "An extension makes a key expire earlier than it would have.",
        "tenacious",
        100,
        (MemoryNode, "_prolong", "if 0 <= self.pttl(key) < ttl:", "if True:"),
    ),
    mutant(
        "shortened-belief",
        "An extension makes a lease end earlier than it would have.",
        "rough",
        10,
        (
            hold,
            "_prolonged",
            "max(grant.deadline, start + policy.validity(ttl))",
            "start + ttl",
        ),
    ),
    mutant(
        "extends-by-one",
        "One node is enough to extend.",
        "tenacious",
        500,
        (hold, "extend_many", "kept[place] >= policy.majority", "kept[place] >= 1"),
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
        (hold, "_over", "if now >= lease.grant.deadline", "if False"),
        (hold, "extend_many", " and now < leases[i].grant.deadline", ""),
        (hold, "_outcome", "if now >= grant.deadline:", "if False:"),
        (MemoryNode, "_prolong", nodes.taking_again),
    ),
)

"""Broken variants of the production code, as edits of its source; the worlds must catch each.

An edit replaces a text that occurs exactly once in a function, so a mutant that no longer fits
the code fails loudly instead of testing nothing.
"""

from __future__ import annotations

import inspect
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

from django_redlock import algorithm
from django_redlock.protocol import Policy
from django_redlock.testing.memory import MemoryNode

from . import profile
from .checker import Violation
from .client import Client
from .network import SimNode
from .world import World


@dataclass(frozen=True, slots=True)
class Edit:
    """In the function ``name`` of ``owner``, ``old`` becomes ``new``."""

    owner: Any
    name: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Mutant:
    """A broken rule.

    Attributes:
        breaks: the rule, in words.
        profile: the kind of worlds that shows it.
        worlds: in how many of them it must be caught at the latest.
    """

    name: str
    breaks: str
    profile: str
    worlds: int
    edits: tuple[Edit, ...]


@contextmanager
def broken(mutant: Mutant) -> Iterator[None]:
    """Run the block with the edited functions in the places of the real ones."""
    sources: dict[tuple[Any, str], str] = {}
    for edit in mutant.edits:
        place = edit.owner, edit.name
        source = sources.get(place) or _source(vars(edit.owner)[edit.name])
        if source.count(edit.old) != 1:
            raise LookupError(f"{edit.name} has {source.count(edit.old)} times: {edit.old}")
        sources[place] = source.replace(edit.old, edit.new)
    with ExitStack() as stack:
        for (owner, name), source in sources.items():
            original = vars(owner)[name]
            setattr(owner, name, _compiled(name, source, original))
            stack.callback(setattr, owner, name, original)
        yield


def _function(original: Any) -> Any:
    return original.fget if isinstance(original, property) else original


def _source(original: Any) -> str:
    return textwrap.dedent(inspect.getsource(_function(original)))


def _compiled(name: str, source: str, original: Any) -> Any:
    code = compile(source, f"<mutant of {name}>", "exec")  # annotations as in this module
    made: dict[str, Any] = {}
    exec(code, vars(sys.modules[_function(original).__module__]), made)  # noqa: S102 - our source
    return made[name]


def hunt(mutant: Mutant, *, worlds: int, first: int = 0) -> tuple[int, Violation] | None:
    """After how many worlds the mutant was caught, and how; None: it was not."""
    with broken(mutant):
        for count in range(1, worlds + 1):
            try:
                World(first + count - 1, profile(mutant.profile)).run()
            except Violation as violation:
                return count, violation
    return None


def _mutant(name: str, breaks: str, where: str, worlds: int, *edits: tuple[Any, ...]) -> Mutant:
    return Mutant(name, breaks, where, worlds, tuple(Edit(*edit) for edit in edits))


TAKES_AGAIN: Final = """\
for key in keys[1:]:
        if self.get(key) is None:
            self._set(key, f"{nonce}:0:", ttl)
    if not all(self._mine(key, f"{nonce}:") for key in keys[1:]):"""

MUTANTS: Final = (
    # -- votes and majorities -------------------------------------------------------------------
    _mutant(
        "half-is-enough",
        "a majority is N // 2 + 1",
        "contended",
        10,
        (Policy, "majority", "self.size // 2 + 1", "max(1, self.size // 2)"),
    ),
    _mutant(
        "lost-is-yes",
        "a lost vote is never counted",
        "rough",
        10,
        (algorithm, "_token", "is Answer.YES}", "is not Answer.NO}"),
        (algorithm, "_token", "agreeing + count(raised).yes", "policy.size - count(raised).no"),
    ),
    _mutant(
        "some-names",
        "all names or none",
        "crowded",
        30,
        (MemoryNode, "_grant", "in enumerate(locks):", "in enumerate(locks[:1]):"),
    ),
    # -- the lease ------------------------------------------------------------------------------
    _mutant(
        "late-lease",
        "the lease counts from before the first message",
        "rough",
        60,
        (algorithm, "attempt", "deadline = start +", "deadline = policy.clock() +"),
    ),
    _mutant(
        "no-second-look",
        "the lease is checked again after the votes",
        "rough",
        40,
        (algorithm, "attempt", " and policy.clock() < deadline", ""),
    ),
    _mutant(
        "no-drift",
        "a lease is shorter by what clocks may run apart",
        "expiring",
        40,
        (Policy, "validity", " - (ttl * self.drift + LEAST_DRIFT)", ""),
    ),
    _mutant(
        "late-extension",
        "an extension, too, counts from before its first message",
        "tenacious",
        1000,
        (algorithm, "extend", "deadline, start + policy", "deadline, policy.clock() + policy"),
    ),
    _mutant(
        "shortening",
        "extend never shortens on a node",
        "tenacious",
        400,
        (MemoryNode, "_extend", "if 0 <= self.pttl(key) < ttl:", "if True:"),
    ),
    _mutant(
        "shortened-belief",
        "extend never shortens a lease",
        "rough",
        10,
        (algorithm, "extend", "max(grant.deadline, start + policy.validity(ttl))", "start + ttl"),
    ),
    _mutant(
        "extends-by-one",
        "extend needs a majority",
        "tenacious",
        300,
        (algorithm, "extend", "if yes >= policy.majority:", "if yes >= 1:"),
    ),
    _mutant(
        "revives",
        "extend does not take a lost name again (FM-8)",
        "rough",
        30,
        (algorithm, "extend", "if start >= grant.deadline:", "if False:"),
        (algorithm, "extend", "if policy.clock() >= grant.deadline:", "if False:"),
        (
            MemoryNode,
            "_extend",
            'if not all(self._mine(key, f"{nonce}:") for key in keys[1:]):',
            TAKES_AGAIN,
        ),
    ),
    # -- values and undoing ---------------------------------------------------------------------
    _mutant(
        "one-value",
        "a fresh nonce for every attempt (FM-5)",
        "rough",
        20,
        (algorithm, "attempt", "policy.nonce()", "f'{ord(label[1]):032x}'"),
    ),
    _mutant(
        "deletes-anything",
        "release compares",
        "rough",
        10,
        (MemoryNode, "_release", 'self._mine(lock, f"{nonce}:")', "self.get(lock) is not None"),
    ),
    _mutant(
        "rests-anything",
        "resting compares",
        "tenacious",
        600,
        (MemoryNode, "_rest", 'self._mine(key, f"{nonce}:")', "self.get(key) is not None"),
        (
            MemoryNode,
            "_rest",
            "match = VALUE.fullmatch(self.keys[key][0])",
            "match, rest = None, 1",
        ),
    ),
    _mutant(
        "leaves-failures",
        "a failed attempt is undone (FM-5)",
        "calm",
        10,
        (algorithm, "attempt", "if (touched or word) and not", "if word and not"),
        (algorithm, "attempt", "elif touched:", "elif False:"),
    ),
    _mutant(
        "forgets-the-silent",
        "silent nodes are asked to undo, too",
        "rough",
        10,
        (
            algorithm,
            "attempt",
            "vote.sent and vote.answer is not Answer.NO",
            "vote.answer is Answer.YES",
        ),
    ),
    _mutant(
        "releases-a-majority",
        "a release goes to every node that may hold",
        "calm",
        20,
        (algorithm, "hand_over", "policy.everyone()", "frozenset(range(policy.majority))"),
        (
            algorithm,
            "release",
            "grant.touched",
            "frozenset(sorted(grant.touched)[: policy.majority])",
        ),
    ),
    _mutant(
        "deaf-to-cancel",
        "an interrupted attempt is undone",
        "rough",
        10,
        (
            algorithm,
            "attempt",
            "yield undo(policy, target, nonce, policy.everyone() if word else touched)",
            "raise",
        ),
    ),
    _mutant(
        "believes-while-releasing",
        "belief ends before the release is written",
        "rough",
        10,
        (
            Client,
            "_release",
            "    self.world.checker.ended(belief)\n",
            "",
        ),
    ),
    _mutant(
        "same-nonce-adopted",
        "adopting swaps the nonce for a fresh one",
        "handovers",
        10,
        (algorithm, "attempt", "policy.nonce()", "old or policy.nonce()"),
    ),
    _mutant(
        "adopts-anything",
        "only a node that still has the old nonce swaps it",
        "handovers",
        10,
        (MemoryNode, "_grant", 'not value.startswith(f"{old}:")', "False"),
    ),
    # -- what refusals say ----------------------------------------------------------------------
    _mutant(
        "hasty-refusal",
        "a name that is held is not reported as an outage (FM-4)",
        "calm",
        10,
        (algorithm, "granted_or_not", "return hopeless and", "return hopeless or"),
    ),
    _mutant(
        "hasty-extension",
        "a lease that a majority denies is lost, not unknown",
        "calm",
        20,
        (algorithm, "kept_or_not", "no >= majority", "no >= 1"),
    ),
    # -- restarts -------------------------------------------------------------------------------
    _mutant(
        "no-guard",
        "a restarted node has no vote until all it may have forgotten is over",
        "restarts",
        40,
        (SimNode, "guard", "self.world.profile.guard", "0.001"),
    ),
    _mutant(
        "no-epoch",
        "an emptied node has no vote either",
        "restarts",
        80,
        (
            MemoryNode,
            "_grant",
            '"epoch" not in self.fences or args[-1] != str(self.fences["epoch"])',
            "False",
        ),
        (SimNode, "votes", ' and "epoch" in self.memory.fences', ""),
    ),
    _mutant(
        "no-clamp",
        "a wall clock far ahead is not believed",
        "ahead",
        100,
        (MemoryNode, "_grant", "min(wish, int(now * 1000) + slack)", "wish"),
    ),
    # -- fencing --------------------------------------------------------------------------------
    _mutant(
        "counters-stand-still",
        "a grant remembers its number",
        "wishless",
        10,
        (MemoryNode, "_grant", "self.fences[field] = number", "pass"),
    ),
    _mutant(
        "first-counter-only",
        "several names: every counter is passed",
        "wishless",
        120,
        (MemoryNode, "_grant", "for field in fields)", "for field in fields[:1])"),
    ),
    _mutant(
        "no-raise",
        "the largest number is a token only when a majority acknowledged it",
        "wishless",
        20,
        (
            algorithm,
            "_token",
            "if agreeing >= policy.majority:",
            "token = max(numbers.values())\n    if True:",
        ),
    ),
    _mutant(
        "any-number",
        "a number that one node gave is no token",
        "wishless",
        20,
        (algorithm, "_token", "if agreeing >= policy.majority:", "if agreeing >= 1:"),
    ),
    _mutant(
        "smallest-number",
        "a node that gave more than the token did not acknowledge it",
        "wishless",
        20,
        (algorithm, "_token", "token = max(", "token = min("),
    ),
    _mutant(
        "unheard-raise",
        "raises that were not acknowledged do not count",
        "wishless",
        200,
        (algorithm, "_token", "acknowledged >= policy.majority", "acknowledged >= 1"),
    ),
    _mutant(
        "raise-without-lifting",
        "a raise lifts the counter",
        "wishless",
        60,
        (
            MemoryNode,
            "_raise",
            "max(self.fences.get(field, 0), token)",
            "self.fences.get(field, 0)",
        ),
    ),
    _mutant(
        "raise-without-compare",
        "a raise is acknowledged only by the tenancy it is for",
        "clockless",
        100,
        (MemoryNode, "_raise", "number > token or not all", "False and not all"),
    ),
    _mutant(
        "still-mine",
        "a raise is acknowledged by the grant's number, not by the nonce alone",
        "clockless",
        1500,
        (MemoryNode, "_raise", "number > token or not", "not"),
        (MemoryNode, "_raise", 'f"{nonce}:{number}:"', 'f"{nonce}:"'),
    ),
)

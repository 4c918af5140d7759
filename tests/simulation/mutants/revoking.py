"""Broken variants of taking a lock away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from django_redlock.core.commands import Extension, Heal, Revoke
from django_redlock.core.protocol import Steps
from django_redlock.inspection import revoke as taking_away
from django_redlock.inspection.revoke import Revoked
from django_redlock.nodes.memory import MemoryNode, owner_of

from .edits import mutant

Revokes: TypeAlias = Callable[[MemoryNode, Revoke], list[object]]


def looking_at_the_name_alone(real: Revokes) -> Revokes:
    """Take the name away from its holder at this moment, seen or not."""

    def revoke(self: MemoryNode, ask: Revoke) -> list[object]:
        value = self.get(ask.target.keys[0])
        return real(self, ask if value is None else replace(ask, owner=owner_of(value)))

    return revoke


def deleting_the_key(real: Revokes) -> Revokes:
    """Leave nothing that keeps the name taken."""
    return lambda self, ask: real(self, replace(ask, now=True))


def reviving(self: MemoryNode, keys: Sequence[str], nonce: str) -> None:
    """Give keys that were revoked from a nonce back to it."""
    for key in keys:
        if self._revoked(key, nonce) is not None:
            self.keys[key] = (f"{nonce}:0:revived", self.keys[key][1])


def extending_what_was_revoked(real: Callable[[MemoryNode, Extension], int]) -> Any:
    """Take a revoked key for the lease's own."""

    def prolong(self: MemoryNode, lease: Extension) -> int:
        reviving(self, lease.target.keys, lease.nonce)
        return real(self, lease)

    return prolong


def calling_it_free(real: Callable[[MemoryNode, Sequence[str], str], bool]) -> Any:
    """Say that a name is free which was revoked from the one who asks."""

    def free_or_mine(self: MemoryNode, keys: Sequence[str], nonce: str) -> bool:
        others = [key for key in keys if self._revoked(key, nonce) is None]
        return real(self, others, nonce)

    return free_or_mine


def healing_what_was_revoked(real: Callable[[MemoryNode, Heal, object], list[object]]) -> Any:
    """Put a lease back in the place of its revoked keys."""

    def heal(self: MemoryNode, ask: Heal, epoch: object = "") -> list[object]:
        reviving(self, ask.target.keys, ask.nonce)
        return real(self, ask, epoch)

    return heal


def counting_any_node(real: Callable[..., Steps[Revoked]]) -> Callable[..., Steps[Revoked]]:
    """Say that it is done when one node has done it."""

    def taking(*given: Any, **more: Any) -> Steps[Revoked]:
        found = yield from real(*given, **more)
        return found._replace(done=found.on > 0)

    return taking


REVOKING: Final = (
    mutant(
        "revokes-by-name",
        "A name is taken away from its next holder, whom nobody has seen.",
        "revoked",
        20,
        (MemoryNode, "_revoke", looking_at_the_name_alone),
    ),
    mutant(
        "deletes-by-name",
        "With `--now`, too: the next holder's key is deleted.",
        "deleted",
        60,
        (MemoryNode, "_revoke", looking_at_the_name_alone),
    ),
    mutant(
        "revokes-by-deleting",
        "The key is deleted, without `--now`.",
        "revoked",
        40,
        (MemoryNode, "_revoke", deleting_the_key),
    ),
    mutant(
        "renewal-revives",
        "A renewal that comes later makes the lock its holder's again.",
        "revoked-and-renewed",
        300,
        (MemoryNode, "_prolong", extending_what_was_revoked),
    ),
    mutant(
        "heal-revives",
        "A node takes a revoked name for a free one, and a heal puts the lease back.",
        "revoked-and-renewed",
        300,
        (MemoryNode, "_first_revoked", lambda _: lambda *_: None),
        (MemoryNode, "_free_or_mine", calling_it_free),
        (MemoryNode, "_heal", healing_what_was_revoked),
    ),
    mutant(
        "minority-revokes",
        "One node that has done it counts as success.",
        "revoked-and-renewed",
        400,
        (taking_away, "taking", counting_any_node),
    ),
)

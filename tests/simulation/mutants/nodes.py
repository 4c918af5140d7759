"""Nodes in memory that behave otherwise; each takes the real method and returns another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias
from unittest import mock

from django_redlock.core.commands import Acquire, Extension, Look, Raise, Release, Rest, Return
from django_redlock.core.slots import label_with
from django_redlock.nodes.memory import NEXT, MemoryNode

Reply: TypeAlias = list[object]
Grants: TypeAlias = Callable[[MemoryNode, Acquire, object], Reply]
Raises: TypeAlias = Callable[[MemoryNode, Raise, int], Reply]


def looking_at_the_first_name(real: Grants) -> Grants:
    """Look at the first of several names, and write all."""

    def grant(self: MemoryNode, ask: Acquire, epoch: object = "") -> Reply:
        parts = ("entries", "keys", "fields", "queue_nodes")
        first = ask.target._replace(**{each: getattr(ask.target, each)[:1] for each in parts})
        reply = real(self, replace(ask, target=first), epoch)
        if reply[0] == "GRANTED":
            target, number = ask.target, int(str(reply[1]))
            for key, field, name in zip(target.keys, target.fields, target.entries, strict=True):
                self.fences[str(field)] = number
                self._set(
                    key, f"{ask.nonce}:{number}:{label_with(ask.label, target.slot)}", ask.ttl
                )
                self.held[name] = int(self.clock()) + ask.ttl
        return reply

    return grant


def writing_as_it_goes(real: Grants) -> Grants:
    """Take the names before one that is refused."""

    def grant(self: MemoryNode, ask: Acquire, epoch: object = "") -> Reply:
        reply = real(self, ask, epoch)
        if reply[0] in {"HELD", "DONE"} and not ask.old:
            for key in ask.target.keys[: int(str(reply[-1]))]:
                if self.get(key) is None:
                    self._set(key, f"{ask.nonce}:0:{ask.label}", ask.ttl)
        return reply

    return grant


def believing_any_clock(real: Grants) -> Grants:
    """Give the number that was wished for, however far in the future it is."""

    def grant(self: MemoryNode, ask: Acquire, epoch: object = "") -> Reply:
        return real(self, replace(ask, slack=10**18), epoch)

    return grant


def noting_no_waiter(real: Grants) -> Grants:
    """Do not note that a name has a waiter."""

    def grant(self: MemoryNode, ask: Acquire, epoch: object = "") -> Reply:
        return real(self, replace(ask, waits=0), epoch)

    return grant


def looking_only(_: object) -> Callable[[MemoryNode, Look], Reply]:
    """Answer a look, and do not note that the name has a waiter."""
    return lambda self, ask: ["LOOKED", self.pttl(ask.target.keys[ask.which])]


def granting_what_is_reserved(real: Grants) -> Grants:
    """Say that a name was granted which is reserved for a woken waiter."""

    def grant(self: MemoryNode, ask: Acquire, epoch: object = "") -> Reply:
        reply = real(self, ask, epoch)
        return ["GRANTED", "1"] if _refused_for_reservation(self, ask, reply) else reply

    return grant


def reserving_for_longer(real: Grants) -> Grants:
    """Reserve a name for longer whenever somebody asks for it."""

    def grant(self: MemoryNode, ask: Acquire, epoch: object = "") -> Reply:
        reply = real(self, ask, epoch)
        if key := _refused_for_reservation(self, ask, reply):
            self._set(key, NEXT, 2000)
        return reply

    return grant


def _refused_for_reservation(node: MemoryNode, ask: Acquire, reply: Reply) -> str:
    """Return the key for which a grant was refused if it is reserved; else ""."""
    key = ask.target.keys[int(str(reply[-1]))] if reply[0] == "HELD" else ""
    return key if node.get(key) == NEXT else ""


def raising_nothing(real: Raises) -> Raises:
    """Acknowledge a raise, and leave the counters as they are."""

    def raise_(self: MemoryNode, ask: Raise, number: int) -> Reply:
        counters = dict(self.fences)
        reply = real(self, ask, number)
        self.fences = counters
        return reply

    return raise_


def raising_anything(_: object) -> Raises:
    """Raise the counters of names that somebody else has."""
    return _lift


def raising_any_grant(_: object) -> Raises:
    """Raise the counters of names that have the nonce, by whichever grant."""

    def raise_(self: MemoryNode, ask: Raise, number: int) -> Reply:
        mine = all(self._mine(key, f"{ask.nonce}:") for key in ask.target.keys)
        return _lift(self, ask, number) if mine else ["GONE"]

    return raise_


def _lift(self: MemoryNode, ask: Raise, _: int) -> Reply:
    for field in map(str, ask.target.fields):
        self.fences[field] = max(self.fences.get(field, 0), ask.token)
    return ["RAISED", str(ask.token)]


def taking_again(
    real: Callable[[MemoryNode, Extension], int],
) -> Callable[[MemoryNode, Extension], int]:
    """Take names that are gone, and extend them then."""

    def prolong(self: MemoryNode, lease: Extension) -> int:
        for key in lease.target.keys:
            if self.get(key) is None:
                self._set(key, f"{lease.nonce}:0:", lease.ttl)
        return real(self, lease)

    return prolong


def returning_anything(_: object) -> Callable[[MemoryNode, Return], Reply]:
    """Give the giver's nonce to whatever has the name."""

    def give_back(self: MemoryNode, ask: Return) -> Reply:
        for key in ask.target.keys:
            if self.get(key) is not None:
                value, expiry = self.keys[key]
                self.keys[key] = ask.old + value[len(ask.nonce) :], expiry
        return ["RETURNED", ask.count]

    return give_back


def resting_anything(_: object) -> Callable[[MemoryNode, Rest], Reply]:
    """Replace whatever has the name, for a millisecond."""

    def rest(self: MemoryNode, ask: Rest) -> Reply:
        for key, name in zip(ask.target.keys, ask.target.entries, strict=True):
            if self.get(key) is not None:
                self._set(key, "rest::", 1)
                self.held[name] = int(self.clock()) + 1
        return ["RESTING", ask.count]

    return rest


def standing_still(real: Grants) -> Grants:
    """Do not remember the number of a grant."""

    def grant(self: MemoryNode, ask: Acquire, epoch: object = "") -> Reply:
        counters = dict(self.fences)
        reply = real(self, ask, epoch)
        self.fences = counters
        return reply

    return grant


def shortening(_: object) -> Callable[[MemoryNode, Extension], int]:
    """Let a key expire by the extension's ttl, although it would have lasted for longer."""

    def prolong(self: MemoryNode, lease: Extension) -> int:
        target = lease.target
        if not all(self._mine(key, f"{lease.nonce}:") for key in target.keys):
            return 0
        for key, name in zip(target.keys, target.entries, strict=True):
            self._set(key, self.keys[key][0], lease.ttl)
            self.held[name] = int(self.clock()) + lease.ttl
        return 1

    return prolong


def releasing(
    is_mine: Callable[[str, str], bool],
) -> Callable[[Callable[[MemoryNode, Release], Reply]], Callable[[MemoryNode, Release], Reply]]:
    """Free a key if ``is_mine`` says so of its value and of the nonce."""

    def make(
        real: Callable[[MemoryNode, Release], Reply],
    ) -> Callable[[MemoryNode, Release], Reply]:
        def release(self: MemoryNode, ask: Release) -> Reply:
            def mine(key: str, _: str) -> bool:
                value = self.get(key)
                return value is not None and is_mine(value, ask.nonce)

            with mock.patch.object(self, "_mine", mine):
                return real(self, ask)

        return release

    return make


def passing_the_first_counter(real: Grants) -> Grants:
    """Give a number above the first name's counter, whatever those of the others are."""

    def grant(self: MemoryNode, ask: Acquire, epoch: object = "") -> Reply:
        counters, first = dict(self.fences), str(ask.target.fields[0])
        for field in map(str, ask.target.fields):
            if field != first:
                self.fences.pop(field, None)
        reply = real(self, ask, epoch)
        self.fences = counters | self.fences
        return reply

    return grant


def waking_for_our_own(
    real: Callable[[MemoryNode, Release], Reply],
) -> Callable[[MemoryNode, Release], Reply]:
    """Wake the next waiter only where the key still has the nonce."""

    def release(self: MemoryNode, ask: Release) -> Reply:
        ours = any(self._mine(key, f"{ask.nonce}:") for key in ask.target.keys)
        return real(self, ask if ours else replace(ask, wake=()))

    return release


def believing_the_uptime(real: Callable[..., Reply]) -> Callable[..., Reply]:
    """Admit a node by its uptime when it is seen for the first time."""

    def admit(self: MemoryNode, guard: int, uptime: int, epoch: int | None) -> Reply:
        if epoch is not None and not {"epoch", "empty"} & self.fences.keys():
            self.fences["empty"] = int(self.clock()) - uptime
        return real(self, guard, uptime, epoch)

    return admit

"""A node in memory: the meaning of the scripts over a dictionary with a clock.

It is held against the real Lua by a test that runs both side by side. It carries the
simulator, the fast contract tests, and ``memory://NAME`` in settings: one process only.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from django_redlock.core.commands import ANYBODYS
from django_redlock.core.protocol import WITH_EPOCH, LockKeys, Request
from django_redlock.interruption import drain

from . import listing
from .listing import latest
from .values import DONE, MARK, NEXT, RUN, WAKEUP, digest, label_in, owner_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from django_redlock.core.commands import (
        Acquire,
        Claim,
        Complete,
        Extend,
        Extension,
        Heal,
        Index,
        Look,
        Mark,
        Memory,
        Raise,
        Release,
        Rest,
        Return,
        Survey,
        Tasks,
        Unmark,
    )


class MemoryNode:
    """One master without a network.

    Attributes:
        clock: milliseconds since 1970 on the node's own clock; may be set.
        keys: what is stored: key -> (value, expiry in milliseconds or None).
        fences: the counters, by field; "epoch" is there when the node was admitted, "empty" when
            a client missed it before.
        held, marks, records: the indexes of names, by expiry.
        waits: names with waiters, by the time when that is old news.
        wakeups: what lies in the queues: queue -> (wakeup, expiry).
        blocked: the waiters in the queues, in order: told a wake-up, each says if it takes it.
    """

    def __init__(self, clock: Callable[[], float] = lambda: time.time() * 1000) -> None:
        self.clock = clock
        self.keys: dict[str, tuple[str, float | None]] = {}
        self.fences: dict[str, int] = {"epoch": 0}
        self.held: dict[str, float] = {}
        self.marks: dict[str, float] = {}
        self.records: dict[str, float] = {}
        self.waits: dict[str, float] = {}
        self.wakeups: dict[str, tuple[str, float]] = {}
        self.blocked: dict[str, list[Callable[[str], bool]]] = {}

    def eval(self, ask: Request, last: int | None = None) -> list[object]:
        """Answer a request as the script on a real node would."""
        if last is None and ask.command in WITH_EPOCH:
            last = self.fences.get("epoch")  # the asker's connection was admitted
        carry_out: Callable[..., list[object]] = getattr(self, f"_{ask.command.value}")
        more = () if last is None else (last,)
        reply = [ask.nonce, *carry_out(ask, *more)]
        return [item.encode() if isinstance(item, str) else item for item in reply]

    def admit(self, guard: int, uptime: int, epoch: int | None) -> list[object]:
        """Answer a new connection as the script on a real node would; None: who only looks."""
        if "epoch" in self.fences:
            return ["ADMITTED", 0, str(self.fences["epoch"])]
        if epoch is None and "empty" not in self.fences:
            return ["ADMITTED", -1, ""]
        now = int(self.clock())
        since = self.fences.get("empty", now)
        since = min(since, now)
        if now - uptime > since + 1000:
            since = now - uptime
        if epoch is not None:
            self.fences["empty"] = since
        if now - since < guard:
            return ["ADMITTED", since + guard - now, ""]
        if epoch is None:
            return ["ADMITTED", 0, ""]
        self.fences["epoch"] = epoch
        return ["ADMITTED", 0, str(epoch)]

    def _was_emptied(self, epoch: object) -> bool:
        """Tell whether it lost its keys after a connection with this epoch was admitted."""
        return "epoch" not in self.fences or str(epoch) != str(self.fences["epoch"])

    # -- a dictionary with expiry ---------------------------------------------------------------

    def get(self, key: str) -> str | None:
        """The value of a key that has not expired."""
        now = self.clock()
        if key not in self.keys:  # no call from here on: a signal handler may lock, too
            return None
        value, expiry = self.keys[key]
        if expiry is not None and now >= expiry:
            del self.keys[key]
            return None
        return value

    def pttl(self, key: str) -> int:
        """Milliseconds left; -1 without expiry, -2 without key."""
        value, now = self.get(key), self.clock()
        if value is None or key not in self.keys:
            return -2
        expiry = self.keys[key][1]
        return -1 if expiry is None else round(expiry - now)

    def _set(self, key: str, value: str, px: int) -> None:
        self.keys[key] = (value, self.clock() + px)

    # -- the scripts ----------------------------------------------------------------------------

    def _grant(self, ask: Acquire, epoch: object = "") -> list[object]:
        target = ask.target
        if self._was_emptied(epoch):
            return ["EMPTY"]
        woken = WAKEUP.fullmatch(ask.opener)
        private, wakeup = (int(woken[1]), woken[2]) if woken else (0, "")
        for which, key in enumerate(target.keys):
            value = self.get(key)
            if ask.old and value is None:
                return ["GONE"]
            opener = wakeup if which >= private else ""
            if value is not None and not _yields(value, ask.old, opener):
                if ask.waits:
                    self.waits[target.names[which]] = int(self.clock()) + ask.waits
                refused = "DONE" if DONE.fullmatch(value) else "HELD"
                return [refused, self.pttl(key), label_in(value), owner_of(value), which]
        now, fields = self.clock(), [str(field) for field in target.fields]
        number = max(
            min(ask.wish, int(now * 1000) + ask.slack),
            *(self.fences.get(field, 0) + 1 for field in fields),
        )
        self.held = {name: due for name, due in self.held.items() if due > int(now)}
        for key, field, name in zip(target.keys, fields, target.names, strict=True):
            self.fences[field] = number
            self._set(key, f"{ask.nonce}:{number}:{ask.label}", ask.ttl)
            self.held[name] = int(now) + ask.ttl
        return ["GRANTED", str(number)]

    def _raise(self, ask: Raise, number: int) -> list[object]:
        beginning = f"{ask.nonce}:{number}:"
        if number > ask.token or not all(self._mine(key, beginning) for key in ask.target.keys):
            return ["GONE"]
        for field in map(str, ask.target.fields):
            self.fences[field] = max(self.fences.get(field, 0), ask.token)
        return ["RAISED", str(ask.token)]

    def _extend(self, ask: Extend) -> list[object]:
        kept: list[int] = []
        free: list[int] = []
        for lease in ask.leases:
            prolonged = self._prolong(lease)
            if not prolonged and self._free_or_mine(lease.target.keys, lease.nonce):
                free.append(len(kept))
            kept.append(prolonged)
        return ["KEPT", kept, free]

    def _prolong(self, lease: Extension) -> int:
        keys, ttl = lease.target.keys, lease.ttl
        if not all(self._mine(key, f"{lease.nonce}:") for key in keys):
            return 0
        for key, name in zip(keys, lease.target.names, strict=True):
            if 0 <= self.pttl(key) < ttl:
                self._set(key, self.keys[key][0], ttl)
                self.held[name] = int(self.clock()) + ttl
        return 1

    def _heal(self, ask: Heal, epoch: object = "") -> list[object]:
        target = ask.target
        if self._was_emptied(epoch):
            return ["EMPTY"]
        if not self._free_or_mine(target.keys, ask.nonce):
            return ["GONE"]
        fields = map(str, target.fields)
        for key, field, name in zip(target.keys, fields, target.names, strict=True):
            self.fences[field] = max(self.fences.get(field, 0), ask.fence)
            value = self.get(key)
            if value is None or 0 <= self.pttl(key) < ask.ttl:
                self._set(key, value or f"{ask.nonce}:{ask.fence}:{ask.label}", ask.ttl)
                self.held[name] = int(self.clock()) + ask.ttl
        return ["HEALED", ask.count]

    def _release(self, ask: Release) -> list[object]:
        target, nonce = ask.target, ask.nonce
        outcome, woken = "GONE", 0
        rows = zip(target.keys, target.queues, target.names, ask.flags, strict=True)
        for lock, queue, name, flag in rows:
            waited = self.waits.get(name, 0) > int(self.clock())
            if self._mine(lock, f"{nonce}:"):
                self.keys.pop(lock, None)
                if waited and ask.reserve and flag != "2":
                    self._set(lock, NEXT, ask.reserve)
                self.held.pop(name, None)
                outcome = "FREED"
            if waited and flag != "0":
                woken += 1
                self._push(queue, nonce, max(self.pttl(lock), 1000))
        return [outcome, woken]

    def _mark(self, ask: Mark) -> list[object]:
        mark, task_id = ask.mark, ask.task_id
        found = MARK.fullmatch(self.get(mark) or "")
        owner, other = (digest(found[1]), found[2]) if found else ("", task_id)
        for key in ask.locks:
            found = RUN.search(self.get(key) or "")
            if found and found[1] == ask.task and other == task_id:
                owner, other = "", found[2]
        if other != task_id:
            return ["TAKEN", other, owner]
        self._set(mark, f"{ask.nonce}:{task_id}", ask.ttl)
        now = int(self.clock())
        self.marks = {name: due for name, due in self.marks.items() if due > now}
        self.marks[mark[len(ask.index) :]] = now + ask.ttl
        return ["MARKED", 1]

    def _unmark(self, ask: Unmark) -> list[object]:
        mark, whose, value = ask.mark, ask.whose, self.get(ask.mark)
        found = MARK.fullmatch(value or "")
        owner, task_id = found.groups() if found else ("", "")
        if value is None or not (
            whose == ANYBODYS or (task_id == whose if whose else owner == ask.nonce)
        ):
            return ["GONE"]
        self.keys.pop(mark, None)
        self.marks.pop(mark[len(ask.index) :], None)
        return ["UNMARKED", 1]

    def _look(self, ask: Look) -> list[object]:
        now, target = int(self.clock()), ask.target
        self.waits = {name: due for name, due in self.waits.items() if due > now}
        self.waits[target.names[ask.which]] = now + ask.waits
        return ["LOOKED", self.pttl(target.keys[ask.which])]

    def _rest(self, ask: Rest) -> list[object]:
        resting = 0
        for key, name in self._own(ask.target, ask.nonce):
            self._set(key, f"rest::{label_in(self.keys[key][0])}", ask.rest)
            self.held[name] = int(self.clock()) + ask.rest
            resting += 1
        return ["RESTING", resting] if resting else ["GONE"]

    def _return(self, ask: Return) -> list[object]:
        returned = 0
        for key, _ in self._own(ask.target, ask.nonce):
            value, expiry = self.keys[key]
            self.keys[key] = (ask.old + value[len(ask.nonce) :], expiry)
            returned += 1
        return ["RETURNED", returned] if returned else ["GONE"]

    def _complete(self, ask: Complete) -> list[object]:
        recorded = 0
        for key, name in self._own(ask.target, ask.nonce):
            self._set(key, f"done::{label_in(self.keys[key][0])}", ask.life)
            self.held.pop(name, None)
            self.records[name] = int(self.clock()) + ask.life
            recorded += 1
        self.records = latest(self.records, int(self.clock()))
        return ["RECORDED", recorded] if recorded else ["GONE"]

    def _claim(self, ask: Claim) -> list[object]:
        wakeup, expiry = self.wakeups.pop(ask.queue, ("", 0.0))
        return ["CLAIMED", wakeup if self.clock() < expiry else ""]

    # -- queues ---------------------------------------------------------------------------------

    def block(self, queue: str, take: Callable[[str], bool]) -> None:
        """Be given the wakeup of a queue: now, or when there is one, in order of arrival."""
        wakeup, expiry = self.wakeups.pop(queue, ("", 0.0))
        if not wakeup or self.clock() >= expiry or not take(wakeup):
            self.blocked.setdefault(queue, []).append(take)

    def leave(self, queue: str, take: Callable[[str], bool]) -> None:
        """Be given it no more."""
        if take in self.blocked.get(queue, []):
            self.blocked[queue].remove(take)

    def _push(self, queue: str, wakeup: str, px: int) -> None:
        self.wakeups.pop(queue, None)
        blocked = self.blocked.get(queue, [])
        for take in drain(partial(blocked.pop, 0)):
            if take(wakeup):
                return
        self.wakeups[queue] = (wakeup, self.clock() + px)

    # -- reading, for the command and the pages ---------------------------------------------------

    def _survey(self, ask: Survey) -> list[object]:
        return listing.survey(self, ask)

    def _index(self, ask: Index, start: int) -> list[object]:
        return listing.index(self, ask, start)

    def _tasks(self, ask: Tasks, start: int = 0) -> list[object]:
        return listing.tasks(self, ask, start)

    def _memory(self, _: Memory) -> list[object]:
        return ["MEMORY", [0, b"noeviction", 0]]

    def _own(self, target: LockKeys, nonce: str) -> Iterator[tuple[str, str]]:
        """Yield the keys that have this nonce, with their names."""
        for key, name in zip(target.keys, target.names, strict=True):
            if self._mine(key, f"{nonce}:"):
                yield key, name

    def _free_or_mine(self, keys: Sequence[str], nonce: str) -> bool:
        values = [self.get(key) for key in keys]
        return all(value is None or value.startswith(f"{nonce}:") for value in values)

    def _mine(self, key: str, beginning: str) -> bool:
        value = self.get(key)
        return value is not None and value.startswith(beginning)


def _yields(value: str, old: str, wakeup: str) -> bool:
    """Return whether a key with this value goes to an attempt that adopts ``old`` or was woken."""
    return value.startswith(f"{old}:") if old else _free_with(wakeup, value)


def _free_with(wakeup: str, value: str) -> bool:
    """Return whether a value is free for an attempt that was woken by ``wakeup``."""
    return bool(wakeup) and (value == NEXT or value.startswith(f"{wakeup}:"))

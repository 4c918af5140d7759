"""A node in memory: the meaning of the scripts over a dictionary with a clock.

It is held against the real Lua by a test that runs both side by side. It carries the
simulator, the fast contract tests, and ``memory://NAME`` in settings: one process only.
"""

from __future__ import annotations

import hashlib
import re
import time
from itertools import islice
from typing import TYPE_CHECKING

from django_redlock.core.protocol import Command, Request

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

VALUE = re.compile(r"([0-9a-fA-F]+):(\d+):(?P<label>.*)", re.DOTALL)
NEXT = "next::"
RESTING = re.compile(r"rest::(?P<label>.*)", re.DOTALL)


class MemoryNode:
    """One master without a network.

    Attributes:
        clock: milliseconds since 1970 on the node's own clock; may be set.
        keys: what is stored: key -> (value, expiry in milliseconds or None).
        fences: the counters, by field; "epoch" is there when the node was admitted, "empty" when
            somebody missed it before.
        held: the index of names, by expiry.
        waits: names that somebody waits for, by the time when that is old news.
        wakeups: what lies in the queues: queue -> (wakeup, expiry).
        standing: who is blocked on them, in order; told the wakeup, says whether it is taken.
    """

    def __init__(self, clock: Callable[[], float] = lambda: time.time() * 1000) -> None:
        self.clock = clock
        self.keys: dict[str, tuple[str, float | None]] = {}
        self.fences: dict[str, int] = {"epoch": 0}
        self.held: dict[str, float] = {}
        self.waits: dict[str, float] = {}
        self.wakeups: dict[str, tuple[str, float]] = {}
        self.standing: dict[str, list[Callable[[str], bool]]] = {}

    def eval(self, ask: Request, last: int | None = None) -> list[object]:
        """Answer a question as the script on a real node would."""
        if last is None and ask.command is Command.GRANT:
            last = self.fences.get("epoch")  # the asker is one who was admitted
        args = [str(arg) for arg in ask.args] + ([] if last is None else [str(last)])
        answer: list[object] = getattr(self, f"_{ask.command.value}")(ask.nonce, ask.keys, args)
        return [item.encode() if isinstance(item, str) else item for item in (ask.nonce, *answer)]

    def admit(self, guard: int, uptime: int, epoch: int) -> list[object]:
        """Answer whoever opens a connection as the script on a real node would."""
        if "epoch" in self.fences:
            return ["ADMITTED", 0, str(self.fences["epoch"])]
        now = int(self.clock())
        since = self.fences.get("empty", now)
        since = min(since, now)
        if now - uptime > since + 1000:
            since = now - uptime
        self.fences["empty"] = since
        if now - since < guard:
            return ["ADMITTED", since + guard - now, ""]
        self.fences["epoch"] = epoch
        return ["ADMITTED", 0, str(epoch)]

    # -- a dictionary with expiry ---------------------------------------------------------------

    def get(self, key: str) -> str | None:
        """The value of a key that has not expired."""
        value, expiry = self.keys.get(key, (None, None))
        if value is not None and expiry is not None and self.clock() >= expiry:
            del self.keys[key]
            return None
        return value

    def pttl(self, key: str) -> int:
        """Milliseconds left; -1 without expiry, -2 without key."""
        if self.get(key) is None:
            return -2
        expiry = self.keys[key][1]
        return -1 if expiry is None else round(expiry - self.clock())

    def _set(self, key: str, value: str, px: int) -> None:
        self.keys[key] = (value, self.clock() + px)

    # -- the scripts ----------------------------------------------------------------------------

    def _grant(self, nonce: str, keys: Sequence[str], args: list[str]) -> list[object]:
        wish, slack, ttl = int(args[0]), int(args[1]), int(args[2])
        label, old, wakeup, waits = args[3], args[4], args[5], int(args[6])
        locks, count = keys[3:], len(keys) - 3
        fields, names = args[7 : 7 + count], args[7 + count : 7 + 2 * count]
        if "epoch" not in self.fences or args[-1] != str(self.fences["epoch"]):
            return ["EMPTY"]
        for which, key in enumerate(locks):
            value = self.get(key)
            if old and value is None:
                return ["GONE"]
            if value is not None and not _yields(value, old, wakeup):
                if waits:
                    self.waits[names[which]] = int(self.clock()) + waits
                return ["HELD", self.pttl(key), _label(value), _owner(value), which]
        now = self.clock()
        number = max(
            min(wish, int(now * 1000) + slack),
            *(self.fences.get(field, 0) + 1 for field in fields),
        )
        self.held = {name: due for name, due in self.held.items() if due > int(now)}
        for key, field, name in zip(locks, fields, names, strict=True):
            self.fences[field] = number
            self._set(key, f"{nonce}:{number}:{label}", ttl)
            self.held[name] = int(now) + ttl
        return ["GRANTED", str(number)]

    def _raise(self, nonce: str, keys: Sequence[str], args: list[str]) -> list[object]:
        token, fields, number = int(args[0]), args[1:-1], int(args[-1])
        if number > token or not all(self._mine(key, f"{nonce}:{number}:") for key in keys[1:]):
            return ["GONE"]
        for field in fields:
            self.fences[field] = max(self.fences.get(field, 0), token)
        return ["RAISED", str(token)]

    def _extend(self, _: str, keys: Sequence[str], args: list[str]) -> list[object]:
        kept: list[int] = []
        locks, wakeups = iter(keys[1:]), iter(args)
        for nonce in wakeups:
            ttl, count = int(next(wakeups)), int(next(wakeups))
            names = list(islice(wakeups, count))
            kept.append(self._prolong(nonce, list(islice(locks, count)), names, ttl))
        return ["KEPT", kept]

    def _prolong(self, nonce: str, keys: list[str], names: list[str], ttl: int) -> int:
        if not all(self._mine(key, f"{nonce}:") for key in keys):
            return 0
        for key, name in zip(keys, names, strict=True):
            if 0 <= self.pttl(key) < ttl:
                self._set(key, self.keys[key][0], ttl)
                self.held[name] = int(self.clock()) + ttl
        return 1

    def _release(self, nonce: str, keys: Sequence[str], args: list[str]) -> list[object]:
        reserve, wake, names = int(args[0]), args[1], args[2:]
        told, woken = "GONE", 0
        locks, queues = keys[2 : 2 + len(names)], keys[2 + len(names) :]
        for lock, queue, name, flag in zip(locks, queues, names, wake, strict=True):
            waited = self.waits.get(name, 0) > int(self.clock())
            if self._mine(lock, f"{nonce}:"):
                del self.keys[lock]
                if waited and reserve:
                    self._set(lock, NEXT, reserve)
                self.held.pop(name, None)
                told = "FREED"
            if waited and flag == "1":
                woken += 1
                self._push(queue, nonce, max(self.pttl(lock), 1000))
        return [told, woken]

    def _look(self, _: str, keys: Sequence[str], args: list[str]) -> list[object]:
        now = int(self.clock())
        self.waits = {name: due for name, due in self.waits.items() if due > now}
        self.waits[args[1]] = now + int(args[0])
        return ["LOOKED", self.pttl(keys[1])]

    def _rest(self, nonce: str, keys: Sequence[str], args: list[str]) -> list[object]:
        rest, resting = int(args[0]), 0
        for key, name in zip(keys[1:], args[1:], strict=True):
            if self._mine(key, f"{nonce}:"):
                match = VALUE.fullmatch(self.keys[key][0])
                self._set(key, f"rest::{match[3] if match else ''}", rest)
                self.held[name] = int(self.clock()) + rest
                resting += 1
        return ["RESTING", resting] if resting else ["GONE"]

    def _return(self, nonce: str, keys: Sequence[str], args: list[str]) -> list[object]:
        returned = 0
        for key in keys:
            if self._mine(key, f"{nonce}:"):
                value, expiry = self.keys[key]
                self.keys[key] = (args[0] + value[len(nonce) :], expiry)
                returned += 1
        return ["RETURNED", returned] if returned else ["GONE"]

    def _claim(self, _: str, keys: Sequence[str], __: list[str]) -> list[object]:
        wakeup, expiry = self.wakeups.pop(keys[0], ("", 0.0))
        return ["CLAIMED", wakeup if self.clock() < expiry else ""]

    # -- queues ---------------------------------------------------------------------------------

    def stand(self, queue: str, take: Callable[[str], bool]) -> None:
        """Be given the wakeup of a queue: now, or when there is one, in order of arrival."""
        wakeup, expiry = self.wakeups.pop(queue, ("", 0.0))
        if not wakeup or self.clock() >= expiry or not take(wakeup):
            self.standing.setdefault(queue, []).append(take)

    def leave(self, queue: str, take: Callable[[str], bool]) -> None:
        """Be given it no more."""
        if take in self.standing.get(queue, []):
            self.standing[queue].remove(take)

    def _push(self, queue: str, wakeup: str, px: int) -> None:
        self.wakeups.pop(queue, None)
        standing = self.standing.get(queue, [])
        while standing:
            if standing.pop(0)(wakeup):
                return
        self.wakeups[queue] = (wakeup, self.clock() + px)

    def _survey(self, _: str, __: Sequence[str], args: list[str]) -> list[object]:
        prefix, limit, names = args[0], int(args[1]), args[2:]
        if not names:
            due = sorted((due, name) for name, due in self.held.items() if due >= self.clock())
            names = [name for _, name in due[:limit]]
        found = []
        for name in names:
            value = self.get(f"{prefix}{name}")
            if value not in (None, NEXT):
                match = VALUE.fullmatch(value)
                owner, number = match.groups()[:2] if match else (value, "")
                label = _label(value)
                digest = _digest(owner)
                left = self.pttl(f"{prefix}{name}")
                found.append(
                    [name.encode(), digest.encode(), left, number.encode(), label.encode()]
                )
        return ["FOUND", found, len(names)]

    def _index(self, _: str, __: Sequence[str], args: list[str]) -> list[object]:
        most, start = int(args[0]), max(int(self.clock()), int(args[1]))
        due = sorted((due, name) for name, due in self.held.items() if due >= start)
        after = int(due[most][0]) if len(due) > most else 0
        return ["LISTED", [name.encode() for _, name in due[:most]], after]

    def _memory(self, _: str, __: Sequence[str], ___: list[str]) -> list[object]:
        return ["MEMORY", [0, b"noeviction", 0]]

    def _mine(self, key: str, beginning: str) -> bool:
        value = self.get(key)
        return value is not None and value.startswith(beginning)


def _label(value: str) -> str:
    """The owner label of a lock or of a resting name; "" in a foreign value."""
    match = VALUE.fullmatch(value) or RESTING.fullmatch(value)
    return match["label"] if match else ""


def _owner(value: str) -> str:
    """What tells owners apart; "" where the name is reserved."""
    match = VALUE.fullmatch(value)
    return "" if value == NEXT else _digest(match[1] if match else value)


def _digest(owner: str) -> str:
    return hashlib.sha1(owner.encode(), usedforsecurity=False).hexdigest()[:16]


def _yields(value: str, old: str, wakeup: str) -> bool:
    """Whether a key with this value goes to who adopts from ``old``, or was woken by ``wakeup``."""
    return value.startswith(f"{old}:") if old else _free_with(wakeup, value)


def _free_with(wakeup: str, value: str) -> bool:
    """Whether a value is free for whoever has been woken by ``wakeup``; for nobody, without."""
    return bool(wakeup) and (value == NEXT or value.startswith(f"{wakeup}:"))

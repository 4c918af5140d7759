"""A node in memory: the meaning of the scripts over a dictionary with a clock.

It is held against the real Lua by a test that runs both side by side. It carries the
simulator, the fast contract tests, and ``memory://NAME`` in settings: one process only.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from django_redlock.core.protocol import Request
from django_redlock.interruption import drain
from django_redlock.transport.wire.replies import WITH_EPOCH

from . import listing
from .listing import latest
from .values import DONE, MARK, NEXT, RUN, VALUE, WAKEUP, digest, label_in, owner_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


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
        args = [str(arg) for arg in ask.args] + ([] if last is None else [str(last)])
        answer: list[object] = getattr(self, f"_{ask.command.value}")(ask.nonce, ask.keys, args)
        return [item.encode() if isinstance(item, str) else item for item in (ask.nonce, *answer)]

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

    def _was_emptied(self, epoch: str) -> bool:
        """Tell whether it lost its keys after a connection with this epoch was admitted."""
        return "epoch" not in self.fences or epoch != str(self.fences["epoch"])

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

    def _grant(self, nonce: str, keys: Sequence[str], args: list[str]) -> list[object]:
        wish, slack, ttl = int(args[0]), int(args[1]), int(args[2])
        label, old, waits = args[3], args[4], int(args[6])
        woken = WAKEUP.fullmatch(args[5])
        private, wakeup = (int(woken[1]), woken[2]) if woken else (0, "")
        locks, count = keys[3:], len(keys) - 3
        fields, names = args[7 : 7 + count], args[7 + count : 7 + 2 * count]
        if self._was_emptied(args[-1]):
            return ["EMPTY"]
        for which, key in enumerate(locks):
            value = self.get(key)
            if old and value is None:
                return ["GONE"]
            opener = wakeup if which >= private else ""
            if value is not None and not _yields(value, old, opener):
                if waits:
                    self.waits[names[which]] = int(self.clock()) + waits
                refused = "DONE" if DONE.fullmatch(value) else "HELD"
                return [refused, self.pttl(key), label_in(value), owner_of(value), which]
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
        free: list[int] = []
        locks, wakeups = iter(keys[1:]), iter(args)
        for nonce in wakeups:
            ttl, count = int(next(wakeups)), int(next(wakeups))
            names, mine = list(islice(wakeups, count)), list(islice(locks, count))
            prolonged = self._prolong(nonce, mine, names, ttl)
            if not prolonged and self._free_or_mine(mine, nonce):
                free.append(len(kept))
            kept.append(prolonged)
        return ["KEPT", kept, free]

    def _prolong(self, nonce: str, keys: list[str], names: list[str], ttl: int) -> int:
        if not all(self._mine(key, f"{nonce}:") for key in keys):
            return 0
        for key, name in zip(keys, names, strict=True):
            if 0 <= self.pttl(key) < ttl:
                self._set(key, self.keys[key][0], ttl)
                self.held[name] = int(self.clock()) + ttl
        return 1

    def _heal(self, nonce: str, keys: Sequence[str], args: list[str]) -> list[object]:
        fence, ttl, label = int(args[0]), int(args[1]), args[2]
        locks, count = keys[2:], len(keys) - 2
        fields, names = args[3 : 3 + count], args[3 + count : 3 + 2 * count]
        if self._was_emptied(args[-1]):
            return ["EMPTY"]
        if not self._free_or_mine(locks, nonce):
            return ["GONE"]
        for key, field, name in zip(locks, fields, names, strict=True):
            self.fences[field] = max(self.fences.get(field, 0), fence)
            value = self.get(key)
            if value is None or 0 <= self.pttl(key) < ttl:
                self._set(key, value or f"{nonce}:{fence}:{label}", ttl)
                self.held[name] = int(self.clock()) + ttl
        return ["HEALED", count]

    def _release(self, nonce: str, keys: Sequence[str], args: list[str]) -> list[object]:
        reserve, wake, names = int(args[0]), args[1], args[2:]
        told, woken = "GONE", 0
        locks, queues = keys[2 : 2 + len(names)], keys[2 + len(names) :]
        for lock, queue, name, flag in zip(locks, queues, names, wake, strict=True):
            waited = self.waits.get(name, 0) > int(self.clock())
            if self._mine(lock, f"{nonce}:"):
                self.keys.pop(lock, None)
                if waited and reserve and flag != "2":
                    self._set(lock, NEXT, reserve)
                self.held.pop(name, None)
                told = "FREED"
            if waited and flag != "0":
                woken += 1
                self._push(queue, nonce, max(self.pttl(lock), 1000))
        return [told, woken]

    def _mark(self, nonce: str, keys: Sequence[str], args: list[str]) -> list[object]:
        ttl, task, task_id = int(args[0]), args[1], args[2]
        index, mark, *locks = keys
        found = MARK.fullmatch(self.get(mark) or "")
        owner, other = (digest(found[1]), found[2]) if found else ("", task_id)
        for key in locks:
            found = RUN.search(self.get(key) or "")
            if found and found[1] == task and other == task_id:
                owner, other = "", found[2]
        if other != task_id:
            return ["TAKEN", other, owner]
        self._set(mark, f"{nonce}:{task_id}", ttl)
        now = int(self.clock())
        self.marks = {name: due for name, due in self.marks.items() if due > now}
        self.marks[mark[len(index) :]] = now + ttl
        return ["MARKED", 1]

    def _unmark(self, nonce: str, keys: Sequence[str], args: list[str]) -> list[object]:
        index, mark = keys
        if not (self._mine(mark, f"{nonce}:") or (args[0] and self.get(mark) is not None)):
            return ["GONE"]
        self.keys.pop(mark, None)
        self.marks.pop(mark[len(index) :], None)
        return ["UNMARKED", 1]

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

    def _complete(self, nonce: str, keys: Sequence[str], args: list[str]) -> list[object]:
        recorded = 0
        for key, name in zip(keys[1:], args[1:], strict=True):
            if self._mine(key, f"{nonce}:"):
                match = VALUE.fullmatch(self.keys[key][0])
                self._set(key, f"done::{match[3] if match else ''}", int(args[0]))
                self.held.pop(name, None)
                self.records[name] = int(self.clock()) + int(args[0])
                recorded += 1
        self.records = latest(self.records, int(self.clock()))
        return ["RECORDED", recorded] if recorded else ["GONE"]

    def _claim(self, _: str, keys: Sequence[str], __: list[str]) -> list[object]:
        wakeup, expiry = self.wakeups.pop(keys[0], ("", 0.0))
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

    def _survey(self, _: str, __: Sequence[str], args: list[str]) -> list[object]:
        return listing.survey(self, args)

    def _index(self, _: str, __: Sequence[str], args: list[str]) -> list[object]:
        return listing.index(self, args)

    def _tasks(self, _: str, keys: Sequence[str], args: list[str]) -> list[object]:
        return listing.tasks(self, keys[0], args)

    def _memory(self, _: str, __: Sequence[str], ___: list[str]) -> list[object]:
        return ["MEMORY", [0, b"noeviction", 0]]

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

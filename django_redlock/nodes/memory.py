"""Nodes in memory, ``memory://NAME``: the meaning of the scripts over a dictionary with a clock.

For tests and for trying things out, in one process. A test holds them against the real Lua by
running both side by side. They carry the simulator and the fast contract tests as well.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from django_redlock.core.commands import ANY_TASK
from django_redlock.core.protocol import WITH_EPOCH, Answer, LockKeys, Request, Vote, Wakeup
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.core.slots import entry_of, label_with
from django_redlock.interruption import Latch, drain

from .background import reset_in_child
from .node import NodeStatus
from .queue import Place, Waiters
from .replies import ANOTHER, vote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from django_redlock.core import commands
    from django_redlock.core.protocol import BlockOnNode


VALUE = re.compile(r"([0-9a-fA-F]+):(\d+):(?P<label>.*)", re.DOTALL)
NEXT = "next::"
MARK = re.compile(r"([0-9a-fA-F]+):([0-9]+):([A-Za-z0-9_.-]+)")
RUN = re.compile(r"\(([^():]+)\):([A-Za-z0-9_.-]+)\Z")  # at the end of a label
RESTING = re.compile(r"rest::(?P<label>.*)", re.DOTALL)
DONE = re.compile(r"done::(?P<label>.*)", re.DOTALL)
ONCE = re.compile(r"once::(?P<at>\d+):(?P<label>.*)", re.DOTALL)
RECORD = re.compile(r"done::.*\([^():]+\):([A-Za-z0-9_.-]+)", re.DOTALL)  # of a task
REVOKED = re.compile(r"revoked:([0-9a-f]{16}):(?P<label>.*)", re.DOTALL)
LONGEST_ID: Final = 64  # characters
INDEXES: Final = ("held", "marks", "records", "once")
LOST: Final = -1  # the epoch of a promoted replica that was not admitted yet: of no connection
MOST_RECORDS: Final = 10_000  # in the index of records
DOWN: Final = because(ReasonCode.DOWN)


# -- what a key holds -------------------------------------------------------------------------


def label_in(value: str) -> str:
    """Return the owner label of a lock or of a resting name; "" in a foreign value."""
    for kind in (VALUE, RESTING, DONE, ONCE, REVOKED):
        if match := kind.fullmatch(value):
            return match["label"]
    return ""


def owner_of(value: str) -> str:
    """Return what tells owners apart; "" where the name is reserved."""
    if revoked := REVOKED.fullmatch(value):
        return revoked[1]
    match = VALUE.fullmatch(value)
    return "" if value == NEXT else digest(match[1] if match else value)


def digest(owner: str) -> str:
    """Digest what must not be shown."""
    return hashlib.sha1(owner.encode(), usedforsecurity=False).hexdigest()[:16]


def _yields(value: str, old: str, wakeup: str) -> bool:
    """Return whether a key with this value goes to an attempt that adopts ``old`` or was woken."""
    return value.startswith(f"{old}:") if old else _free_with(wakeup, value)


def _free_with(wakeup: str, value: str) -> bool:
    return bool(wakeup) and (value == NEXT or value.startswith(f"{wakeup}:"))


def _described(value: str | None, *, marks: bool) -> tuple[str, str, str, str] | None:
    """Return the kind of a value, its owner, its number and its label; None: it is nobody's."""
    if value is None or value == NEXT:
        return None
    if marks:
        mark = MARK.fullmatch(value)
        fits = mark is not None and len(mark[3]) <= LONGEST_ID
        return ("mark", digest(mark[1]), "", mark[3]) if mark and fits else None
    match, once = VALUE.fullmatch(value), ONCE.fullmatch(value)
    number = match[2] if match else "0" if REVOKED.fullmatch(value) else once["at"] if once else ""
    kind = "once" if once else "done" if DONE.fullmatch(value) else "lock"
    return kind, owner_of(value), number, label_in(value)


def latest(records: Mapping[str, float], now: int) -> dict[str, float]:
    """Return an index of records without those that have expired, and without too many."""
    left = sorted((due, name) for name, due in records.items() if due > now)
    return {name: due for due, name in left[-MOST_RECORDS:]}


# -- one node ---------------------------------------------------------------------------------


class MemoryNode:
    """One master without a network.

    Attributes:
        clock: milliseconds since 1970 on the node's own clock; may be set.
        keys: what is stored: key -> (value, expiry in milliseconds or None).
        fences: the counters, by field; "epoch" is there when the node was admitted, "empty" when
            a client missed it before.
        held, marks, records, once: the indexes of names, by expiry.
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
        self.once: dict[str, float] = {}
        self.waits: dict[str, float] = {}
        self.wakeups: dict[str, tuple[str, float]] = {}
        self.blocked: dict[str, list[Callable[[str], bool]]] = {}

    def eval(self, request: Request, last: int | None = None) -> list[object]:
        """Answer a request as the script on a real node would."""
        if last is None and request.command in WITH_EPOCH:
            last = self.fences.get("epoch")  # the caller's connection was admitted
        carry_out: Callable[..., list[object]] = getattr(self, f"_{request.command.value}")
        more = () if last is None else (last,)
        reply = [request.nonce, *carry_out(request, *more)]
        return [item.encode() if isinstance(item, str) else item for item in reply]

    def admit(self, guard: int, uptime: int, epoch: int | None, promoted: int = 0) -> list[object]:
        """Answer a new connection as the script on a real node would; None: who only looks."""
        copied = bool(promoted) and self.fences.get("replid") != promoted
        if self.fences.get("epoch", LOST) != LOST and not copied:
            return ["ADMITTED", 0, str(self.fences["epoch"])]
        if epoch is None and (copied or "empty" not in self.fences):
            return ["ADMITTED", -1, ""]
        now = int(self.clock())
        if copied:
            self.fences |= {"epoch": LOST, "empty": now, "replid": promoted}
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
        if key not in self.keys:
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

    def _grant(self, request: commands.Acquire, epoch: object = "") -> list[object]:
        target = request.target
        if self._was_emptied(epoch):
            return ["EMPTY"]
        for which, key in enumerate(target.keys):
            value = self.get(key)
            if request.old and value is None:
                return ["GONE"]
            if value is not None and not _yields(value, request.old, request.opener):
                if request.waits:
                    self.waits[target.entries[which]] = int(self.clock()) + request.waits
                once = ONCE.fullmatch(value)
                refused = "ONCE" if once else "DONE" if DONE.fullmatch(value) else "HELD"
                holder = [self.pttl(key), label_in(value), owner_of(value), which]
                if request.slots:
                    left = self._of_slots(target, request.slots, request.waits, reserved=-3)
                    return [refused, *holder, left]
                return [refused, *holder, *([once["at"]] if once else ())]
        now, fields = self.clock(), target.fields
        number = max(
            min(request.wish, int(now * 1000) + request.slack),
            *(self.fences.get(field, 0) + 1 for field in fields),
        )
        self.held = {name: due for name, due in self.held.items() if due > int(now)}
        label = label_with(request.label, target.slot)
        for key, field, name in zip(target.keys, fields, target.entries, strict=True):
            self.fences[field] = number
            self._set(key, f"{request.nonce}:{number}:{label}", request.ttl)
            self.held[name] = int(now) + request.ttl
        return ["GRANTED", str(number)]

    def _of_slots(
        self, target: LockKeys, slots: int, waits: int, *, reserved: int | None = None
    ) -> list[int]:
        """Return the pttl of each slot, or ``reserved``, and note that each has a waiter."""
        (key,), (entry,) = target.keys, target.entries
        entries = [entry_of(str(target.name), slot) for slot in range(slots)]
        keys = [key.removesuffix(entry) + each for each in entries]
        if waits:
            self.waits |= dict.fromkeys(entries, int(self.clock()) + waits)
        kept = {each for each in keys if reserved is not None and self.get(each) == NEXT}
        return [reserved if each in kept else self.pttl(each) for each in keys]  # type: ignore[misc]

    def _raise(self, request: commands.Raise, number: int) -> list[object]:
        beginning = f"{request.nonce}:{number}:"
        if number > request.token or not all(
            self._mine(key, beginning) for key in request.target.keys
        ):
            return ["GONE"]
        for field in request.target.fields:
            self.fences[field] = max(self.fences.get(field, 0), request.token)
        return ["RAISED", str(request.token)]

    def _extend(self, request: commands.Extend) -> list[object]:
        kept: list[int] = []
        free: list[int] = []
        revoked: list[object] = []
        for lease in request.leases:
            prolonged = self._prolong(lease)
            if not prolonged and self._free_or_mine(lease.target.keys, lease.nonce):
                free.append(len(kept))
            if not prolonged and (text := self._first_revoked(lease)) is not None:
                revoked += [len(kept), text.encode()]
            kept.append(prolonged)
        return ["KEPT", kept, free, revoked] if revoked else ["KEPT", kept, free]

    def _first_revoked(self, lease: commands.Extension) -> str | None:
        """Return from whom the first key that is not the lease's was revoked, if from the lease."""
        for key in lease.target.keys:
            value = self.get(key)
            if value is not None and not value.startswith(f"{lease.nonce}:"):
                return self._revoked(key, lease.nonce)
        return None

    def _revoked(self, key: str, nonce: str) -> str | None:
        """Return from whom and why a key was revoked, if from this nonce."""
        match = REVOKED.fullmatch(self.get(key) or "")
        return match["label"] if match and match[1] == digest(nonce) else None

    def _prolong(self, lease: commands.Extension) -> int:
        keys, ttl = lease.target.keys, lease.ttl
        if not all(self._mine(key, f"{lease.nonce}:") for key in keys):
            return 0
        for key, name in zip(keys, lease.target.entries, strict=True):
            if 0 <= self.pttl(key) < ttl:
                self._set(key, self.keys[key][0], ttl)
                self.held[name] = int(self.clock()) + ttl
        return 1

    def _heal(self, request: commands.Heal, epoch: object = "") -> list[object]:
        target, ttl = request.target, request.ttl
        if self._was_emptied(epoch):
            return ["EMPTY"]
        if not self._free_or_mine(target.keys, request.nonce):
            return ["GONE"]
        label = label_with(request.label, target.slot)
        mine = f"{request.nonce}:{request.fence}:{label}"
        for key, field, name in zip(target.keys, target.fields, target.entries, strict=True):
            self.fences[field] = max(self.fences.get(field, 0), request.fence)
            value = self.get(key)
            if value is None or 0 <= self.pttl(key) < ttl:
                self._set(key, value or mine, ttl)
                self.held[name] = int(self.clock()) + ttl
        return ["HEALED", request.count]

    def _release(self, request: commands.Release) -> list[object]:
        target, nonce = request.target, request.nonce
        outcome, woken = "GONE", 0
        revoked: list[object] = []
        rows = zip(target.keys, target.queues, target.entries, request.flags, strict=True)
        for lock, queue, name, flag in rows:
            waited = self.waits.get(name, 0) > int(self.clock())
            text = self._revoked(lock, nonce)
            if text is not None:
                revoked = [text.encode()]
            if text is not None or self._mine(lock, f"{nonce}:"):
                self.keys.pop(lock, None)
                if waited and request.reserve:
                    self._set(lock, NEXT, request.reserve)
                self.held.pop(name, None)
                outcome = "FREED"
            if waited and flag != "0":
                woken += 1
                self._push(queue, nonce, max(self.pttl(lock), 1000))
        return [outcome, woken, *revoked]

    def _revoke(self, request: commands.Revoke) -> list[object]:
        (key,), (name,), (queue,) = (
            request.target.keys,
            request.target.entries,
            request.target.queues,
        )
        value = self.get(key)
        if value in (None, NEXT) or owner_of(value) != request.owner:
            return ["GONE"]
        ours = VALUE.fullmatch(value)
        if not request.now:
            if not (ours or REVOKED.fullmatch(value)):
                return ["GONE"]
            if ours:
                expiry = self.keys[key][1]
                text = f"revoked:{request.owner}:{ours['label']}, {request.why}"
                self.keys[key] = (text, expiry)
            if 0 <= self.pttl(key) < request.least:
                self._set(key, self.keys[key][0], request.least)
                self.held[name] = int(self.clock()) + request.least
            return ["REVOKED", self.pttl(key)]
        self.keys.pop(key, None)
        self.held.pop(name, None)
        if self.waits.get(name, 0) > int(self.clock()):
            self._push(queue, request.nonce, 1000)
        return ["REVOKED", 0]

    def _mark(self, request: commands.Mark) -> list[object]:
        mark, task_id = request.mark, request.task_id
        found = MARK.fullmatch(self.get(mark) or "")
        owner, other, age = "", task_id, 0
        if found:
            left = float(found[2]) - self.pttl(mark)
            owner, other, age = digest(found[1]), found[3], int(max(0, min(left, 2**53)))
        for key in request.locks:
            lock = self.get(key) or ""
            found = None if ONCE.fullmatch(lock) else RUN.search(lock)
            if found and found[1] == request.task and other == task_id:
                owner, other, age = "", found[2], 0
        if other != task_id:
            return ["TAKEN", other, owner, age]
        self._set(mark, f"{request.nonce}:{request.ttl}:{task_id}", request.ttl)
        now = int(self.clock())
        self.marks = {name: due for name, due in self.marks.items() if due > now}
        self.marks[mark[len(request.index) :]] = now + request.ttl
        return ["MARKED", 1]

    def _unmark(self, request: commands.Unmark) -> list[object]:
        mark, whose, value = request.mark, request.whose, self.get(request.mark)
        found = MARK.fullmatch(value or "")
        record = RECORD.fullmatch(value or "")
        owner, task_id = found.group(1, 3) if found else ("", record[1] if record else "")
        if value is None or not (
            whose == ANY_TASK or (task_id == whose if whose else owner == request.nonce)
        ):
            return ["GONE"]
        self.keys.pop(mark, None)
        self.marks.pop(mark[len(request.index) :], None)
        return ["UNMARKED", 1]

    def _look(self, request: commands.Look) -> list[object]:
        now, target = int(self.clock()), request.target
        self.waits = {name: due for name, due in self.waits.items() if due > now}
        if request.slots:
            return ["LOOKED", self._of_slots(target, request.slots, request.waits)]
        self.waits[target.entries[request.which]] = now + request.waits
        done = ONCE.fullmatch(self.get(target.keys[request.which]) or "")
        return ["LOOKED", -2 if done else self.pttl(target.keys[request.which])]

    def _rest(self, request: commands.Rest) -> list[object]:
        revoked, resting = self._revoked_of(request.target, request.nonce), 0
        for key, name in (*self._own(request.target, request.nonce), *revoked):
            self._set(key, f"rest::{label_in(self.keys[key][0])}", request.rest)
            self.held[name] = int(self.clock()) + request.rest
            resting += 1
        why = [text.encode() for text in revoked.values()][-1:]
        return ["RESTING", resting, *why] if resting else ["GONE"]

    def _return(self, request: commands.Return) -> list[object]:
        returned = 0
        for key, _ in self._own(request.target, request.nonce):
            value, expiry = self.keys[key]
            self.keys[key] = (request.old + value[len(request.nonce) :], expiry)
            returned += 1
        return ["RETURNED", returned] if returned else ["GONE"]

    def _complete(self, request: commands.Complete) -> list[object]:
        revoked, recorded = self._revoked_of(request.target, request.nonce), 0
        for key, name in (*self._own(request.target, request.nonce), *revoked):
            self.held.pop(name, None)
            life = request.life
            if request.granted:
                life -= max(0, request.granted - self.pttl(key))
            if revoked or life < 1:
                self.keys.pop(key, None)
                continue
            kind = f"once::{request.at}:" if request.at else "done::"
            label = request.label or label_in(self.keys[key][0])
            self._set(key, f"{kind}{label}", life)
            (self.once if request.at else self.records)[name] = int(self.clock()) + life
            recorded += 1
        self.records, self.once = (
            latest(index, int(self.clock())) for index in (self.records, self.once)
        )
        if revoked:
            return ["GONE", list(revoked.values())[-1].encode()]
        return ["RECORDED", recorded] if recorded else ["GONE"]

    def _claim(self, request: commands.Claim) -> list[object]:
        wakeup, expiry = self.wakeups.pop(request.queue, ("", 0.0))
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

    def _survey(self, request: commands.Survey, start: int = 0) -> list[object]:
        """Describe held locks, marks or records: a page of each index, or some names."""
        prefix, found = request.prefix, list[object](["FOUND"])
        if not request.most:
            return [*found, self._rows(prefix, request.names), 0]
        for index in (request.index, *request.more):
            entries = next(each for each in INDEXES if index.endswith(each))
            names, after = self._page(getattr(self, entries), request.most, start)
            kind = "mark:" if entries == "marks" else "lock:"
            found += [self._rows(prefix[:-5] + kind, names), after]
        return found

    def _rows(self, prefix: str, names: Sequence[str]) -> list[object]:
        rows: list[object] = []
        for name in names:
            described = _described(self.get(f"{prefix}{name}"), marks=prefix.endswith("mark:"))
            if described:
                kind, owner, number, label = (each.encode() for each in described)
                waited = int(self.waits.get(name, 0) > int(self.clock()))
                left = self.pttl(f"{prefix}{name}")
                rows.append([name.encode(), kind, owner, left, number, label, waited])
        return rows

    def _memory(self, request: commands.Memory, epoch: object = "") -> list[object]:
        if epoch != "" and self._was_emptied(epoch):
            return ["EMPTY"]
        waiting = sum(due > self.clock() for due in self.waits.values())
        return ["MEMORY", [0, b"noeviction", 0, min(waiting, request.most)]]

    def _page(self, entries: Mapping[str, float], most: int, start: int) -> tuple[list[str], int]:
        """Return the names that are due at ``start`` or later, and where the next page begins."""
        start = max(int(self.clock()), start)
        due = sorted((due, name) for name, due in entries.items() if due >= start)
        after = int(due[most][0]) if len(due) > most else 0
        return [name for _, name in due[:most]], after

    def _own(self, target: LockKeys, nonce: str) -> Iterator[tuple[str, str]]:
        for key, name in zip(target.keys, target.entries, strict=True):
            if self._mine(key, f"{nonce}:"):
                yield key, name

    def _revoked_of(self, target: LockKeys, nonce: str) -> dict[tuple[str, str], str]:
        """Return from whom and why keys were revoked from this nonce, by key and name."""
        pairs = zip(target.keys, target.entries, strict=True)
        found = {pair: self._revoked(pair[0], nonce) for pair in pairs}
        return {pair: text for pair, text in found.items() if text is not None}

    def _free_or_mine(self, keys: Sequence[str], nonce: str) -> bool:
        values = [self.get(key) for key in keys]
        return all(value is None or value.startswith(f"{nonce}:") for value in values)

    def _mine(self, key: str, beginning: str) -> bool:
        value = self.get(key)
        return value is not None and value.startswith(beginning)


# -- places in its queues ---------------------------------------------------------------------


class MemoryPlaces:
    """Places in the queues of nodes in memory."""

    def __init__(self, nodes: Sequence[MemoryNode], lock: threading.RLock) -> None:
        self._nodes = nodes
        self._lock = lock

    def reset(self, lock: threading.RLock) -> None:
        """Forget everybody, as a forked child must: its parent's threads are not there to wake."""
        self._lock = lock
        for node in self._nodes:
            node.blocked.clear()

    def open(self, effect: BlockOnNode) -> MemoryPlace:
        """Take a place, for a thread; see ``Places``."""
        return MemoryPlace(self._nodes[effect.node_index], effect, self._lock)

    def aopen(
        self,
        effect: BlockOnNode,
        loop: asyncio.AbstractEventLoop,  # noqa: ARG002 - others need it
        *,
        wanted: Callable[[], bool],  # noqa: ARG002 - as above
        then: Callable[[MemoryPlace], object],
    ) -> float:
        """Take a place, for a task; see ``Places``."""
        then(self.open(effect))
        return effect.seconds


class MemoryPlace(Place):
    """A waiter's place in a queue of one node, until it is woken or leaves."""

    def __init__(self, node: MemoryNode, effect: BlockOnNode, lock: threading.RLock) -> None:
        super().__init__(effect.node_index)
        self._node = node
        queues = enumerate(effect.waiter.queues)
        self._takes = [(queue, partial(self._take, which=which)) for which, queue in queues]
        self._waiter = weakref.ref(effect.waiter)
        self._lock = lock
        self._wakeup, self._which = "", 0
        self._woken = Latch()
        self._loop: asyncio.AbstractEventLoop | None = None
        with lock:
            for queue, take in self._takes:
                if not self._wakeup:
                    node.block(queue, take)

    def _take(self, wakeup: str, which: int = 0) -> bool:
        """Wake the waiter; False if it is gone: a dead waiter would consume the wake-up.

        Also if it was woken by another list.
        """
        if self._waiter() is None or self._wakeup:
            return False
        self._which = which
        self._wakeup = wakeup  # first: a loop that begins to watch from here on finds it
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._tell)
            except RuntimeError:  # the loop is closed
                self._wakeup = ""
                return False
        self._woken.set()
        return True

    def _tell(self) -> None:
        if self.then is not None:
            self.then()

    def outcome(self) -> Wakeup | None:
        """Return the outcome; None while the place is kept."""
        return Wakeup(self._wakeup, which=self._which) if self._wakeup else None

    def wait(self, seconds: float) -> None:
        """Block until it is woken, for at most so long."""
        self._woken.wait(seconds)

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have ``then`` called in an event loop."""
        self._loop = loop

    def withdraw(self, *, looped: bool) -> bool:  # noqa: ARG002 - others need it
        """Leave the queue at once."""
        self.end()
        return False

    def end(self) -> None:
        """Leave the queue."""
        with self._lock:
            for queue, take in self._takes:
                self._node.leave(queue, take)

    abandon = end


# -- a group ----------------------------------------------------------------------------------


class MemoryNodes:
    """A group of nodes in memory, for all threads of one process."""

    _by_name: ClassVar[dict[str, MemoryNode]] = {}

    def __init__(self, nodes: Sequence[MemoryNode], labels: Sequence[str] = ()) -> None:
        self.nodes = tuple(nodes)
        self.labels = tuple(labels) or tuple(f"memory:{i}" for i in range(len(nodes)))
        self.down: set[int] = set()
        self._lock = threading.RLock()
        self._places = MemoryPlaces(self.nodes, self._lock)
        self._waiters = Waiters(self._places, 0.0)
        self.queue, self.aqueue = self._waiters.queue, self._waiters.aqueue
        self.waiting = self._waiters.local.waiting
        reset_in_child(self)

    def reset(self) -> None:
        """Forget the waiters, as a forked child must; what is stored stays."""
        self._lock = threading.RLock()
        self._places.reset(self._lock)
        self._waiters.reset()

    @classmethod
    def named(cls, urls: Sequence[str]) -> MemoryNodes:
        """The nodes of these ``memory://NAME`` URLs; the same name is the same node."""
        return cls([cls._by_name.setdefault(url, MemoryNode()) for url in urls], urls)

    def ask(self, request: Request) -> list[Vote]:
        """Put a request to the nodes and return one vote for each, in order."""
        with self._lock:
            return [self._vote(i, request) for i in range(len(self.nodes))]

    def aask(self, request: Request) -> asyncio.Future[list[Vote]]:
        """The same for a task."""
        votes: asyncio.Future[list[Vote]] = asyncio.get_running_loop().create_future()
        votes.set_result(self.ask(request))
        return votes

    def _vote(self, i: int, request: Request) -> Vote:
        label = self.labels[i]
        if request.to is not None and i not in request.to:
            return Vote(label, Answer.UNKNOWN, sent=False)
        if i in self.down:
            return Vote(label, Answer.UNKNOWN, reason=DOWN, sent=False)
        reply = self.nodes[i].eval(request, request.each[i] if request.each else None)
        found = vote(request, label, request.nonce.encode(), reply)
        return found or Vote(label, Answer.UNKNOWN, reason=ANOTHER)

    def states(self) -> list[NodeStatus]:
        """What is known of each node."""
        return [
            NodeStatus(
                label,
                voting=i not in self.down,
                reason=DOWN if i in self.down else None,
                software="memory",
                role="master",
                guard_left=0.0,
            )
            for i, label in enumerate(self.labels)
        ]

    def close(self, timeout: float = 0.0) -> list[str]:  # noqa: ARG002 - as of real nodes
        """Close nothing: there are neither connections nor threads."""
        return []

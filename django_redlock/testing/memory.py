"""Nodes in memory: the meaning of the scripts over a dictionary with a clock.

``MemoryNode`` is held against the real Lua by a test that runs both side by side. It carries
the simulator, the fast contract tests, and ``memory://NAME`` in settings: one process only.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
import time
from itertools import islice
from typing import TYPE_CHECKING, ClassVar

from django_redlock.answers import vote
from django_redlock.node import NodeState
from django_redlock.protocol import Answer, Ask, Command, Vote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

VALUE = re.compile(r"([0-9a-fA-F]+):(\d+):(?P<label>.*)", re.DOTALL)
RESTING = re.compile(r"rest::(?P<label>.*)", re.DOTALL)


class MemoryNode:
    """One master without a network.

    Attributes:
        clock: milliseconds since 1970 on the node's own clock; may be set.
        keys: what is stored: key -> (value, expiry in milliseconds or None).
        fences: the counters, by field; "epoch" is there when the node was admitted.
        held: the index of names, by expiry.
    """

    def __init__(self, clock: Callable[[], float] = lambda: time.time() * 1000) -> None:
        self.clock = clock
        self.keys: dict[str, tuple[str, float | None]] = {}
        self.fences: dict[str, int] = {"epoch": 0}
        self.held: dict[str, float] = {}

    def eval(self, ask: Ask, last: int | None = None) -> list[object]:
        """Answer a question as the script on a real node would."""
        if last is None and ask.command is Command.GRANT:
            last = self.fences.get("epoch")  # the asker is one who was admitted
        args = [str(arg) for arg in ask.args] + ([] if last is None else [str(last)])
        answer: list[object] = getattr(self, f"_{ask.command.value}")(ask.nonce, ask.keys, args)
        return [item.encode() if isinstance(item, str) else item for item in (ask.nonce, *answer)]

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
        wish, slack, ttl, label, old = int(args[0]), int(args[1]), int(args[2]), args[3], args[4]
        locks, count = keys[2:], len(keys) - 2
        fields, names = args[5 : 5 + count], args[5 + count : 5 + 2 * count]
        if "epoch" not in self.fences or args[-1] != str(self.fences["epoch"]):
            return ["EMPTY"]
        for key in locks:
            value = self.get(key)
            if not old and value is not None:
                return ["HELD", self.pttl(key), _label(value)]
            if old and (value is None or not value.startswith(f"{old}:")):
                return ["GONE"]
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
        locks, words = iter(keys[1:]), iter(args)
        for nonce in words:
            ttl, count = int(next(words)), int(next(words))
            names = list(islice(words, count))
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
        gone = 0
        for key, name in zip(keys[1:], args, strict=True):
            if self._mine(key, f"{nonce}:"):
                del self.keys[key]
                self.held.pop(name, None)
                gone += 1
        return ["FREED", gone] if gone else ["GONE"]

    def _rest(self, nonce: str, keys: Sequence[str], args: list[str]) -> list[object]:
        rest, resting = int(args[0]), 0
        for key, name in zip(keys[1:], args[1:], strict=True):
            if self._mine(key, f"{nonce}:"):
                match = VALUE.fullmatch(self.keys[key][0])
                self._set(key, f"rest::{match[3] if match else ''}", rest)
                self.held[name] = int(self.clock()) + rest
                resting += 1
        return ["RESTING", resting] if resting else ["GONE"]

    def _survey(self, _: str, __: Sequence[str], args: list[str]) -> list[object]:
        prefix, limit, names = args[0], int(args[1]), args[2:]
        if not names:
            due = sorted((due, name) for name, due in self.held.items() if due >= self.clock())
            names = [name for _, name in due[:limit]]
        found = []
        for name in names:
            value = self.get(f"{prefix}{name}")
            if value is not None:
                match = VALUE.fullmatch(value)
                owner, number = match.groups()[:2] if match else (value, "")
                label = _label(value)
                digest = hashlib.sha1(owner.encode(), usedforsecurity=False).hexdigest()[:16]
                left = self.pttl(f"{prefix}{name}")
                found.append(
                    [name.encode(), digest.encode(), left, number.encode(), label.encode()]
                )
        return ["FOUND", found, len(names)]

    def _mine(self, key: str, beginning: str) -> bool:
        value = self.get(key)
        return value is not None and value.startswith(beginning)


def _label(value: str) -> str:
    """The owner label of a lock or of a resting name; "" in a foreign value."""
    match = VALUE.fullmatch(value) or RESTING.fullmatch(value)
    return match["label"] if match else ""


class MemoryNodes:
    """A group of nodes in memory, for all threads of one process."""

    _by_name: ClassVar[dict[str, MemoryNode]] = {}

    def __init__(self, nodes: Sequence[MemoryNode], labels: Sequence[str] = ()) -> None:
        self.nodes = tuple(nodes)
        self.labels = tuple(labels) or tuple(f"memory:{i}" for i in range(len(nodes)))
        self.down: set[int] = set()
        self._lock = threading.RLock()

    @classmethod
    def named(cls, urls: Sequence[str]) -> MemoryNodes:
        """The nodes of these ``memory://NAME`` URLs; the same name is the same node."""
        return cls([cls._by_name.setdefault(url, MemoryNode()) for url in urls], urls)

    def ask(self, ask: Ask) -> list[Vote]:
        """Put a question to the nodes and return one vote for each, in order."""
        with self._lock:
            return [self._vote(i, ask) for i in range(len(self.nodes))]

    def aask(self, ask: Ask) -> asyncio.Future[list[Vote]]:
        """The same for a task."""
        answered: asyncio.Future[list[Vote]] = asyncio.get_running_loop().create_future()
        answered.set_result(self.ask(ask))
        return answered

    def _vote(self, i: int, ask: Ask) -> Vote:
        label = self.labels[i]
        if ask.to is not None and i not in ask.to:
            return Vote(label, Answer.LOST, sent=False)
        if i in self.down:
            return Vote(label, Answer.LOST, why="down", sent=False)
        answer = self.nodes[i].eval(ask, ask.each[i] if ask.each else None)
        found = vote(label, ask.command, ask.nonce.encode(), answer)
        return found or Vote(label, Answer.LOST, why="answered another question")

    def states(self) -> list[NodeState]:
        """What is known of each node."""
        return [
            NodeState(
                label,
                voting=i not in self.down,
                why="down" if i in self.down else "",
                software="memory",
                role="master",
                guard_left=0.0,
            )
            for i, label in enumerate(self.labels)
        ]

    def close(self) -> None:
        """Nothing to close."""


__all__ = ["Command", "MemoryNode", "MemoryNodes"]

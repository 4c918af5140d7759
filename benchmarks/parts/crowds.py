"""A crowd that wants one name: let it have its turns, and read from them what waiting is like."""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any, NamedTuple

from benchmarks.clients import Client
from benchmarks.processes import GRACE_SECONDS, Processes
from benchmarks.stage import Stage
from django_redlock.testing import EmbeddedNodes

HOLD = 0.005  # seconds for which everybody holds the name
# What clients send. Our scripts call SET and others call none of these, so that a node's count
# of them, which knows no difference, is one of messages.
MESSAGES = ("eval", "evalsha", "blpop", "client|unblock")
MESSAGES_OF_OTHERS = (*MESSAGES, "set")


class Turn(NamedTuple):
    """One process's way to the name and from it: seconds, on the clock that all share."""

    asked: float
    had: float
    freed: float


class Turns(NamedTuple):
    """What a crowd did.

    Attributes:
        by: the turns of each process.
        start, seconds: when the first ones began, and for how long new ones did.
        failed, error: turns that were not had, and the first reason.
        messages: from clients, to all nodes.
        clients, nodes: seconds of processor.
    """

    by: Sequence[Sequence[Turn]]
    start: float
    seconds: float
    failed: int
    error: str
    messages: int
    clients: float
    nodes: float

    @property
    def all(self) -> list[Turn]:
        """In the order in which they had the name."""
        return sorted((turn for each in self.by for turn in each), key=lambda turn: turn.had)

    @property
    def rate(self) -> float:
        """Turns per second, of those had while new ones began."""
        end = self.start + self.seconds
        return sum(turn.had < end for turn in self.all) / self.seconds

    @property
    def waits(self) -> list[float]:
        """Seconds from asking to having, the longest last."""
        return sorted(turn.had - turn.asked for turn in self.all)

    @property
    def gaps(self) -> list[float]:
        """Seconds from one's release to the next one's return, the longest last."""
        return sorted(next_.had - turn.freed for turn, next_ in pairwise(self.all))

    def fewest(self, since: float = 0.0, until: float = float("inf")) -> int:
        """Turns of the process that had the fewest, of those had in that time."""
        return min(sum(since <= turn.had < until for turn in each) for each in self.by)

    @property
    def evenness(self) -> float:
        """Fewest by most turns of a process; 1 is fair."""
        return self.fewest() / max(1, *(len(each) for each in self.by))

    def each(self, amount: float) -> float:
        """That much of the whole, for one turn."""
        return amount / max(1, len(self.all))


def quantile(ordered: Sequence[float], part: float) -> float | None:
    """The value that so large a part of the others does not exceed; None where there is none."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else None


def gather(
    stage: Stage,
    processes: Processes,
    client: Client,
    size: int,
    *,
    seconds: float,
    queue: int | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> Turns:
    """Let so many processes of a client have their turns; none, if they do not answer.

    Args:
        queue: the node that shall have the wait queue of the name; None: any.
        meanwhile: called when they have begun.
    """
    program = processes.program(client)
    order = {"style": client.style, "name": _name(len(stage.nodes), queue)}
    program.tell(order | {"processes": size, "hold": HOLD, "seconds": seconds})
    if program.hear(2 * GRACE_SECONDS + size) is None:
        return no_answer(size, seconds)
    kinds = MESSAGES if client.program == "ours" else MESSAGES_OF_OTHERS
    before = _read(stage.nodes, kinds)
    program.tell({"begin": True})
    meanwhile()
    said: dict[str, Any] | None = program.hear(seconds + 2 * GRACE_SECONDS)
    if said is None:
        return no_answer(size, seconds)
    messages, worked = (
        after - then for after, then in zip(_read(stage.nodes, kinds), before, strict=True)
    )
    return Turns(
        [[Turn(*turn) for turn in each] for each in said["turns"]],
        said["start"],
        seconds,
        said["failed"],
        said["error"],
        int(messages),
        said["processor"],
        worked,
    )


def no_answer(size: int, seconds: float) -> Turns:
    """Of a crowd that is not heard of again."""
    return Turns([[]] * size, 0.0, seconds, size, "no answer", 0, 0.0, 0.0)


def _name(size: int, queue: int | None) -> str:
    """A name that nobody has used, with its queue at that node."""
    while True:
        name = f"bench:{secrets.token_hex(4)}"
        if queue is None or zlib.crc32(name.encode()) % size == queue:
            return name


def _read(nodes: EmbeddedNodes, kinds: Iterable[str]) -> tuple[float, float]:
    """Messages and processor seconds of all running nodes so far."""
    messages = worked = 0.0
    for node in nodes:
        if node.is_running:
            with closing(node.client(socket_timeout=30)) as client:
                info = client.info("everything")
            messages += sum(info.get(f"cmdstat_{kind}", {}).get("calls", 0) for kind in kinds)
            worked += info["used_cpu_user"] + info["used_cpu_sys"]
    return messages, worked

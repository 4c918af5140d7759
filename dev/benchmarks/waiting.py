"""How long does a waiter wait? Many processes, one name, and who gets it when."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from itertools import pairwise
from typing import Any, NamedTuple

from .clients import (
    ASYNCIO,
    GRACE_SECONDS,
    POTTERY,
    PYTHON_REDIS_LOCK,
    REDIS_PY,
    REDLOCK_PY,
    THREADS,
    Client,
    Processes,
    fresh,
)
from .measure import Cell, Result, Spread, ordered, ratio, spread
from .peers import PeerError
from .stage import HUNG, Stage

HOLD = 0.005  # seconds for which everybody holds the name
NOTE = f"""\
Each process waits, holds the name for {HOLD * 1000:g} ms, releases it and asks again, so \
{1 / HOLD:.0f} turns per second are ideal. Messages are what clients send to all nodes together, \
for one turn. Processor time, for one turn, is of all processes, and of all nodes."""
ONE_NODE = (REDIS_PY, PYTHON_REDIS_LOCK)
CROWDS = (THREADS, ASYNCIO, *ONE_NODE, REDLOCK_PY, POTTERY)
REHEARSALS = 2  # turns to warm up: connections are open, those for waiting too
# What clients send. Our scripts call SET and others call none of these, so that a node's count
# of them, which knows no difference, is one of messages.
MESSAGES = ("eval", "evalsha", "blpop", "client|unblock")


class Turn(NamedTuple):
    """The way of one process to the name and from it: seconds, on the clock that all share."""

    asked: float
    had: float
    freed: float


class Turns:
    """What a crowd did.

    Attributes:
        by: the turns of each process.
        all: the turns in the order in which the processes had the name.
        rate: turns per second, of those had while new ones began.
        waits: seconds from asking to having, the longest last.
        gaps: seconds from the release of one to the return of the next, the longest last.
        messages: messages of clients to all nodes.
        clients: processor seconds of the processes.
        nodes: processor seconds of the nodes.
    """

    def __init__(self, said: dict[str, Any], seconds: float) -> None:
        self.by = [[Turn(*turn) for turn in each] for each in said["turns"]]
        self.all = sorted((turn for each in self.by for turn in each), key=lambda turn: turn.had)
        self.rate = sum(turn.had < said["start"] + seconds for turn in self.all) / seconds
        self.waits = sorted(turn.had - turn.asked for turn in self.all)
        self.gaps = sorted(later.had - turn.freed for turn, later in pairwise(self.all))
        self.failed, self.error = said["failed"], said["error"].partition(":")[0]
        self.clients, self.messages, self.nodes = said["processor"], 0.0, 0.0

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


def waiting(stage: Stage) -> Result:
    """Few and many processes of ours, few of others; then with the queue's node hung, or dead."""
    effort, (few, many) = stage.effort, stage.effort.waiters
    result = Result("Hand-over: one name, many processes", NOTE)
    with stage.together(), Processes(stage, CROWDS) as processes:
        well: dict[tuple[Client, int], list[Turns]] = {}
        crowds = [*((each, few) for each in processes.present), (THREADS, many)]
        for turn in range(effort.crowds):
            for each, size in ordered(crowds, turn):
                turns = gather(stage, processes, each, size, effort.turns)
                well.setdefault((each, size), []).append(turns)
        hung, during = _hang(stage, processes)
        with stage.refused():
            dead = gather(stage, processes, THREADS, few, effort.turns, queue=HUNG)
        processes.tell(result)
    for (each, size), taken in well.items():
        where = ", one node" if each in ONE_NODE else ""
        result.rows.append(_row(each.label + where, size, taken))
    result.rows.append(_row("django-redlock, queue's node hung meanwhile", few, [hung]))
    result.rows.append(_row("django-redlock, queue's node dead", few, [dead]))
    ours, crowd = well[THREADS, few], well[THREADS, many]
    _even(result, few, ours, 0.85, 0.95)
    result.figure(f"{few} waiters: wait, p50, ms", _milliseconds(each.waits for each in ours))
    late = _milliseconds((each.waits for each in ours), 0.99)
    result.figure(f"{few} waiters: wait, p99, ms", late, most=50)
    messages = [spread(each.each(each.messages) for each in taken) for taken in (ours, crowd)]
    result.figure(f"{few} waiters: messages for a turn", messages[0], most=16)
    gaps = _milliseconds(each.gaps for each in ours)
    result.figure(f"{few} waiters: release to the next one's return, ms", gaps, most=1.5)
    _even(result, many, crowd, 0.7, 0.7)
    growth = ratio(*([each.each(each.messages) for each in taken] for taken in (crowd, ours)))
    result.figure(f"{many} waiters ÷ {few}: messages for a turn", growth, most=1.25)
    usual, longest = _milliseconds((each.waits for each in ours), 1.0), hung.waits[-1:]
    longer = spread(each - usual.median / 1000 for each in longest) if usual else None
    result.figure("queue's node hung: longest wait, s more", longer, most=1)
    fewest = spread([hung.fewest(*during)])
    result.figure("queue's node hung: fewest turns of a process meanwhile", fewest, least=1)
    return result


def gather(
    stage: Stage,
    processes: Processes,
    client: Client,
    size: int,
    seconds: float,
    *,
    queue: int | None = None,
    meanwhile: Callable[[], object] = lambda: None,
) -> Turns:
    """Let so many processes of a client have their turns; none, if they do not answer.

    Args:
        queue: the index of the node that shall have the wait queue of the name; None: any.
        meanwhile: called when they have begun.
    """
    process = processes.process(client)
    order = {"do": "crowd", "style": client.style, "processes": size, "hold": HOLD}
    kinds = MESSAGES if client.program == "ours" else (*MESSAGES, "set")
    try:
        rehearsal = {"name": fresh(), "turns": REHEARSALS, "seconds": None}
        process.ask(order | rehearsal, 2 * GRACE_SECONDS + size)
        before = _read(stage, kinds)
        process.tell(order | {"name": _name(stage, queue), "turns": None, "seconds": seconds})
        meanwhile()
        turns = Turns(process.hear(seconds + 3 * GRACE_SECONDS), seconds)
    except PeerError as error:
        nothing = {"turns": [[]], "start": 0.0, "processor": 0.0, "failed": size}
        return Turns(nothing | {"error": str(error)}, seconds)
    after = _read(stage, kinds)
    turns.messages, turns.nodes = after[0] - before[0], after[1] - before[1]
    return turns


def _name(stage: Stage, queue: int | None) -> str:
    """A name that nobody has used, with its queue at that node."""
    while True:
        name = fresh()
        if queue is None or zlib.crc32(name.encode()) % len(stage.nodes) == queue:
            return name


def _read(stage: Stage, kinds: Iterable[str]) -> tuple[float, float]:
    """Messages and processor seconds of all running nodes so far."""
    messages = worked = 0.0
    for node in stage.nodes:
        if node.is_running:
            with closing(node.client(socket_timeout=30)) as client:
                info = client.info("everything")
            messages += sum(info.get(f"cmdstat_{kind}", {}).get("calls", 0) for kind in kinds)
            worked += info["used_cpu_user"] + info["used_cpu_sys"]
    return messages, worked


def _hang(stage: Stage, processes: Processes) -> tuple[Turns, tuple[float, float]]:
    """A crowd under which the queue's node hangs for a while; when it did."""
    hang, moments = stage.effort.hang, []

    def meanwhile() -> None:
        time.sleep(hang)
        with stage.hung():
            moments.append(time.monotonic())
            time.sleep(hang)
            moments.append(time.monotonic())

    few, seconds = stage.effort.waiters[0], 3 * hang
    taken = gather(stage, processes, THREADS, few, seconds, queue=HUNG, meanwhile=meanwhile)
    return taken, (moments[0], moments[-1])


def _row(label: str, size: int, taken: Sequence[Turns]) -> dict[str, Cell]:
    failed = sum(turns.failed for turns in taken)
    errors = [turns.error for turns in taken if turns.error]
    waits = [turns.waits for turns in taken]
    return {
        "": label,
        "by": size,
        "turns per s": spread(turns.rate for turns in taken),
        "wait, p50, ms": _milliseconds(waits),
        "p99": _milliseconds(waits, 0.99),
        "longest": _milliseconds(waits, 1.0),
        "fewest ÷ most": spread(turns.evenness for turns in taken),
        "messages": spread(turns.each(turns.messages) for turns in taken),
        "next, ms": _milliseconds(turns.gaps for turns in taken),
        "clients, µs": spread(turns.each(turns.clients) * 1e6 for turns in taken),
        "nodes, µs": spread(turns.each(turns.nodes) * 1e6 for turns in taken),
        "failed": f"{failed}: {errors[0]}" if failed else "0",
    }


def _milliseconds(crowds: Iterable[Sequence[float]], part: float = 0.5) -> Spread | None:
    """Of each crowd the value that so large a part of its others does not exceed."""
    return spread(
        values[min(len(values) - 1, int(len(values) * part))] * 1000 if values else None
        for values in crowds
    )


def _even(result: Result, size: int, taken: Sequence[Turns], rate: float, even: float) -> None:
    ideal = spread(turns.rate * HOLD for turns in taken)
    result.figure(f"{size} waiters: turns ÷ the ideal", ideal, least=rate)
    evenness = spread(turns.evenness for turns in taken)
    result.figure(f"{size} waiters: fewest ÷ most turns", evenness, least=even)

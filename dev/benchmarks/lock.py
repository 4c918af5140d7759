"""How long does a free lock take? Pinned, unpinned, 1 ms away, and under decorators."""

from __future__ import annotations

import json
import select
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .clients import (
    ASYNCIO,
    LOCKS,
    NODE_REDLOCK_4,
    NODE_REDLOCK_5,
    PING,
    PLAIN,
    POTTERY,
    REDLOCK_NG,
    REDLOCK_PY,
    REDLOCK_PY_PLAIN,
    SOCKETS,
    THREADS,
    Client,
    Processes,
)
from .measure import Block, Result, acquire, failures, half, pair, percentile, ratio, read, spread
from .peers.environments import ROOT
from .stage import PROCESSORS, Stage, pin

BARE = Client("with redlock(...)", "ours", "with")
DECORATED = (
    Client("@single_flight, an empty view", "ours", "@single_flight"),
    Client("@locked_task, an empty task", "ours", "@locked_task"),
)
# The rows of the short table: the style that blocks, where a library has several.
SHORT = {
    "django-redlock": THREADS,
    "redlock-py": REDLOCK_PY,
    "redlock-ng": REDLOCK_NG,
    "pottery": POTTERY,
    "node-redlock 4": NODE_REDLOCK_4,
    "node-redlock 5 beta": NODE_REDLOCK_5,
}
DELAY = 0.001  # seconds, one way
CHUNK = 65536
EXACT = Path("/proc/self/timerslack_ns")  # Linux: by how much a sleep may be rounded up


def pinned(stage: Stage) -> Result:
    """Measure with the nodes on one processor and the client on another."""
    result, pairs, _ = _healthy(stage, "pinned")
    ours = pairs[THREADS]
    result.figure("threads ÷ sockets", ratio(ours, pairs[SOCKETS]), most=1.5)
    for each, least in ((REDLOCK_PY, 2.5), (REDLOCK_NG, 1.3), (POTTERY, 5)):
        result.figure(f"{each.label} ÷ threads", ratio(pairs.get(each, ()), ours), least=least)
    for each in (NODE_REDLOCK_4, NODE_REDLOCK_5):
        result.figure(f"threads ÷ {each.label}", ratio(ours, pairs.get(each, ())), most=1.4)
    return result


def unpinned(stage: Stage) -> Result:
    """Measure with all on all processors, as the system schedules them."""
    with stage.together():
        result, pairs, blocks = _healthy(stage, "unpinned")
    ours = pairs[THREADS]
    result.figure("unpinned: threads ÷ sockets", ratio(ours, pairs[SOCKETS]), most=1.2)
    result.figure("unpinned: threads ÷ plain sockets", ratio(ours, pairs[PLAIN]), most=1.75)
    for each in (THREADS, ASYNCIO):
        result.figure(f"unpinned: {each.style}, ms", half(blocks[each]))
    for label, client in SHORT.items():
        middle, late = (percentile(blocks.get(client, ()), percent) for percent in (50, 95))
        if middle is not None and late is not None:
            milliseconds = {"p50, ms": f"{middle / 1000:.2f}", "p95, ms": f"{late / 1000:.2f}"}
            result.short.append({"client": label, **milliseconds})
    return result


def _healthy(
    stage: Stage, how: str
) -> tuple[Result, Mapping[Client, list[float | None]], Mapping[Client, list[Block]]]:
    rounds, count = stage.effort.rounds, stage.effort.pairs
    result = Result(f"All nodes well, {how}", f"{rounds} turns of {count} locks each.")
    with Processes(stage, (PLAIN, SOCKETS, *LOCKS, REDLOCK_PY_PLAIN)) as processes:
        blocks = processes.in_turns(rounds, count)
        processes.tell(result)
    pairs = {each: read(taken, pair) for each, taken in blocks.items()}
    for each, taken in blocks.items():
        result.rows.append(
            {
                "": each.label,
                "acquire, µs": spread(read(taken, acquire)),
                "acquire + release, µs": spread(pairs[each]),
                "p95, µs": percentile(taken, 95),
                "÷ django-redlock, threads": ratio(pairs[each], pairs[THREADS]),
                "failed": failures(taken),
            }
        )
    return result, pairs, blocks


def decorators(stage: Stage) -> Result:
    """Measure an empty view and an empty task, each under its decorator."""
    result = Result("The decorators")
    with Processes(stage, (BARE, *DECORATED)) as processes:
        blocks = processes.in_turns(stage.effort.rounds, stage.effort.pairs)
        processes.tell(result)
    bare = read(blocks[BARE], pair)
    for each, taken in blocks.items():
        taken_by = read(taken, pair)
        times = ratio(taken_by, bare)
        result.rows.append({"": each.label, "µs": spread(taken_by), f"÷ {BARE.label}": times})
        if each is not BARE:
            result.figure(f"{each.style} ÷ {BARE.label}", times, most=1.5)
    return result


# -- a network ------------------------------------------------------------------------------------


def delayed(stage: Stage) -> Result:
    """Measure with 1 ms each way to the nodes, counted in round trips."""
    result = Result("1 ms to each node and 1 ms back")
    clients = (PING, SOCKETS, *LOCKS)
    with _delay(stage) as urls, Processes(stage, clients, urls=urls) as processes:
        blocks = processes.in_turns(stage.effort.rounds, max(2, stage.effort.pairs // 10))
        processes.tell(result)
    pings = read(blocks[PING], pair)
    for each, taken in blocks.items():
        trips = ratio(read(taken, acquire), pings)
        result.rows.append(
            {
                "": each.label,
                "acquire, µs": spread(read(taken, acquire)),
                "acquire, round trips": trips,
                "acquire + release, round trips": ratio(read(taken, pair), pings),
                "failed": failures(taken),
            }
        )
        if each in {THREADS, ASYNCIO}:
            result.figure(f"1 ms away: {each.style}, round trips to acquire", trips, most=1.2)
    return result


@contextmanager
def _delay(stage: Stage) -> Iterator[list[str]]:
    """Addresses that lead to the nodes with 1 ms in between."""
    command = [
        sys.executable,
        "-m",
        "dev.benchmarks.lock",
        *(str(node.port) for node in stage.nodes),
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pin(process.pid, PROCESSORS)  # it stands for the network, which is in nobody's way
        try:
            ports = json.loads(process.stdout.readline())
            yield [f"redis://127.0.0.1:{port}/0" for port in ports]
        finally:
            process.stdin.close()


def _pass_on(ports: list[int]) -> None:
    """Hold back each message between clients and nodes, both ways, until stdin ends.

    One thread and ``select`` for all connections: of the ways to wait this is one that counts
    microseconds; ``poll`` and asyncio count milliseconds, which is what the delay itself is.
    """
    if EXACT.exists():
        EXACT.write_text("1")
    listeners = {socket.create_server(("127.0.0.1", 0)): port for port in ports}
    print(json.dumps([each.getsockname()[1] for each in listeners]), flush=True)
    others: dict[socket.socket, socket.socket] = {}
    underway: deque[tuple[float, socket.socket, bytes]] = deque()
    kept = []  # a connection that has ended may still be a target
    while True:
        left = max(0.0, underway[0][0] - time.perf_counter()) if underway else None
        told: list[Any] = [sys.stdin, *listeners, *others]
        for ready in select.select(told, [], [], left)[0]:
            if ready is sys.stdin:
                return
            if ready in listeners:
                ends = ready.accept()[0], socket.create_connection(("127.0.0.1", listeners[ready]))
                for one, other in (ends, ends[::-1]):
                    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    others[one] = other
                kept.append(ends)
            else:
                data = b""
                with suppress(OSError):
                    data = ready.recv(CHUNK)
                other = others[ready] if data else others.pop(ready)
                underway.append((time.perf_counter() + DELAY, other, data))
        while underway and underway[0][0] <= time.perf_counter():
            _, target, data = underway.popleft()
            with suppress(OSError):
                if data:
                    target.sendall(data)
                else:
                    target.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    _pass_on(list(map(int, sys.argv[1:])))

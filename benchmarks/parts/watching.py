"""What it costs to look at many locks, and what other clients of the nodes notice of it."""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, Final

from benchmarks.processes import ROOT
from benchmarks.result import Result
from benchmarks.stage import HUNG, NODES, Stage
from benchmarks.turns import Spread, spread
from django_redlock.testing import EmbeddedNodes

Seconds = list[float | None]  # None: it did not find the locks
STEP: Final = 20_000  # foreign keys written by one script: a node serves nobody meanwhile
AT_ONCE: Final = 500  # locks taken at one time
FILL: Final = """
for i = ARGV[1], ARGV[2] do redis.call('SET', 'foreign:' .. string.format('%d', i), 'value') end
"""
FIGURES: Final = {
    "status": "redlock_status, s",
    "json": "redlock_status --json of all locks, s",
    "page": "a page of the admin, s",
}


def watching(stage: Stage) -> Result:
    """Hold many locks among many keys of others, and look at them in a process of its own."""
    effort = stage.effort
    result = Result(
        f"Looking at {effort.leases:,} held locks, {effort.foreign:,} keys of others on each node",
        "Seconds of `redlock_status`, which shows 1,000 of them, of `--json --limit 10000` and of "
        "the first page of the admin's list, once connected; then the same while one node hangs. "
        "Meanwhile another client sends PING to each node, one after the other.",
    )
    with EmbeddedNodes(NODES) as nodes:
        alias = nodes.settings(MAX_TTL=3600, RESTART_GUARD=False, NODE_TIMEOUT=effort.node_timeout)
        _fill(nodes, effort.foreign)
        _hold(alias, effort.leases)
        rounds = min(effort.rounds, 10)
        with _pings(nodes) as pings:
            well = _looks(alias, rounds)
        nodes.pause(HUNG)
        try:
            hung = _looks(alias, rounds)
        finally:
            nodes.resume(HUNG)
    for name, figure in FIGURES.items():
        result.figures[figure] = spread(well[name])
        result.figures[f"one node hung: {figure} more"] = _more(hung[name], well[name])
        result.rows.append(
            {"": figure, "all well": spread(well[name]), "one node hung": spread(hung[name])}
        )
    late = statistics.quantiles(pings, n=100)[-1] * 1000
    result.figures["PING of others meanwhile, p99, ms"] = Spread(late, late, late)
    result.rows.append({"": "PING of others, p99, ms", "all well": late, "one node hung": None})
    return result


def _more(hung: Seconds, well: Seconds) -> Spread | None:
    usual = spread(well)
    return usual and spread(each and each - usual.median for each in hung)


def _fill(nodes: EmbeddedNodes, keys: int) -> None:
    for node in nodes:
        with closing(node.client(socket_timeout=60)) as client:
            for first in range(0, keys, STEP):
                client.eval(FILL, 0, first, min(first + STEP, keys) - 1)


def _hold(alias: dict[str, Any], locks: int) -> None:
    from django.test import override_settings

    from django_redlock import redlock

    async def take() -> None:
        for first in range(0, locks, AT_ONCE):
            numbers = range(first, min(first + AT_ONCE, locks))
            attempts = (redlock(f"held:{n}", ttl=3600, renew=False).aacquire() for n in numbers)
            await asyncio.gather(*attempts)

    patient = alias | {"NODE_TIMEOUT": 5}
    with override_settings(REDLOCK={"default": patient}):
        asyncio.run(take())


def _looks(alias: dict[str, Any], rounds: int) -> dict[str, Seconds]:
    command = [sys.executable, "-m", "benchmarks.programs.watching", json.dumps(alias), str(rounds)]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, Seconds] = json.loads(said.stdout)
    return found


@contextmanager
def _pings(nodes: EmbeddedNodes) -> Iterator[list[float]]:
    """Send PING to each node, over and over; the seconds of each."""
    taken: list[float] = []
    over = threading.Event()

    def ping() -> None:
        clients = [node.client(socket_timeout=10) for node in nodes]
        while not over.wait(0.001):
            for client in clients:
                start = time.perf_counter()
                client.ping()
                taken.append(time.perf_counter() - start)
        for client in clients:
            client.close()

    thread = threading.Thread(target=ping)
    thread.start()
    try:
        yield taken
    finally:
        over.set()
        thread.join()

"""A network of 1 ms each way between client and nodes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.clients import ASYNCIO, LOCKS, PING, SOCKETS, THREADS
from benchmarks.processes import ROOT, Processes
from benchmarks.result import Result
from benchmarks.stage import PROCESSORS, Stage, pin
from benchmarks.turns import acquire, failures, in_turns, pair, ratio, read, spread

DELAY = 0.001  # seconds, one way


def delayed(stage: Stage) -> Result:
    """A network of 1 ms each way: acquiring, counted in round trips."""
    pairs = max(2, stage.effort.pairs // 10)
    result = Result("1 ms to each node and 1 ms back")
    with (
        _delay(stage) as urls,
        Processes(stage, (PING, SOCKETS, *LOCKS), urls=urls) as processes,
    ):
        blocks = in_turns(processes, stage.effort.rounds, pairs)
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
            result.figures[f"1 ms away: {each.style}, round trips to acquire"] = trips
    result.missing, result.versions = processes.missing, processes.versions
    return result


@contextmanager
def _delay(stage: Stage) -> Iterator[list[str]]:
    """Addresses that lead to the nodes with 1 ms in between."""
    told = {"ports": [node.port for node in stage.nodes], "seconds": DELAY}
    command = [sys.executable, "-m", "benchmarks.parts.delay", json.dumps(told)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, text=True, stdin=pipe, stdout=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if PROCESSORS:
            pin(process.pid, PROCESSORS)  # it stands for the network, which is in nobody's way
        try:
            ports = json.loads(process.stdout.readline())
            yield [f"redis://127.0.0.1:{port}/0" for port in ports]
        finally:
            process.stdin.close()

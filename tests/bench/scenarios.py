"""The parts of the bench that compare: all well, many tasks, a node ill, a network in between."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from .cast import ROOT, Block, Cast
from .contestants import (
    ASYNCIO,
    CONCURRENT,
    LOCKS,
    NODE_REDLOCK_4,
    NODE_REDLOCK_5,
    PING,
    POTTERY,
    REDLOCK_NG,
    REDLOCK_NG_ASYNCIO,
    REDLOCK_PY,
    REDLOCK_PY_PLAIN,
    SOCKETS,
    THREADS,
)
from .results import Result
from .stage import PROCESSORS, Stage, pin
from .turns import Blocks, acquire, failures, in_turns, pair, processor, rate, ratio, read, spread

DELAY = 0.001  # seconds, one way
PATIENT = 10.0  # a timeout that thousands of questions at once do not reach
SETTLE_PAIRS = 20


def healthy(stage: Stage) -> Result:
    """All nodes well, one caller."""
    with Cast(stage, (SOCKETS, *LOCKS, REDLOCK_PY_PLAIN)) as cast:
        blocks = in_turns(cast, stage.effort.rounds, stage.effort.pairs)
    result = Result("All nodes well", missing=cast.missing, versions=cast.versions)
    pairs = {each: read(taken, pair) for each, taken in blocks.items()}
    for each, taken in blocks.items():
        result.rows.append(
            {
                "": each.label,
                "acquire, µs": spread(read(taken, acquire)),
                "acquire + release, µs": spread(pairs[each]),
                "÷ django-redlock, threads": ratio(pairs[each], pairs[THREADS]),
                "failed": failures(taken),
            }
        )
    result.figures["threads ÷ sockets"] = ratio(pairs[THREADS], pairs[SOCKETS])
    for each in (REDLOCK_PY, REDLOCK_NG, POTTERY):
        result.figures[f"{each.label} ÷ threads"] = ratio(pairs.get(each, ()), pairs[THREADS])
    for each in (NODE_REDLOCK_4, NODE_REDLOCK_5):
        result.figures[f"threads ÷ {each.label}"] = ratio(pairs[THREADS], pairs.get(each, ()))
    return result


def tasks(stage: Stage) -> Result:
    """Many tasks on one event loop, each with a name of its own, once all connections are there."""
    result = Result("Many tasks at once, each its own name")
    rounds = max(2, stage.effort.rounds // 8)
    with Cast(stage, CONCURRENT, timeout=PATIENT) as cast:
        for count in stage.effort.tasks:
            size = count * max(2, stage.effort.pairs // count)
            _rates(result, in_turns(cast, rounds, size, tasks=count), count)
    result.missing, result.versions = cast.missing, cast.versions
    return result


def burst(stage: Stage) -> Result:
    """As many tasks as there are, one lock each, in a process that has just started."""
    result = Result(
        "Many tasks at once, in a process that has just started",
        "Connecting is part of it. Timeouts are those that each library has by default.",
    )
    count, blocks = stage.effort.tasks[-1], Blocks()
    for _ in range(max(2, stage.effort.rounds // 8)):
        for timeout, contestants in ((0.1, CONCURRENT[:2]), (PATIENT, CONCURRENT[2:])):
            with Cast(stage, contestants, timeout=timeout) as cast:
                for each in cast.present:
                    blocks.setdefault(each, []).append(cast.block(each, count, tasks=count))
            result.missing |= cast.missing
            result.versions |= cast.versions
    _rates(result, blocks, count, "from a start, ")
    return result


def _rates(result: Result, blocks: Blocks, count: int, how: str = "") -> None:
    rates = {each: read(taken, rate) for each, taken in blocks.items()}
    for each, taken in blocks.items():
        result.rows.append(
            {
                "tasks": count,
                "": each.label,
                "locks per second": spread(rates[each]),
                "acquire + release, ms": spread(
                    value / 1000 if value else None for value in read(taken, pair)
                ),
                "client's processor, µs": spread(read(taken, processor)),
                "failed": failures(taken),
            }
        )
    result.figures[f"{how}{count} tasks: locks per second, asyncio ÷ redlock-ng"] = ratio(
        rates.get(ASYNCIO, ()), rates.get(REDLOCK_NG_ASYNCIO, ())
    )


def delayed(stage: Stage) -> Result:
    """A network of 1 ms each way: acquiring, counted in round trips."""
    rounds, pairs = max(2, stage.effort.rounds // 3), max(2, stage.effort.pairs // 5)
    result = Result("1 ms to each node and 1 ms back")
    with (
        _delay(stage) as urls,
        Cast(stage, (PING, SOCKETS, *LOCKS), urls=urls) as cast,
    ):
        blocks = in_turns(cast, rounds, pairs)
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
    result.missing, result.versions = cast.missing, cast.versions
    return result


@contextmanager
def _delay(stage: Stage) -> Iterator[list[str]]:
    """Addresses that lead to the nodes with 1 ms in between."""
    told = {"ports": [node.port for node in stage.nodes], "seconds": DELAY}
    command = [sys.executable, "-m", "tests.bench.delay", json.dumps(told)]
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


def hung(stage: Stage) -> Result:
    """One of five nodes hangs, as by SIGSTOP."""
    return _ill(stage, "hung", stage.hung, turns=max(2, stage.effort.rounds // 2), repeats=1)


def refused(stage: Stage) -> Result:
    """One of five nodes is dead and its port refuses; once, for a restart costs seconds."""
    return _ill(stage, "refused", stage.refused, turns=1, repeats=max(2, stage.effort.rounds // 3))


def _ill(
    stage: Stage,
    word: str,
    ill: Callable[[], AbstractContextManager[None]],
    *,
    turns: int,
    repeats: int,
) -> Result:
    """Blocks of each contestant with all nodes well, then as many with one node ill."""
    pairs, patience = stage.effort.pairs, stage.effort.patience
    with Cast(stage, LOCKS) as cast:
        well: Blocks = {each: [] for each in cast.present}
        bad: Blocks = {each: [] for each in cast.present}
        for _ in range(turns):
            playing = [each for each in cast.present if _slow(bad[each]) < patience]
            for each in playing * repeats:
                cast.block(each, SETTLE_PAIRS)  # what was late arrives
                well[each].append(cast.block(each, pairs))
            with ill():
                for each in playing * repeats:
                    if _slow(bad[each]) < patience:
                        bad[each].append(cast.block(each, pairs, seconds=patience / 3))
    result = Result(f"One of five nodes {word}", missing=cast.missing, versions=cast.versions)
    for each in cast.present:
        times = ratio(read(bad[each], pair), read(well[each], pair))
        result.rows.append(
            {
                "": each.label,
                "all well, µs": spread(read(well[each], pair)),
                f"one {word}, µs": spread(read(bad[each], pair)),
                "ratio": times,
                "failed": failures(bad[each]),
            }
        )
        if each.program == "ours":
            result.figures[f"one node {word} ÷ all well, {each.style}"] = times
    return result


def _slow(blocks: Sequence[Block]) -> float:
    """Seconds that a contestant has spent on blocks that it could not finish in time."""
    return sum(block.seconds for block in blocks if block.seconds > 1)

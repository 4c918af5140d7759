"""All nodes well, one caller: everybody pinned, everybody unpinned, and our own decorators."""

from __future__ import annotations

from benchmarks.clients import (
    ASYNCIO,
    LOCKS,
    NODE_REDLOCK_4,
    NODE_REDLOCK_5,
    PLAIN,
    POTTERY,
    REDLOCK_NG,
    REDLOCK_PY,
    REDLOCK_PY_PLAIN,
    SOCKETS,
    THREADS,
    Client,
)
from benchmarks.processes import Processes
from benchmarks.result import Result
from benchmarks.stage import Stage
from benchmarks.turns import (
    Blocks,
    acquire,
    failures,
    half,
    in_turns,
    pair,
    percentile,
    ratio,
    read,
    spread,
)

BARE = Client("with redlock(...)", "ours", "with")
DECORATED = (
    Client("@single_flight, an empty view", "ours", "@single_flight"),
    Client("@locked_task, an empty task", "ours", "@locked_task"),
)
# The rows of the README: the style that blocks, where a library has several.
SHORT = {
    "django-redlock": THREADS,
    "redlock-py": REDLOCK_PY,
    "redlock-ng": REDLOCK_NG,
    "pottery": POTTERY,
    "node-redlock 4": NODE_REDLOCK_4,
    "node-redlock 5 beta": NODE_REDLOCK_5,
}


def pinned(stage: Stage) -> Result:
    """Measure with the nodes on one processor and the client on another."""
    return _healthy(stage, "pinned")[0]


def unpinned(stage: Stage) -> Result:
    """Measure with all on all processors, as the system schedules them."""
    with stage.together():
        result, blocks = _healthy(stage, "unpinned")
    result.figures = {f"unpinned: {name}": figure for name, figure in result.figures.items()}
    for each in (THREADS, ASYNCIO):
        result.figures[f"unpinned: {each.style}, ms"] = half(blocks.get(each, ()))
    result.milliseconds = milliseconds(blocks)
    return result


def _healthy(stage: Stage, how: str) -> tuple[Result, Blocks]:
    with Processes(stage, (PLAIN, SOCKETS, *LOCKS, REDLOCK_PY_PLAIN)) as processes:
        blocks = in_turns(processes, stage.effort.rounds, stage.effort.pairs)
    result = Result(
        f"All nodes well, {how}",
        f"{stage.effort.rounds} turns of {stage.effort.pairs} locks each.",
        missing=processes.missing,
        versions=processes.versions,
    )
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
    result.figures = {
        "threads ÷ sockets": ratio(pairs[THREADS], pairs[SOCKETS]),
        "threads ÷ plain sockets": ratio(pairs[THREADS], pairs[PLAIN]),
    }
    for each in (REDLOCK_PY, REDLOCK_NG, POTTERY):
        result.figures[f"{each.label} ÷ threads"] = ratio(pairs.get(each, ()), pairs[THREADS])
    for each in (NODE_REDLOCK_4, NODE_REDLOCK_5):
        result.figures[f"threads ÷ {each.label}"] = ratio(pairs[THREADS], pairs.get(each, ()))
    return result, blocks


def milliseconds(blocks: Blocks) -> list[dict[str, str]]:
    """The percentiles of all locks of the run, a row for each client that had any."""
    rows = []
    for label, client in SHORT.items():
        half, most = (percentile(blocks.get(client, ()), percent) for percent in (50, 95))
        if half is not None and most is not None:
            rows.append(
                {
                    "client": label,
                    "p50, ms": f"{half / 1000:.2f}",
                    "p95, ms": f"{most / 1000:.2f}",
                }
            )
    return rows


def decorators(stage: Stage) -> Result:
    """Measure an empty view and an empty task, each under its decorator."""
    result = Result("The decorators")
    with Processes(stage, (BARE, *DECORATED)) as processes:
        blocks = in_turns(processes, stage.effort.rounds, stage.effort.pairs)
    bare = read(blocks[BARE], pair)
    for each, taken in blocks.items():
        times = ratio(read(taken, pair), bare)
        result.rows.append(
            {"": each.label, "µs": spread(read(taken, pair)), f"÷ {BARE.label}": times}
        )
        if each is not BARE:
            result.figures[f"{each.style} ÷ {BARE.label}"] = times
    result.versions = processes.versions
    return result

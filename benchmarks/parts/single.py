"""One node instead of five, beside the locks of others that are made for one."""

from __future__ import annotations

from benchmarks.clients import (
    DJANGO_REDIS,
    PLAIN,
    PYTHON_REDIS_LOCK,
    REDIS_PY,
    SOCKETS,
    THREADS,
)
from benchmarks.processes import Processes
from benchmarks.result import Result
from benchmarks.stage import Stage
from benchmarks.turns import (
    failures,
    half,
    in_turns,
    pair,
    percentile,
    processor,
    ratio,
    read,
    spread,
)

CLIENTS = (PLAIN, SOCKETS, THREADS, REDIS_PY, DJANGO_REDIS, PYTHON_REDIS_LOCK)


def one_node(stage: Stage) -> Result:
    """Acquire and release on a single node, by a thread."""
    result = Result(
        "One node, unpinned",
        f"{stage.effort.rounds} turns of {stage.effort.pairs} locks each, all on the same node. "
        "The other clients have no fence, and no guard against a node that was emptied.",
    )
    with (
        stage.together(),
        Processes(stage, CLIENTS, urls=stage.nodes.urls[:1]) as processes,
    ):
        blocks = in_turns(processes, stage.effort.rounds, stage.effort.pairs)
    pairs = {each: read(taken, pair) for each, taken in blocks.items()}
    for each, taken in blocks.items():
        result.rows.append(
            {
                "": each.label,
                "acquire + release, µs": spread(pairs[each]),
                "p95, µs": percentile(taken, 95),
                "÷ redis-py Lock": ratio(pairs[each], pairs.get(REDIS_PY, ())),
                "client's processor, µs": spread(read(taken, processor)),
                "failed": failures(taken),
            }
        )
    result.figures = {
        f"unpinned: one node: threads ÷ {each.label}": ratio(pairs[THREADS], pairs.get(each, ()))
        for each in (SOCKETS, REDIS_PY, DJANGO_REDIS, PYTHON_REDIS_LOCK)
    }
    result.figures |= {
        f"unpinned: one node: {each.label}, ms": half(blocks.get(each, ()))
        for each in (THREADS, REDIS_PY, DJANGO_REDIS)
    }
    result.missing, result.versions = processes.missing, processes.versions
    return result

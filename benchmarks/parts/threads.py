"""Several threads of one process at once, each with names of its own."""

from __future__ import annotations

from benchmarks.clients import THREADS
from benchmarks.processes import Block, Processes
from benchmarks.result import Result
from benchmarks.stage import Stage
from benchmarks.turns import failures, half, ordered, processor, rate, ratio, read, spread

AT_ONCE = 8


def threads(stage: Stage) -> Result:
    """Measure one thread, and eight that share the process and its connections, unpinned."""
    result = Result(
        f"{AT_ONCE} threads of one process, unpinned",
        "Each takes names of its own. They share one interpreter, of which one thread runs at a "
        "time.",
    )
    pairs = AT_ONCE * stage.effort.pairs
    blocks: dict[int, list[Block]] = {1: [], AT_ONCE: []}
    with stage.together(), Processes(stage, (THREADS,)) as processes:
        for turn in range(stage.effort.rounds + 1):
            for count in ordered(list(blocks), turn):
                block = processes.block(THREADS, pairs, tasks=count)
                if turn:
                    blocks[count].append(block)
    one = read(blocks[1], rate)
    for count, taken in blocks.items():
        times = ratio(read(taken, rate), one)
        who = f"{count} thread{'s' if count > 1 else ''}"
        result.rows.append(
            {
                "": f"django-redlock, {who}",
                "locks per second": spread(read(taken, rate)),
                "÷ 1 thread": times,
                "acquire + release, ms": half(taken),
                "client's processor, µs": spread(read(taken, processor)),
                "failed": failures(taken),
            }
        )
        result.figures[f"unpinned: {who}: locks per second"] = spread(read(taken, rate))
        if count > 1:
            result.figures[f"unpinned: {who}: locks per second ÷ 1 thread"] = times
    result.missing, result.versions = processes.missing, processes.versions
    return result

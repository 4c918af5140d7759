"""One of five nodes hangs, or is dead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from benchmarks.clients import LOCKS
from benchmarks.processes import Block, Processes
from benchmarks.result import Result
from benchmarks.stage import Stage
from benchmarks.turns import Blocks, failures, ordered, pair, ratio, read, spread

SETTLE_PAIRS = 20


def hung(stage: Stage) -> Result:
    """One of five nodes hangs, as by SIGSTOP."""
    return _ill(stage, "hung", stage.hung, turns=stage.effort.rounds, repeats=1)


def refused(stage: Stage) -> Result:
    """One of five nodes is dead and its port refuses; once, for a restart costs seconds."""
    return _ill(stage, "refused", stage.refused, turns=1, repeats=stage.effort.rounds)


def _ill(
    stage: Stage,
    state: str,
    ill: Callable[[], AbstractContextManager[None]],
    *,
    turns: int,
    repeats: int,
) -> Result:
    """Blocks of each client with all nodes well, then as many with one node ill."""
    pairs, patience = max(2, stage.effort.pairs // 2), stage.effort.patience
    with Processes(stage, LOCKS) as processes:
        well: Blocks = {each: [] for each in processes.present}
        bad: Blocks = {each: [] for each in processes.present}
        for turn in range(turns):
            playing = [each for each in processes.present if _slow(bad[each]) < patience]
            blocks = [each for repeat in range(repeats) for each in ordered(playing, turn + repeat)]
            for each in blocks:
                processes.block(each, SETTLE_PAIRS)  # what was late arrives
                well[each].append(processes.block(each, pairs))
            with ill():
                for each in blocks:
                    if _slow(bad[each]) < patience:
                        bad[each].append(processes.block(each, pairs, seconds=patience / 3))
    result = Result(
        f"One of five nodes {state}", missing=processes.missing, versions=processes.versions
    )
    for each in processes.present:
        times = ratio(read(bad[each], pair), read(well[each], pair))
        result.rows.append(
            {
                "": each.label,
                "all well, µs": spread(read(well[each], pair)),
                f"one {state}, µs": spread(read(bad[each], pair)),
                "ratio": times,
                "failed": failures(bad[each]),
            }
        )
        if each.program == "ours":
            result.figures[f"one node {state} ÷ all well, {each.style}"] = times
    return result


def _slow(blocks: Sequence[Block]) -> float:
    """Seconds that a client has spent on blocks that it could not finish in time."""
    return sum(block.seconds for block in blocks if block.seconds > 1)

"""What does a node cost that hangs, or is dead?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from .clients import LOCKS, Client, Processes
from .measure import Block, Result, failures, ordered, pair, ratio, read, spread
from .stage import Stage

SETTLE_PAIRS = 20


def hung(stage: Stage) -> Result:
    """One of five nodes hangs, as by SIGSTOP."""
    return _ill(stage, "hung", stage.hung, turns=stage.effort.rounds, repeats=1, most=1.05)


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
    **goal: float,
) -> Result:
    """Blocks of each client with all nodes well, then as many with one node ill."""
    pairs, patience = max(2, stage.effort.pairs // 2), stage.effort.patience
    result = Result(f"One of five nodes {state}")
    with Processes(stage, LOCKS) as processes:
        well: dict[Client, list[Block]] = {each: [] for each in processes.present}
        bad: dict[Client, list[Block]] = {each: [] for each in processes.present}
        for turn in range(turns):
            playing = [each for each in processes.present if _slow(bad[each]) < patience]
            blocks = [each for repeat in range(repeats) for each in ordered(playing, turn + repeat)]
            for each in blocks:
                processes.block(each, SETTLE_PAIRS)  # what was late arrives
            # A process that has waited for the others is slower at first: both readings have that.
            for each in blocks:
                well[each].append(processes.block(each, pairs))
            with ill():
                for each in blocks:
                    if _slow(bad[each]) < patience:
                        bad[each].append(processes.block(each, pairs, seconds=patience / 3))
        processes.tell(result)
    for each, taken in well.items():
        times = ratio(read(bad[each], pair), read(taken, pair))
        result.rows.append(
            {
                "": each.label,
                "all well, µs": spread(read(taken, pair)),
                f"one {state}, µs": spread(read(bad[each], pair)),
                "ratio": times,
                "failed": failures(bad[each]),
            }
        )
        if each.program == "ours":
            result.figure(f"one node {state} ÷ all well, {each.style}", times, **goal)
    return result


def _slow(blocks: Sequence[Block]) -> float:
    """Seconds that a client has spent on blocks that it could not finish in time."""
    return sum(block.seconds for block in blocks if block.seconds > 1)

"""Two revisions in turns, each in a process of its own, on the same nodes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, nullcontext
from typing import NamedTuple

from benchmarks.processes import ROOT, Block, Program
from benchmarks.result import Result
from benchmarks.stage import PROCESSORS, Effort, Stage
from benchmarks.turns import Reading, failures, ordered, pair, processor, ratio, read, spread

from . import verdict
from .checkout import Revision

COMMAND = [sys.executable, "-P", "-m", "benchmarks.programs.revision"]
NOTE = """\
new ÷ old: median of the ratios of {turns} turns, and the quartiles in brackets. CPU: the \
median of the same for the client's processor time, to which a busy machine does less. The verdict \
is on the time."""
PATIENT = 2.0  # our NODE_TIMEOUT: what a busy machine makes late is slow, and no failure
SECONDS = 20.0  # for a block
WARM_UP = 2  # turns that are not kept


def each(block: Block) -> float | None:
    """Microseconds of the whole block for each lock."""
    return block.seconds * 1e6 / block.pairs if block.pairs else None


class Scenario(NamedTuple):
    """What both revisions do.

    Attributes:
        label: as it is called in the tables.
        style: as the program calls it.
        pairs, tasks: how many locks in a block, and by how many tasks at once.
        reading: what of a block is compared.
        together: whether it is measured unpinned only, for one processor is too few.
    """

    label: str
    style: str
    pairs: Callable[[Effort], int]
    tasks: Callable[[Effort], int] = lambda _: 1
    reading: Reading = pair
    together: bool = False


SCENARIOS = (
    Scenario("with", "with", lambda effort: effort.pairs),
    Scenario("async with", "async with", lambda effort: effort.pairs),
    Scenario(
        "many tasks",
        "async with",
        lambda effort: effort.tasks[-1],
        lambda effort: effort.tasks[-1],
        each,
    ),
    Scenario("8 threads", "threads", lambda effort: 8 * effort.pairs, lambda _: 8, each),
    Scenario("8 waiters", "waiters", lambda effort: effort.pairs, together=True),
    Scenario("extend", "extend", lambda effort: effort.pairs),
    Scenario("@redlock", "decorated", lambda effort: effort.pairs),
    Scenario("@single_flight", "view", lambda effort: effort.pairs),
)
Turns = dict[Scenario, tuple[list[Block], list[Block]]]


def compare(
    stage: Stage,
    old: Revision,
    new: Revision,
    scenarios: Sequence[Scenario] = SCENARIOS,
    *,
    pinned: bool = True,
) -> Result:
    """Measure unpinned; with ``pinned`` so, too, where there is a processor for each side."""
    result = Result(
        f"{new.label}, against {old.label}",
        NOTE.format(turns=stage.effort.rounds),
    )
    _add(result, "unpinned", _turns(stage, old, new, scenarios, pinned=False))
    if pinned and len(PROCESSORS) > 1:
        alone = [scenario for scenario in scenarios if not scenario.together]
        _add(result, "pinned", _turns(stage, old, new, alone, pinned=True))
    return result


def is_bad(result: Result) -> bool:
    """Whether the newer revision is slower or fails somewhere, or nothing could be compared."""
    said = [row["verdict"] for row in result.rows]
    return any(each in verdict.BAD for each in said) or set(said) <= {verdict.UNKNOWN}


def _turns(
    stage: Stage, old: Revision, new: Revision, scenarios: Sequence[Scenario], *, pinned: bool
) -> Turns:
    """Short blocks of all scenarios, turn after turn, old and new one after the other."""
    turns: Turns = {scenario: ([], []) for scenario in scenarios}
    waiters = any(scenario.together for scenario in scenarios)
    with ExitStack() as stack:
        stack.enter_context(nullcontext() if pinned else stage.together())
        programs = [
            stack.enter_context(closing(_start(stage, revision, prefix, waiters=waiters)))
            for revision, prefix in ((old, "old:"), (new, "new:"))
        ]
        for turn in range(WARM_UP + stage.effort.rounds):
            for scenario in scenarios:
                for which in ordered((0, 1), turn):
                    if scenario.style not in programs[which].styles:
                        continue
                    block = _block(stage.effort, programs[which], scenario)
                    if turn >= WARM_UP:
                        turns[scenario][which].append(block)
    return turns


def _start(stage: Stage, revision: Revision, prefix: str, *, waiters: bool) -> Program:
    """A process with this revision; under a prefix of its own, as it may store other things."""
    options = stage.options | {"KEY_PREFIX": prefix, "NODE_TIMEOUT": PATIENT}
    alias = stage.nodes.settings(**options)
    env = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(revision.home), str(ROOT)]),
        "PYTHONHASHSEED": "0",  # or luck with the order of sets would be measured
    }
    told = {"alias": alias, "home": str(revision.home), "waiters": waiters}
    return Program(revision.label, COMMAND, told, env)


def _block(effort: Effort, program: Program, scenario: Scenario) -> Block:
    return program.block(
        scenario.style, pairs=scenario.pairs(effort), tasks=scenario.tasks(effort), seconds=SECONDS
    )


def _add(result: Result, how: str, turns: Turns) -> None:
    for scenario, (old, new) in turns.items():
        below, above = read(old, scenario.reading), read(new, scenario.reading)
        times, work = ratio(above, below), ratio(read(new, processor), read(old, processor))
        compared = sum(bool(one and other) for one, other in zip(above, below, strict=False))
        text = verdict.FAILS if verdict.fails(old, new) else verdict.speed(times, compared)
        result.rows.append(
            {
                "": scenario.label,
                "how": how,
                "old, µs": _median(below),
                "new, µs": _median(above),
                "new ÷ old": times,
                "CPU": None if work is None else work.median,
                "verdict": text,
            }
        )
        for which, blocks in (("old", old), ("new", new)):
            if any(block.failed for block in blocks):
                result.note += f"\nFailed, {how}, {scenario.label}, {which}: {failures(blocks)}."
        result.figures[f"{how}: {scenario.label}"] = times
        result.figures[f"{how}: {scenario.label}, client's processor"] = work


def _median(values: Sequence[float | None]) -> float | None:
    found = spread(values)
    return None if found is None else found.median

"""Many tasks on one event loop, once connections are open, and in a process that just started."""

from __future__ import annotations

from functools import partial

from benchmarks.clients import (
    AS_IT_IS,
    ASYNCIO,
    CONCURRENT,
    FLOORS,
    REDLOCK_NG_ASYNCIO,
    SETTINGS,
    TUNED,
    TUNED_NEWEST,
)
from benchmarks.processes import Processes
from benchmarks.result import Result
from benchmarks.stage import Stage
from benchmarks.turns import (
    Blocks,
    failures,
    in_turns,
    metered,
    nodes,
    ordered,
    pair,
    processor,
    rate,
    ratio,
    read,
    spread,
)

PATIENT = 10.0  # a timeout that thousands of questions at once do not reach


def tasks(stage: Stage) -> Result:
    """Many tasks on one event loop, each with a name of its own, once all connections are there."""
    result = Result("Many tasks at once, each its own name")
    with (
        stage.worked() as worked,
        Processes(stage, CONCURRENT, timeout=PATIENT) as processes,
    ):
        for count in stage.effort.tasks:
            size = count * max(1, stage.effort.pairs // count)
            blocks = in_turns(processes, stage.effort.rounds, size, tasks=count, worked=worked)
            _rates(result, blocks, count)
    result.missing, result.versions = processes.missing, processes.versions
    return result


def burst(stage: Stage) -> Result:
    """As many tasks as there are, one lock each, in a process that has just started."""
    result = Result(
        "Many tasks at once, in a process that has just started",
        "Connecting is part of it. Timeouts are those that each library has by default.",
    )
    count, blocks = stage.effort.tasks[-1], Blocks()
    for turn in range(max(2, stage.effort.rounds // 8)):
        each_own = ((0.1, CONCURRENT[:2]), (PATIENT, CONCURRENT[2:]))
        for timeout, clients in ordered(each_own, turn):
            with (
                stage.worked() as worked,
                Processes(stage, clients, timeout=timeout) as processes,
            ):
                for each in ordered(processes.present, turn):
                    block = partial(processes.block, each, count, tasks=count)
                    blocks.setdefault(each, []).append(metered(block, worked))
            result.missing |= processes.missing
            result.versions |= processes.versions
    _rates(result, blocks, count, "from a start, ")
    return result


def documented(stage: Stage) -> Result:
    """The settings of an application that has thousands of locks at once, each by itself."""
    count = stage.effort.tasks[-1]
    result = Result(
        f"{count:,} tasks at once, with the application's settings, unpinned",
        "gc: gc.freeze() and gc.set_threshold(20_000, 20, 20). Sockets by hand: our scripts "
        "over one connection to each node, and nothing else that a client does.",
    )
    with (
        stage.together(),
        stage.worked() as worked,
        Processes(stage, (*SETTINGS, *FLOORS, REDLOCK_NG_ASYNCIO), timeout=PATIENT) as processes,
    ):
        blocks = in_turns(processes, stage.effort.rounds, count, tasks=count, worked=worked)
    rates = {each: read(taken, rate) for each, taken in blocks.items()}
    work = {each: read(taken, processor) for each, taken in blocks.items()}
    plain, others = rates.get(AS_IT_IS, ()), rates.get(REDLOCK_NG_ASYNCIO, ())
    for each, taken in blocks.items():
        result.rows.append(
            {
                "": f"django-redlock, {each.label}" if each in SETTINGS else each.label,
                "locks per second": spread(rates[each]),
                "÷ as it is": ratio(rates[each], plain),
                "÷ redlock-ng": ratio(rates[each], others),
                "client's processor, µs": spread(work[each]),
                "its ÷ as it is": ratio(work[each], work.get(AS_IT_IS, ())),
                "nodes' processors, µs": spread(read(taken, nodes)),
                "failed": failures(taken),
            }
        )
        if each in SETTINGS:
            result.figures[f"{count} tasks, {each.label}: ÷ as it is"] = ratio(rates[each], plain)
    floors = {each.program: rates[each] for each in FLOORS if each in rates}
    all_of_them = TUNED_NEWEST if TUNED_NEWEST in blocks else TUNED
    for how, each in (("as it is", AS_IT_IS), ("all settings", all_of_them)):
        had = rates.get(each, ())
        result.figures |= {
            f"unpinned: {count} tasks, {how}: locks per second": spread(had),
            f"unpinned: {count} tasks, {how}: locks per second ÷ redlock-ng": ratio(had, others),
        }
        figure = f"unpinned: {count} tasks, sockets by hand, {how}: ÷ redlock-ng"
        result.figures[figure] = ratio(floors.get(each.program, ()), others)
    result.missing = processes.missing
    versions = processes.versions
    named = {"redlock-ng": REDLOCK_NG_ASYNCIO, "all settings": all_of_them}
    result.versions = {
        name: versions[each.program] for name, each in named.items() if each.program in versions
    }
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
                "nodes' processors, µs": spread(read(taken, nodes)),
                "failed": failures(taken),
            }
        )
    result.figures[f"{how}{count} tasks: locks per second, asyncio ÷ redlock-ng"] = ratio(
        rates.get(ASYNCIO, ()), rates.get(REDLOCK_NG_ASYNCIO, ())
    )

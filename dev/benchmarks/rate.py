"""How many locks a second? By threads, by tasks, by tasks from a start, with settings of a site."""

from __future__ import annotations

from collections.abc import Mapping

from .clients import (
    ASYNCIO,
    NODE_REDLOCK_4,
    NODE_REDLOCK_5,
    POTTERY_ASYNCIO,
    REDLOCK_NG_ASYNCIO,
    THREADS,
    Client,
    Processes,
)
from .measure import (
    Block,
    Result,
    Spread,
    failures,
    half,
    nodes,
    ordered,
    pair,
    processor,
    rate,
    ratio,
    read,
    spread,
)
from .stage import Stage

AT_ONCE = 8  # threads
PATIENT = 10.0  # a timeout that thousands of questions at once do not reach
OURS = (ASYNCIO, REDLOCK_NG_ASYNCIO)
OTHERS = (POTTERY_ASYNCIO, NODE_REDLOCK_4, NODE_REDLOCK_5)
# django-redlock in asyncio with settings of the application, see ``programs.ours``.
AS_IT_IS, UVLOOP, GC, NEWEST, TUNED, ALL = (
    Client(f"django-redlock, {label}", f"ours {words}", "asyncio")
    for label, words in {
        "as it is": "plain",
        "uvloop": "uvloop",
        "gc": "gc",
        "Python 3.13": "3.13",
        "uvloop, gc": "uvloop gc",
        "uvloop, gc, Python 3.13": "uvloop gc 3.13",
    }.items()
)


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
        processes.tell(result)
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
        result.figure(f"unpinned: {who}: locks per second", spread(read(taken, rate)))
    result.figure(f"unpinned: {who}: locks per second ÷ 1 thread", times, least=1)
    return result


def tasks(stage: Stage) -> Result:
    """Measure many tasks on one event loop, once all connections are there."""
    result = Result("Many tasks at once, each its own name")
    clients = (*OURS, *OTHERS)
    with stage.worked() as worked, Processes(stage, clients, timeout=PATIENT) as processes:
        for count in stage.effort.tasks:
            size = count * max(1, stage.effort.pairs // count)
            blocks = processes.in_turns(stage.effort.rounds, size, tasks=count, worked=worked)
            beside = _rates(result, blocks, count)
        processes.tell(result)
    result.figure(f"{count} tasks: locks per second, asyncio ÷ redlock-ng", beside, least=10)
    return result


def burst(stage: Stage) -> Result:
    """Measure as many tasks as there are, one lock each, in a process that has just started."""
    result = Result(
        "Many tasks at once, in a process that has just started",
        "Connecting is part of it. Timeouts are those that each library has by default.",
    )
    count = stage.effort.tasks[-1]
    blocks: dict[Client, list[Block]] = {}
    for turn in range(max(2, stage.effort.rounds // 8)):
        for timeout, clients in ordered(((0.1, OURS), (PATIENT, OTHERS)), turn):
            with stage.worked() as worked, Processes(stage, clients, timeout=timeout) as processes:
                for each in ordered(processes.present, turn):
                    taken = processes.metered(each, count, count, worked)
                    blocks.setdefault(each, []).append(taken)
                processes.tell(result)
    figure = f"from a start, {count} tasks: locks per second, asyncio ÷ redlock-ng"
    result.figure(figure, _rates(result, blocks, count), least=10)
    return result


def settings(stage: Stage) -> Result:
    """Measure the settings of an application with thousands of locks at once, each by itself."""
    count = stage.effort.tasks[-1]
    result = Result(
        f"{count:,} tasks at once, with the application's settings, unpinned",
        "gc: gc.freeze() and gc.set_threshold(20_000, 20, 20).",
    )
    clients = (AS_IT_IS, UVLOOP, GC, NEWEST, TUNED, ALL, REDLOCK_NG_ASYNCIO)
    with (
        stage.together(),
        stage.worked() as worked,
        Processes(stage, clients, timeout=PATIENT) as processes,
    ):
        blocks = processes.in_turns(stage.effort.rounds, count, tasks=count, worked=worked)
        processes.tell(result)
    rates = {each: read(taken, rate) for each, taken in blocks.items()}
    work = {each: read(taken, processor) for each, taken in blocks.items()}
    plain, others = rates.get(AS_IT_IS, ()), rates.get(REDLOCK_NG_ASYNCIO, ())
    for each, taken in blocks.items():
        result.rows.append(
            {
                "": each.label,
                "locks per second": spread(rates[each]),
                "÷ as it is": ratio(rates[each], plain),
                "÷ redlock-ng": ratio(rates[each], others),
                "client's processor, µs": spread(work[each]),
                "its ÷ as it is": ratio(work[each], work.get(AS_IT_IS, ())),
                "nodes' processors, µs": spread(read(taken, nodes)),
                "failed": failures(taken),
            }
        )
    for how, each, least in (("as it is", AS_IT_IS, 8), ("all settings", ALL, 10.5)):
        had = rates.get(each) or rates.get(TUNED) or []  # where there is no newer Python
        figure = f"unpinned: {count} tasks, {how}: locks per second"
        result.figure(figure, spread(had))
        result.figure(f"{figure} ÷ redlock-ng", ratio(had, others), least=least)
    return result


def _rates(result: Result, blocks: Mapping[Client, list[Block]], count: int) -> Spread | None:
    """Add the rows; our locks per second by those of redlock-ng."""
    for each, taken in blocks.items():
        result.rows.append(
            {
                "tasks": count,
                "": each.label,
                "locks per second": spread(read(taken, rate)),
                "acquire + release, ms": spread(one and one / 1000 for one in read(taken, pair)),
                "client's processor, µs": spread(read(taken, processor)),
                "nodes' processors, µs": spread(read(taken, nodes)),
                "failed": failures(taken),
            }
        )
    ours, others = (read(blocks.get(each, ()), rate) for each in OURS)
    return ratio(ours, others)

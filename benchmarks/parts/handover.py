"""The part about waiting: many processes, one name, and who gets it when."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from benchmarks.clients import CROWD, CROWD_BY_SOCKETS, CROWDS, Client
from benchmarks.processes import Processes
from benchmarks.result import Cell, Result
from benchmarks.stage import HUNG, Stage
from benchmarks.turns import Spread, ordered, ratio, spread

from .crowds import HOLD, Turns, gather, quantile

NOTE = f"""\
Each process waits, holds the name for {HOLD * 1000:g} ms, releases it and asks again, so \
{1 / HOLD:.0f} turns per second are ideal. Messages are what clients send to all nodes together, \
for one turn. Processor time, for one turn, is of all processes, and of all nodes."""


def hand_over(stage: Stage) -> Result:
    """Few and many processes of ours, few of others; then with the queue's node hung, or dead."""
    effort, (few, many) = stage.effort, stage.effort.waiters
    with stage.together(), Processes(stage, CROWDS) as processes:
        all_well: dict[tuple[Client, int], list[Turns]] = {}
        crowds = [*((each, few) for each in processes.present), (CROWD, many)]
        duel = [(CROWD_BY_SOCKETS, few), (CROWD, few)]
        for turn in range(effort.crowds + effort.duels):
            for each, size in ordered(crowds if turn < effort.crowds else duel, turn):
                turns = gather(stage, processes, each, size, seconds=effort.turns)
                all_well.setdefault((each, size), []).append(turns)
        hung, meanwhile = _hang(stage, processes)
        with stage.refused():
            dead = gather(stage, processes, CROWD, few, seconds=effort.turns, queue=HUNG)
    result = Result(
        "Hand-over: one name, many processes",
        NOTE,
        missing=processes.missing,
        versions=processes.versions,
    )
    for (each, size), taken in all_well.items():
        result.rows.append(_row(each.label, size, taken))
    result.rows.append(_row("django-redlock, queue's node hung meanwhile", few, [hung]))
    result.rows.append(_row("django-redlock, queue's node dead", few, [dead]))
    result.figures = (
        figures(few, all_well[CROWD, few])
        | figures(many, all_well[CROWD, many])
        | {
            f"{many} waiters ÷ {few}: messages for a turn": growth(
                all_well[CROWD, many], all_well[CROWD, few]
            )
        }
        | {
            f"{few} waiters: turns ÷ sockets by hand": beside(
                all_well[CROWD, few], all_well[CROWD_BY_SOCKETS, few]
            )
        }
        | ill(hung, meanwhile, all_well[CROWD, few])
    )
    return result


def _hang(stage: Stage, processes: Processes) -> tuple[Turns, tuple[float, float]]:
    """A crowd under which the queue's node hangs for a while; when it did."""
    hang, spans = stage.effort.hang, []

    def meanwhile() -> None:
        time.sleep(hang)
        with stage.hung():
            spans.append(time.monotonic())
            time.sleep(hang)
            spans.append(time.monotonic())

    few, _ = stage.effort.waiters
    taken = gather(stage, processes, CROWD, few, seconds=3 * hang, queue=HUNG, meanwhile=meanwhile)
    return taken, (spans[0], spans[-1])


# -- reading --------------------------------------------------------------------------------------


def _row(label: str, processes: int, taken: Sequence[Turns]) -> dict[str, Cell]:
    failed = sum(turns.failed for turns in taken)
    errors = [turns.error.partition(":")[0] for turns in taken if turns.error]
    return {
        "": label,
        "by": processes,
        "turns per s": spread(turns.rate for turns in taken),
        "wait, p50, ms": _waits(taken, 0.5),
        "p99": _waits(taken, 0.99),
        "longest": _waits(taken, 1.0),
        "fewest ÷ most": spread(turns.evenness for turns in taken),
        "messages": spread(turns.each(turns.messages) for turns in taken),
        "next, ms": _gaps(taken),
        "clients, µs": spread(turns.each(turns.clients) * 1e6 for turns in taken),
        "nodes, µs": spread(turns.each(turns.nodes) * 1e6 for turns in taken),
        "failed": f"{failed}: {errors[0]}" if failed else "0",
    }


def _waits(taken: Sequence[Turns], part: float) -> Spread | None:
    return _milliseconds(quantile(turns.waits, part) for turns in taken)


def _gaps(taken: Sequence[Turns]) -> Spread | None:
    return _milliseconds(quantile(turns.gaps, 0.5) for turns in taken)


def _milliseconds(seconds: Iterable[float | None]) -> Spread | None:
    return spread(None if value is None else value * 1000 for value in seconds)


def figures(processes: int, taken: Sequence[Turns]) -> dict[str, Spread | None]:
    """What goals are set for, of a crowd with all nodes well."""
    return {
        f"{processes} waiters: {what}": value
        for what, value in {
            "turns ÷ the ideal": spread(turns.rate * HOLD for turns in taken),
            "wait, p50, ms": _waits(taken, 0.5),
            "wait, p99, ms": _waits(taken, 0.99),
            "fewest ÷ most turns": spread(turns.evenness for turns in taken),
            "messages for a turn": spread(turns.each(turns.messages) for turns in taken),
            "release to the next one's return, ms": _gaps(taken),
        }.items()
    }


def growth(many: Sequence[Turns], few: Sequence[Turns]) -> Spread | None:
    """Messages for a turn of the one by those of the other."""
    above, below = ([turns.each(turns.messages) for turns in each] for each in (many, few))
    return ratio(above, below)


def beside(ours: Sequence[Turns], others: Sequence[Turns]) -> Spread | None:
    """Turns per second of the one by those of the other."""
    return ratio([turns.rate for turns in ours], [turns.rate for turns in others])


def ill(
    hung: Turns, during: tuple[float, float], well: Sequence[Turns]
) -> dict[str, Spread | None]:
    """What a hung node did to those who wait there."""
    usual = spread(quantile(turns.waits, 1.0) for turns in well)
    longest = quantile(hung.waits, 1.0)
    longer = None if usual is None or longest is None else longest - usual.median
    return {
        "queue's node hung: longest wait, s more": spread([longer]),
        "queue's node hung: fewest turns of a process meanwhile": spread([hung.fewest(*during)]),
    }

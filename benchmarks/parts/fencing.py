"""What a fence costs: statements of claimed rows, beside the same ones of Django alone."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from benchmarks.result import Result
from benchmarks.stage import Stage
from benchmarks.turns import ordered, ratio, spread
from tests.support.databases import KINDS, connected, database, why_not

ALIAS: Final = "fencing"
NAMES: Final = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mariadb": "MariaDB"}
DURABLE: Final = {True: "", False: ", no wait for the disk"}
PLAIN, FENCED = "update()", "update() of a claimed row"
LOCKED, CLAIMED = "select_for_update().get(), update()", "claim, get(), update()"
PAIRS: Final = {  # what is compared with what, and the figure
    FENCED: (PLAIN, "fenced update ÷ plain update"),
    CLAIMED: (LOCKED, "claim, read, update ÷ select_for_update, update"),
}
Act = Callable[[], object]
Ways = dict[str, Callable[[], Act]]  # each makes ready, which takes no part in the time, an act


def fencing(stage: Stage) -> Result:
    """Update one row of each database, with a fence and without, in turns."""
    result = Result(
        "Fenced rows",
        "One row, one connection, servers of this machine. Microseconds; the last two ways of each "
        "are transactions with BEGIN and COMMIT, and the first two are one statement each. A "
        "COMMIT waits for the disk, as the databases are; in the rows that say so it does not, so "
        "that what Django and the fence do is all there is.",
    )
    for kind, durable in itertools.product(KINDS, DURABLE):
        name = NAMES[kind] + DURABLE[durable]
        if why_not(kind):
            result.missing[NAMES[kind]] = why_not(kind)
            result.figures |= {f"{name}: {figure}": None for _, figure in PAIRS.values()}
            continue
        with _row(stage, kind, result, durable=durable) as ways:
            times = in_turns(stage, ways)
        for way, each in times.items():
            other, figure = PAIRS.get(way, (way, ""))
            quotient = ratio(each, times[other])
            label = f"{name}: {way}"
            result.rows.append({"": label, "µs": spread(each), "÷ the one above": quotient})
            if figure:
                result.figures[f"{name}: {figure}"] = quotient
    return result


def in_turns(stage: Stage, ways: Ways) -> dict[str, list[float | None]]:
    """Microseconds of each way by turns, after one to warm up.

    Within a turn, too, one comes after the other: a disk is slow for a while, and then fast.
    """
    medians: dict[str, list[float | None]] = {way: [] for way in ways}
    for turn in range(stage.effort.rounds + 1):
        times: dict[str, list[float]] = {way: [] for way in ways}
        for number in range(stage.effort.pairs):
            for way in ordered(list(ways), number):
                act = ways[way]()
                start = time.perf_counter()
                act()
                times[way].append(time.perf_counter() - start)
        if turn:
            for way, each in times.items():
                medians[way].append(statistics.median(each) * 1e6)
    return medians


@contextmanager
def _row(stage: Stage, kind: str, result: Result, *, durable: bool) -> Iterator[Ways]:
    """A row in a database of its own, and the ways to write it."""
    from django.db import connections
    from django.test import override_settings

    from django_redlock import redlock
    from tests.fencing import tables

    with ExitStack() as stack:
        settings = stack.enter_context(database(kind, durable=durable))
        stack.enter_context(connected(settings, ALIAS))
        tables.create(ALIAS)
        made: Any = tables.Counter.objects.using(ALIAS).create()
        version = connections[ALIAS].get_database_version()
        result.versions[NAMES[kind]] = ".".join(map(str, version))
        stack.enter_context(override_settings(REDLOCK={"default": stage.alias}))
        lease = stack.enter_context(redlock("fencing"))
        yield _ways(lease, tables.Counter.objects.using(ALIAS), made.pk)


def _ways(lease: Any, counters: Any, key: int) -> Ways:
    from django.db import transaction

    from django_redlock.fencing import fenced

    numbers = itertools.count()

    def plain() -> Act:
        fenced(lease, counters.filter(pk=key))  # a COMMIT before it, as there is before the other
        return lambda: counters.filter(pk=key).update(value=next(numbers))

    def with_fence() -> Act:
        claimed = fenced(lease, counters.filter(pk=key))
        return lambda: claimed.update(value=next(numbers))

    def locked() -> None:
        with transaction.atomic(using=ALIAS):
            counters.select_for_update().get(pk=key)
            counters.filter(pk=key).update(value=next(numbers))

    def with_claim() -> None:
        with transaction.atomic(using=ALIAS):
            rows = fenced(lease, counters.filter(pk=key))
            rows.get()
            rows.update(value=next(numbers))

    return {
        PLAIN: plain,
        FENCED: with_fence,
        LOCKED: lambda: locked,
        CLAIMED: lambda: with_claim,
    }

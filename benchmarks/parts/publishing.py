"""What a mark adds to sending a Celery message, over a broker beside the nodes."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from benchmarks.result import Result
from benchmarks.stage import PROCESSORS, Stage, pin
from benchmarks.turns import ordered, ratio, spread
from django_redlock.testing import EmbeddedNode

PLAIN, MARKED, DUPLICATE = "plain", "with a mark", "a duplicate"
LIFE = 60.0  # seconds that a mark lasts


def publishing(stage: Stage) -> Result:
    """Send messages of one task without and with a mark, and duplicates, in turns."""
    result = Result(
        "Sending a Celery message",
        "One thread, a Redis broker, results ignored. Microseconds for each call of delay(); a "
        "duplicate is not sent.",
    )
    numbers = itertools.count()
    times: dict[str, list[float | None]] = {PLAIN: [], MARKED: [], DUPLICATE: []}
    with _tasks(stage) as (plain, marked):
        sending: dict[str, Callable[[], object]] = {
            PLAIN: lambda: plain.delay(next(numbers)),
            MARKED: lambda: marked.delay(next(numbers)),
            DUPLICATE: lambda: marked.delay(-1),
        }
        for turn in range(stage.effort.rounds + 1):
            for name in ordered(list(sending), turn):
                taken = _median(sending[name], stage.effort.pairs)
                if turn:
                    times[name].append(taken)
    for name, each in times.items():
        result.rows.append({"": name, "µs": spread(each), "÷ plain": ratio(each, times[PLAIN])})
    result.figures["publish with a mark ÷ plain publish"] = ratio(times[MARKED], times[PLAIN])
    return result


@contextmanager
def _tasks(stage: Stage) -> Iterator[tuple[Any, Any]]:
    """A task without marks and one with, at a broker of their own."""
    from celery import Celery
    from django.test import override_settings

    from django_redlock.celery import LockedTask, locked_task

    with closing(EmbeddedNode()) as broker, override_settings(REDLOCK={"default": stage.alias}):
        broker.start()
        if len(PROCESSORS) > 1:
            pin(broker.pid, PROCESSORS[1:])
        app = Celery("publishing", broker=broker.url, set_as_current=False)
        app.conf.task_ignore_result = True

        @locked_task("publishing:{number}")
        def plain(number: int) -> None: ...

        @locked_task("publishing:{number}", mode="until_finished", queue_ttl=LIFE)
        def marked(number: int) -> None: ...

        yield app.task(plain, shared=False), app.task(marked, shared=False, base=LockedTask)
        app.close()


def _median(send: Callable[[], object], count: int) -> float:
    """The median of so many calls, in microseconds."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        send()
        times.append(time.perf_counter() - start)
    return sorted(times)[count // 2] * 1e6

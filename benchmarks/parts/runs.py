"""What the lock of a Celery task adds to a run of a message, without and with its record."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from benchmarks.result import Result
from benchmarks.stage import Stage
from benchmarks.turns import ordered, ratio, spread

BARE, PLAIN, LOCKED, RECORDED = (
    "acquire + release",
    "a task",
    "a locked task",
    "with a completion record",
)


def runs(stage: Stage) -> Result:
    """Run messages of an empty task, as a worker does, in turns with a bare lock."""
    result = Result(
        "Running a Celery message",
        "One thread, Celery's tracer, results ignored. Microseconds; what a lock adds is compared "
        "with a bare one.",
    )
    times: dict[str, list[float | None]] = {each: [] for each in (BARE, PLAIN, LOCKED, RECORDED)}
    with _ways(stage) as ways:
        for turn in range(stage.effort.rounds + 1):
            for name in ordered(list(times), turn):
                taken = _median(ways[name], stage.effort.pairs)
                if turn:
                    times[name].append(taken)
    assert _records(stage) >= (stage.effort.rounds + 1) * stage.effort.pairs
    for name, each in times.items():
        added = _above(each, times[PLAIN]) if name in (LOCKED, RECORDED) else []
        result.rows.append(
            {"": name, "µs": spread(each), "adds, ÷ bare": ratio(added, times[BARE])}
        )
        if added:
            result.figures[f"{name}: adds ÷ a bare lock"] = ratio(added, times[BARE])
    return result


def _above(times: list[float | None], plain: list[float | None]) -> list[float | None]:
    return [one and other and one - other for one, other in zip(times, plain, strict=True)]


def _records(stage: Stage) -> int:
    """How many completion records the first node has."""
    with closing(stage.nodes[0].client(decode_responses=True)) as client:
        keys = list(client.scan_iter("redlock:lock:run:*", count=1000))
        return sum(str(value).startswith("done:") for value in client.mget(keys))


@contextmanager
def _ways(stage: Stage) -> Iterator[dict[str, Callable[[], object]]]:
    """What is measured, by its name."""
    from celery import Celery
    from celery.app.trace import build_tracer
    from django.test import override_settings

    from django_redlock import redlock
    from django_redlock.celery import LockedTask, locked_task

    app = Celery("runs", set_as_current=False)
    app.conf.update(task_ignore_result=True, broker_transport_options={"visibility_timeout": 60})
    numbers = itertools.count()

    def plain(number: int) -> None: ...

    @locked_task("runs:{number}")
    def locked(number: int) -> None: ...

    @locked_task("runs:{number}")
    def recorded(number: int) -> None: ...

    def run(function: Any, **options: Any) -> Callable[[], object]:
        task = app.task(function, shared=False, **options)
        trace = build_tracer(task.name, task, app=app)

        def once() -> None:
            number = next(numbers)
            header = {"redlock": {"message": f"bench-{number}"}}
            message = {"headers": header, "delivery_info": {}, "hostname": "bench"}
            state = trace(f"id-{number}", (number,), {}, message).retval
            assert state is None, state

        return once

    def bare() -> None:
        with redlock(f"runs:{next(numbers)}"):
            pass

    late = {"acks_late": True, "base": LockedTask}
    with override_settings(REDLOCK={"default": stage.alias}):
        yield {BARE: bare, PLAIN: run(plain), LOCKED: run(locked), RECORDED: run(recorded, **late)}


def _median(act: Callable[[], object], count: int) -> float:
    """The median of so many calls, in microseconds."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        act()
        times.append(time.perf_counter() - start)
    return sorted(times)[count // 2] * 1e6

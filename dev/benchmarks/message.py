"""What do marks, locks and completion records add to a Celery message?"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import closing
from typing import Any

from .measure import Result, calls, ratio, spread
from .stage import PROCESSORS, Stage, pin

PLAIN, MARKED, DUPLICATE = "plain", "with a mark", "a duplicate"
BARE, TASK, LOCKED, RECORDED = (
    *("acquire + release", "a task"),
    *("a locked task", "with a completion record"),
)
LIFE = 60.0  # seconds that a mark lasts


def publishing(stage: Stage) -> Result:
    """Send messages of one task without and with a mark, and duplicates, in turns."""
    from celery import Celery
    from django.test import override_settings

    from django_redlock.celery import LockedTask, locked_task
    from django_redlock.testing import EmbeddedNode

    result = Result(
        "Sending a Celery message",
        "One thread, a Redis broker, results ignored. Microseconds for each call of delay(); a "
        "duplicate is not sent.",
    )
    with closing(EmbeddedNode()) as broker, override_settings(REDLOCK={"default": stage.alias}):
        broker.start()
        if len(PROCESSORS) > 1:
            pin(broker.pid, PROCESSORS[1:])
        app = Celery("publishing", broker=broker.url, set_as_current=False)
        app.conf.task_ignore_result = True

        @locked_task("publishing:{number}")
        def without(number: int) -> None: ...

        @locked_task("publishing:{number}", mode="until_finished", queue_ttl=LIFE)
        def queued(number: int) -> None: ...

        plain: Any = app.task(without, shared=False)
        marked: Any = app.task(queued, shared=False, base=LockedTask)
        numbers = itertools.count()
        ways = {
            PLAIN: lambda: plain.delay(next(numbers)),
            MARKED: lambda: marked.delay(next(numbers)),
            DUPLICATE: lambda: marked.delay(-1),
        }
        times = calls(ways, stage.effort.rounds, stage.effort.pairs)
        app.close()
    for name, each in times.items():
        result.rows.append({"": name, "µs": spread(each), "÷ plain": ratio(each, times[PLAIN])})
    marks = ratio(times[MARKED], times[PLAIN])
    result.figure("publish with a mark ÷ plain publish", marks, most=2)
    return result


def runs(stage: Stage) -> Result:
    """Run messages of an empty task, as a worker does, in turns with a bare lock."""
    from celery import Celery
    from celery.app.trace import build_tracer
    from django.test import override_settings

    from django_redlock import redlock
    from django_redlock.celery import LockedTask, locked_task

    result = Result(
        "Running a Celery message",
        "One thread, Celery's tracer, results ignored. Microseconds; what a lock adds is compared "
        "with a bare one.",
    )
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
    ways = {BARE: bare, TASK: run(plain), LOCKED: run(locked), RECORDED: run(recorded, **late)}
    with override_settings(REDLOCK={"default": stage.alias}):
        times = calls(ways, stage.effort.rounds, stage.effort.pairs)
    assert _records(stage) >= (stage.effort.rounds + 1) * stage.effort.pairs
    for name, each in times.items():
        added = [one - other for one, other in zip(each, times[TASK], strict=True) if one and other]
        above = ratio(added, times[BARE]) if name in (LOCKED, RECORDED) else None
        result.rows.append({"": name, "µs": spread(each), "adds, ÷ bare": above})
        if above:
            most = 1.5 if name == LOCKED else 2
            result.figure(f"{name}: adds ÷ a bare lock", above, most=most)
    return result


def _records(stage: Stage) -> int:
    """How many completion records the first node has."""
    with closing(stage.nodes[0].client(decode_responses=True)) as client:
        keys = list(client.scan_iter("redlock:lock:run:*", count=1000))
        return sum(str(value).startswith("done:") for value in client.mget(keys))

"""System checks of locked tasks. They contact no node and no broker.

``apps`` registers them: a process that imports its tasks when it first needs one, as a web server
does, imports this package too late. A worker runs all checks at its start and shows none, so this
module logs them.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from datetime import timedelta
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from typing import Any, Final

from celery import Task, _state, current_app
from celery.schedules import crontab, schedule
from celery.signals import celeryd_after_setup, import_modules
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from django_redlock import conf
from django_redlock.checks import KnownLock, documented, of_names
from django_redlock.work.plan import OF_DJANGO, Plan, plan_of

from .backoff import visibility_timeout
from .publishing import seconds_queued

W006: Final = "django_redlock.W006"  # a task that outlives its lock
W007: Final = "django_redlock.W007"  # a task that outlives the visibility timeout
W009: Final = "django_redlock.W009"  # acks_late without reject_on_worker_lost
W027: Final = "django_redlock.W027"  # a task on Celery's default app
W028: Final = "django_redlock.W028"  # a mark that outlives the period of beat
EVERY_DAY: Final = (7, 31, 12)  # of weeks, months and years, in a crontab
logger = logging.getLogger("django_redlock")
WITH_VISIBILITY: Final = ("redis", "rediss", "sentinel", "unix", "sqs")  # schemes of brokers


def check_tasks() -> list[checks.CheckMessage]:
    """Import the modules with tasks that a worker imports, and report what is risky about them."""
    before = frozenset() if _knows_an_app() else frozenset(sys.modules)
    package = ""
    with suppress(Exception):  # of the project; a worker that starts shows the whole traceback
        package = _import_app()
        if _may_ask():
            _import_tasks()
            _ = current_app.tasks  # makes them
    return [*_find(), *documented(_without_app(package, before))]


def _knows_an_app() -> bool:
    """Tell whether there is an app other than the one that Celery makes where there is none."""
    app = _state._tls.current_app or _state.default_app  # noqa: SLF001 - asking for it makes one
    return app is not None and (app.main != "default" or app.set_as_current)


def _without_app(package: str, before: Collection[str]) -> Iterator[checks.CheckMessage]:
    """Yield W027 if a process as this one had tasks, of modules ``before``, and no app for them."""
    names = [task.name for task, _ in _locked() if type(task).__module__ in before]
    if names:
        more = f" and {len(names) - 1} more" if names[1:] else ""
        yield checks.Warning(
            f"The task {names[0]}{more} is imported by a process as this one, and so by a web "
            "server, and the Celery app of the project is not: there the task belongs to Celery's "
            "default app, whose broker is a RabbitMQ on this machine.",
            hint=f"Write 'from .celery import app as celery_app' in {package}/__init__.py."
            if package
            else "Import the app of the project in the __init__.py of the package of its settings.",
            id=W027,
        )


def log_checks(**_: Any) -> None:
    """Log what is wrong with the tasks of a worker that starts."""
    for message in _find():
        if not message.is_silenced():
            logger.log(message.level, "%s: %s %s", message.id, message.msg, message.hint)


celeryd_after_setup.connect(log_checks)


def _import_app() -> str:
    """Import the application from where Celery's documentation puts it; return its package."""
    package = (settings.SETTINGS_MODULE or "").partition(".")[0]
    module = None
    with suppress(ImportError, ValueError):  # a settings.py that is in no package
        module = find_spec(f"{package}.celery")
    if module is None:
        return ""
    import_module(module.name)
    return package


def _import_tasks() -> None:
    loader = current_app.loader
    # Celery's part for Django first calls django.setup(), which sets up logging anew and so may
    # disable loggers, and runs all checks, of which this is one.
    parts = [part for part in loader.app._fixups if hasattr(part, "on_import_modules")]  # noqa: SLF001
    removed = []
    for receiver in [part.on_import_modules for part in parts]:
        for sender in (loader.app, None):  # Celery 5.6 connects it for any sender
            before = len(import_modules.receivers)
            import_modules.disconnect(receiver, sender=sender)
            if len(import_modules.receivers) < before:
                removed.append((receiver, sender))
    try:
        loader.import_default_modules()
    finally:
        for receiver, sender in removed:
            import_modules.connect(receiver, sender=sender)


def _may_ask() -> bool:
    """Tell whether the application may be asked for its tasks; else that is an error."""
    return bool(current_app.finalized or current_app.autofinalize)


def _locked() -> list[tuple[Task, Plan]]:
    if not _may_ask():
        return []
    plans = [(task, plan_of(task.run)) for _, task in sorted(current_app.tasks.items())]
    return [(task, plan) for task, plan in plans if plan is not None]


def known_locks() -> Iterator[KnownLock]:
    """Yield the locks of the tasks, for the check of limits."""
    for task, plan in _locked():
        where = f"the task {task.name}"
        yield from of_names(where, plan.template.alias, plan.names or (), plan.limit)


def _find() -> list[checks.CheckMessage]:
    return documented(message for pair in _locked() for message in _risks(*pair))


def _risks(task: Task, plan: Plan) -> Iterator[checks.CheckMessage]:
    if plan.owner == OF_DJANGO:  # it has none of these
        return
    options = plan.template.options
    try:
        backend = conf.backend(plan.template.alias)
    except ImproperlyConfigured:  # each run will say so
        return
    ttl = backend.ttl if options.ttl is None else options.ttl
    renew = backend.renew if options.renew is None else options.renew
    max_hold = backend.max_hold if options.max_hold is None else options.max_hold
    limit = _time_limit(task)
    if not renew and limit > ttl:
        yield checks.Warning(
            f"The task {task.name} may run for {limit:g} s, by its time limit, and its lock ends "
            f"after {ttl:g} s: it is not renewed.",
            hint="Leave renew=False out, or choose a ttl above the time limit.",
            id=W006,
        )
    if plan.marks:
        yield from _of_beat(task, plan)
    if task.acks_late:
        yield from _late_risks(task, max(max_hold or 0.0, limit))


def _of_beat(task: Task, plan: Plan) -> Iterator[checks.CheckMessage]:
    """Yield W028 for each entry of beat whose messages come faster than a mark ends."""
    for name, entry in task.app.conf.beat_schedule.items():
        if not isinstance(entry, Mapping) or entry.get("task") != task.name:
            continue
        period = _period(entry.get("schedule"))
        try:
            life = seconds_queued(task, entry.get("options") or {}, plan.queue_ttl)
        except (TypeError, ValueError):
            continue  # Celery will refuse it
        if life > period:
            yield checks.Warning(
                f"The task {task.name} is sent by beat every {period:g} s, and a message that a "
                "killed worker had fetched, and not begun, keeps the next ones from being sent for "
                f"up to {life:g} s.",
                hint=f"Give the entry {name!r} 'options': {{'expires': …}} of less than "
                f"{period:g} s, or the task queue_ttl=.",
                id=W028,
            )


def _period(when: Any) -> float:
    """Return the least seconds between two messages of an entry; infinite: they are not known."""
    if isinstance(when, crontab):
        if (len(when.day_of_week), len(when.day_of_month), len(when.month_of_year)) != EVERY_DAY:
            return math.inf
        minutes: list[int] = sorted(60 * hour + each for hour in when.hour for each in when.minute)
        tomorrow = 24 * 60 + minutes[0]
        return min(60.0 * (later - each) for each, later in pairwise([*minutes, tomorrow]))
    if isinstance(when, schedule):
        when = when.run_every
    if isinstance(when, timedelta):
        return when.total_seconds()
    return float(when) if isinstance(when, int | float) else math.inf


def _late_risks(task: Task, longest: float) -> Iterator[checks.CheckMessage]:
    """Yield what is risky about a task that is acknowledged late.

    Args:
        longest: seconds for which it may hold its lock, as far as that is known.
    """
    url = task.app.conf.broker_url
    scheme = url.partition("://")[0] if isinstance(url, str) else ""
    timeout = visibility_timeout(task)
    if scheme in WITH_VISIBILITY and longest > timeout:
        yield checks.Warning(
            f"The task {task.name} may hold its lock for {longest:g} s, and the broker delivers "
            f"its message again after {timeout:g} s.",
            hint="Set visibility_timeout in broker_transport_options above it, for all processes.",
            id=W007,
        )
    if not task.reject_on_worker_lost:
        yield checks.Warning(
            f"The task {task.name} has acks_late, and the message of a killed process is lost all "
            "the same: Celery acknowledges it.",
            hint="Write reject_on_worker_lost=True, or set task_reject_on_worker_lost.",
            id=W009,
        )


def _time_limit(task: Task) -> float:
    """Return the seconds after which Celery ends a run, or 0."""
    settings = task.app.conf
    hard = task.time_limit or settings.task_time_limit
    soft = task.soft_time_limit or settings.task_soft_time_limit
    return max(hard or 0.0, soft or 0.0)

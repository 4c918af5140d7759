"""System checks of locked tasks. They contact no node and no broker.

``apps`` registers them: a process that imports its tasks when it first needs one, as a web server
does, imports this package too late. A worker runs all checks at its start and shows none, so this
module logs them.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

from celery import Task, current_app
from celery.backends.base import DisabledBackend
from celery.signals import celeryd_after_setup, import_modules
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from django_redlock import conf
from django_redlock.checks import check_options, documented

from .backoff import visibility_timeout
from .plan import Plan, plan_of
from .task import LockedTask

E002: Final = "django_redlock.E002"
E005: Final = "django_redlock.E005"
W006: Final = "django_redlock.W006"
W007: Final = "django_redlock.W007"
W008: Final = "django_redlock.W008"
W009: Final = "django_redlock.W009"
logger = logging.getLogger("django_redlock")
WITH_VISIBILITY: Final = ("redis", "rediss", "sentinel", "unix", "sqs")  # schemes of brokers


def check_tasks() -> list[checks.CheckMessage]:
    """Import the modules with tasks that a worker imports, and report what is wrong with them.

    E002 is for a task that has marks and cannot set them, E003 for one whose lock nobody can have,
    E005 for a module that cannot be imported, W006 to W009 for what works but is risky.
    """
    try:
        _import_app()
        if _may_ask():
            _import_tasks()
    except Exception as error:  # noqa: BLE001 - a module of the project may raise anything
        return [_not_imported(error), *_found()]
    return _found()


def log_checks(**_: Any) -> None:
    """Log what is wrong with the tasks of a worker that starts."""
    for message in _found():
        if not message.is_silenced():
            logger.log(message.level, "%s: %s %s", message.id, message.msg, message.hint)


celeryd_after_setup.connect(log_checks)


def _import_app() -> None:
    """Import the application from where Celery's documentation puts it, if nobody has yet."""
    package = (settings.SETTINGS_MODULE or "").partition(".")[0]
    module = None
    with suppress(ValueError):  # of a module without a spec
        found = find_spec(package) if package else None
        # A settings.py without a package around it has no module beside it that is the project's.
        if found and found.submodule_search_locations:
            module = find_spec(f"{package}.celery")
    if module:
        import_module(module.name)


def _not_imported(error: Exception) -> checks.CheckMessage:
    """Name what failed, where, and how to see the rest; not the way through Celery to it."""
    ran = [
        (frame.f_globals.get("__name__", "?"), number)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_name == "<module>"
    ]
    # The first one is a module that Celery imported: ``manage.py`` and ours have run before.
    ran = [each for each in ran if each[0].partition(".")[0] not in {"__main__", "django_redlock"}]
    where = f" in {ran[-1][0]}, line {ran[-1][1]}" if ran else ""
    module = ran[0][0] if ran else getattr(error, "name", None) or "the module"
    return checks.Error(
        f"The tasks of the project cannot be imported, so no worker starts: "
        f"{type(error).__name__}{where}: {error}",
        hint=f"To see the whole traceback, import {module} in 'manage.py shell'.",
        id=E005,
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Let Celery's signals log no traceback of what they raise all the same."""
    log = logging.getLogger("celery.utils.dispatch.signal")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


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
        with _quiet():
            loader.import_default_modules()
    finally:
        for receiver, sender in removed:
            import_modules.connect(receiver, sender=sender)


def _may_ask() -> bool:
    """Tell whether the application may be asked for its tasks; else that is an error."""
    return bool(current_app.finalized or current_app.autofinalize)


def _found() -> list[checks.CheckMessage]:
    if not _may_ask():
        return []
    plans = [(task, plan_of(task.run)) for _, task in sorted(current_app.tasks.items())]
    locked = [(task, plan) for task, plan in plans if plan is not None]
    found = [message for task, plan in locked for message in _impossible(task, plan)]
    return documented([*found, *(each for pair in locked for each in _risks(*pair))])


def _impossible(task: Task, plan: Plan) -> Iterator[checks.CheckMessage]:
    broken = f"The task {task.name} fails in each run"
    return check_options(broken, plan.template.alias, plan.template.options)


def _risks(task: Task, plan: Plan) -> Iterator[checks.CheckMessage]:
    options = plan.template.options
    try:
        backend = conf.backend(plan.template.alias)
    except ImproperlyConfigured:  # E001 and E003 say so
        return
    ttl = backend.ttl if options.ttl is None else options.ttl
    renew = backend.renew if options.renew is None else options.renew
    max_hold = backend.max_hold if options.max_hold is None else options.max_hold
    limit = _time_limit(task)
    if plan.marks and not isinstance(task, LockedTask):
        yield checks.Error(
            f"The task {task.name} has mode={plan.mode!r}, and its class sends messages "
            "without marks: equal messages would be queued twice.",
            hint="Write @shared_task(base=LockedTask), or let its class inherit from it.",
            id=E002,
        )
    if not renew and limit > ttl:
        yield checks.Warning(
            f"The task {task.name} may run for {limit:g} s, by its time limit, and its lock ends "
            f"after {ttl:g} s: it is not renewed.",
            hint="Leave renew=False out, or choose a ttl above the time limit.",
            id=W006,
        )
    if task.acks_late:
        yield from _late_risks(task, max(max_hold or 0.0, limit))
    if plan.marks and plan.on_duplicate == "existing" and isinstance(task.backend, DisabledBackend):
        yield checks.Warning(
            f"The task {task.name} returns the result of the first message for a duplicate, and "
            "its application stores no results: nobody can wait for it or see its state.",
            hint="Set a result backend, or on_duplicate='drop', 'raise' or a function.",
            id=W008,
        )


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

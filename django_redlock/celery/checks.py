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
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from celery import current_app
from celery.backends.base import DisabledBackend
from celery.signals import celeryd_after_setup, import_modules
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from django_redlock import conf
from django_redlock.checks import check_options, documented

from .decorator import LockedTask
from .publishing.plan import Plan, plan_of
from .redelivery import visibility_timeout

if TYPE_CHECKING:
    from celery import Task

E002: Final = "django_redlock.E002"
E005: Final = "django_redlock.E005"
W006: Final = "django_redlock.W006"
W007: Final = "django_redlock.W007"
W008: Final = "django_redlock.W008"
W009: Final = "django_redlock.W009"
logger = logging.getLogger("django_redlock")
WITH_VISIBILITY: Final = ("redis", "rediss", "sentinel", "unix", "sqs")  # schemes of brokers


class Locked(NamedTuple):
    """A task, and how it is locked.

    Attributes:
        ttl, renew, max_hold: those of its locks, in seconds; from the alias where it has none.
    """

    task: Task
    plan: Plan
    ttl: float
    renew: bool
    max_hold: float | None

    @property
    def longest(self) -> float | None:
        """Return the seconds after which Celery ends a run, or None."""
        task, settings = self.task, self.task.app.conf
        limits = (
            task.time_limit or settings.task_time_limit,
            task.soft_time_limit or settings.task_soft_time_limit,
        )
        return max((limit for limit in limits if limit), default=None)


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
    with suppress(ValueError):
        found = find_spec(package) if package else None
        # A settings.py without a package around it has no module beside it that is the project's.
        if found and found.submodule_search_locations and find_spec(f"{package}.celery"):
            import_module(f"{package}.celery")


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
    own = [part.on_import_modules for part in parts]
    for receiver in own:
        import_modules.disconnect(receiver, sender=loader.app)
    try:
        with _quiet():
            loader.import_default_modules()
    finally:
        for receiver in own:
            import_modules.connect(receiver, sender=loader.app)


def _may_ask() -> bool:
    """Tell whether the application may be asked for its tasks; else that is an error."""
    return bool(current_app.finalized or current_app.autofinalize)


def _found() -> list[checks.CheckMessage]:
    found = [message for task, plan in _plans() for message in _impossible(task, plan)]
    return documented([*found, *(each for locked in _locked() for each in _look_at(locked))])


def _plans() -> Iterator[tuple[Task, Plan]]:
    if not _may_ask():
        return
    for _, task in sorted(current_app.tasks.items()):
        plan = plan_of(task.run)
        if plan is not None:
            yield task, plan


def _impossible(task: Task, plan: Plan) -> Iterator[checks.CheckMessage]:
    broken = f"The task {task.name} fails in each run"
    return check_options(broken, plan.template.alias, plan.template.options)


def _locked() -> Iterator[Locked]:
    for task, plan in _plans():
        with suppress(ImproperlyConfigured):  # E001 and E003 tell of that
            backend, options = conf.backend(plan.template.alias), plan.template.options
            yield Locked(
                task,
                plan,
                backend.ttl if options.ttl is None else options.ttl,
                backend.renew if options.renew is None else options.renew,
                backend.max_hold if options.max_hold is None else options.max_hold,
            )


def _look_at(locked: Locked) -> Iterator[checks.CheckMessage]:
    task, options = locked.task, locked.plan.options
    if options.marks and not isinstance(task, LockedTask):
        yield checks.Error(
            f"The task {task.name} has mode={options.mode!r}, and its class sends messages "
            "without marks: equal messages would be queued twice.",
            hint="Write @shared_task(base=LockedTask), or let its class inherit from it.",
            id=E002,
        )
    longest = locked.longest
    if longest is not None and not locked.renew and longest > locked.ttl:
        yield checks.Warning(
            f"The task {task.name} may run for {longest:g} s, by its time limit, and its lock ends "
            f"after {locked.ttl:g} s: it is not renewed.",
            hint="Leave renew=False out, or choose a ttl above the time limit.",
            id=W006,
        )
    yield from _redelivery(locked)
    if options.marks and options.on_duplicate == "existing" and _has_no_results(task):
        yield checks.Warning(
            f"The task {task.name} returns the result of the first message for a duplicate, and "
            "its application stores no results: nobody can wait for it or see its state.",
            hint="Set a result backend, or on_duplicate='drop', 'raise' or a function.",
            id=W008,
        )


def _redelivery(locked: Locked) -> Iterator[checks.CheckMessage]:
    """Yield what is risky about a task that is acknowledged late."""
    task = locked.task
    if not task.acks_late:
        return
    longest = max(locked.max_hold or 0.0, locked.longest or 0.0)
    timeout = visibility_timeout(task)
    if _scheme(task) in WITH_VISIBILITY and longest > timeout:
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


def _scheme(task: Task) -> str:
    url = task.app.conf.broker_url or ""
    return url.partition("://")[0] if isinstance(url, str) else ""


def _has_no_results(task: Task) -> bool:
    return isinstance(task.backend, DisabledBackend)

"""System checks of Django's own tasks under ``@locked_task``, those that have been imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from django.core import checks

from django_redlock.checks import KnownLock, documented, of_names
from django_redlock.work.plan import Plan, djangos_task, locked_functions, plan_of

from .backend import UniqueBackend
from .backport import DUMMY, IMMEDIATE
from .run import AnyTask

E002: Final = "django_redlock.E002"  # a task whose backend sets no marks
W030: Final = "django_redlock.W030"  # a retry that the backend cannot send for later


def check_tasks() -> list[checks.CheckMessage]:
    """Report E002 and W030 of the tasks that have been imported.

    The backends of development and tests, which run a task at once or never, are not looked at.
    """
    return documented(message for task, plan in _locked() for message in _find(task, plan))


def known_locks() -> Iterator[KnownLock]:
    """Yield the locks of the tasks, for the check of limits."""
    for task, plan in _locked():
        where = f"the task {task.module_path}"
        yield from of_names(where, plan.template.alias, plan.names or (), plan.limit)


def _locked() -> list[tuple[AnyTask, Plan]]:
    tasks = filter(None, map(djangos_task, tuple(locked_functions)))
    plans = [
        (task, plan_of(task.func)) for task in sorted(tasks, key=lambda each: each.module_path)
    ]
    return [(task, plan) for task, plan in plans if plan is not None]


def _find(task: AnyTask, plan: Plan) -> Iterator[checks.CheckMessage]:
    name = f"The task {task.module_path}"
    backend = task.get_backend()
    where, kind = f"TASKS[{task.backend!r}]", type(backend).__name__
    if isinstance(backend, (*IMMEDIATE, *DUMMY)):
        return
    if plan.marks and not isinstance(backend, UniqueBackend):
        yield checks.Error(
            f"{name} has mode={plan.mode!r}, and its backend {where} sets no marks: equal tasks "
            "would be enqueued twice.",
            hint="Set its 'BACKEND' to 'django_redlock.tasks.UniqueBackend', and its 'OPTIONS' to "
            f"{{'BACKEND': '{type(backend).__module__}.{kind}'}}.",
            id=E002,
        )
    more = ", the default with a limit" if plan.limit else ""
    if plan.on_conflict == "retry" and not backend.supports_defer:
        yield checks.Warning(
            f"{name} has on_conflict='retry'{more}, and its backend {where} ({kind}) does not "
            "support run_after: it fails with LockTaken where its key is held.",
            hint="Write on_conflict='skip' or 'raise', or choose one that supports run_after.",
            id=W030,
        )

"""``locked_task``: run the body of one of Django's tasks once at a time, for each key.

@task
@locked_task("report:{report_id}", ttl=30)
def build(report_id): ...
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, Unpack, overload

from django_redlock.locks.callables import finished, is_async
from django_redlock.work.options import TaskOptions
from django_redlock.work.plan import OF_DJANGO, Plan, decorating

from .backport import function_of
from .run import DjangoTaskRun

F = TypeVar("F", bound=Callable[..., Any])


@overload
def locked_task(key: F, /) -> F: ...
@overload
def locked_task(
    key: str | Sequence[str] | None = None, **options: Unpack[TaskOptions]
) -> Callable[[F], F]: ...
def locked_task(key: Any = None, **options: Unpack[TaskOptions]) -> Any:
    """Run the body of a task under a lock; write it below ``@task`` of ``django.tasks``.

    For ``def`` and ``async def``. ``TaskOptions`` describes the options, where a message is a task
    that was enqueued; with Django's tasks, besides:

    Args:
        key: the lock's name, with fields that are filled from the arguments; None: the name of
            the task and a digest of all its arguments. The ``context`` of a task with
            ``takes_context=True`` is no argument.
        wait: A coroutine function occupies no thread meanwhile.
        on_conflict: What comes back later returns a ``Deferred``. "retry" needs a backend that
            supports ``run_after``, else it fails as by "raise", and check W030 names it; so does a
            direct call, and a task of ``ImmediateBackend``.
        mode: "until_started" and "until_finished" need ``UniqueBackend``.
        on_duplicate: The result is a ``TaskResult``.

    Raises:
        TypeError: the decorated object is a task already, or no function.
        ValueError: an option makes no sense; the text says which.
    """
    return decorating(_decorate, key, options)


def _decorate(make_plan: Callable[..., Plan], function: Any) -> Any:
    if function_of(function) is not None:
        msg = (
            "@locked_task is above @task, where there is no function to lock any more. Write it "
            "below:\n\n    @task\n    @locked_task(...)\n    def …"
        )
        raise TypeError(msg)
    is_coroutine = is_async(function)
    plan = make_plan(function, owner=OF_DJANGO)

    @functools.wraps(function)
    def locked(*args: Any, **kwargs: Any) -> Any:
        run = DjangoTaskRun(plan, function, args, kwargs)
        return run.perform(lambda: finished(function(*args, **kwargs), function))

    @functools.wraps(function)
    async def alocked(*args: Any, **kwargs: Any) -> Any:
        run = DjangoTaskRun(plan, function, args, kwargs)
        return await run.aperform(functools.partial(function, *args, **kwargs))

    chosen: Any = alocked if is_coroutine else locked
    plan.attach(chosen)
    return chosen

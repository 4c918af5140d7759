"""Enqueue a task of Django's, unless a mark on the nodes says that another one waits or runs.

A mark may outlive its task: the worker was killed, the row deleted. So before a duplicate is
reported the backend is asked for the first task, and a mark of one that has ended is removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from django.core.exceptions import ValidationError
from django.db import router
from django.db.models import Model
from django.tasks import TaskResult, TaskResultStatus
from django.tasks.exceptions import TaskResultDoesNotExist
from django.utils import timezone
from django.utils.json import normalize_json

from django_redlock.core.completion import DIGEST
from django_redlock.core.policy import LONGEST
from django_redlock.locks.lock import Lock
from django_redlock.work.marks import Mark
from django_redlock.work.plan import Plan, plan_of
from django_redlock.work.publishing import OutgoingMessage, remove_marks

from .backport import DUMMY, NOT_THERE, RESULTS, function_of
from .run import KEYWORD, NUMBER, AnyResult, AnyTask

logger = logging.getLogger("django_redlock")
ON_ITS_WAY: Final = 60.0  # seconds in which a task that is marked gets into the queue
UNKNOWN: Final = "the task %s cannot be looked up, and counts as one that waits or runs"
MOST_DEFERRALS: Final = 100  # of one task that are followed
CONTEXT: Final = "context"  # in place of the first argument of a task with ``takes_context``


class DjangoTaskMessage(OutgoingMessage):
    """A task of Django's that is to be enqueued.

    Args:
        backend: a ``UniqueBackend``.
        number: the id by which nodes know the message.
        enqueue: enqueues it.
        models: those of the wrapped backend, whose tables may have it.
        header: of a message that its own run enqueues for later; None: it is another one.
    """

    def __init__(
        self,
        plan: Plan,
        backend: Any,
        task: AnyTask,
        args: Any,
        kwargs: Mapping[str, Any],
        *,
        number: str,
        enqueue: Callable[[], AnyResult],
        models: Sequence[type[Model]],
        header: Mapping[str, Any] | None,
    ) -> None:
        lock = _lock_of(plan, task, args, kwargs)
        is_due, again = task.run_after is None, header is not None
        super().__init__(plan, task.module_path, number, lock, again=again, is_due=is_due)
        self._backend, self._task, self._args, self._kwargs = backend, task, args, kwargs
        self._enqueue, self._models = enqueue, models
        # It may find that its first run has finished, and a task that was not enqueued for it would
        # then be lost.
        self._is_copy = header is not None and header["again"]

    def life(self) -> float:
        """Return the seconds for which its mark lasts where no worker sees it; a copy has none."""
        if self._is_copy:
            return 0.0
        after = self._task.run_after
        begin = 0.0 if after is None else (after - timezone.now()).total_seconds()
        return min(max(0.0, begin) + self.plan.queue_ttl, LONGEST)

    def send(self, mark: Mark | None) -> AnyResult:  # noqa: ARG002 - its id says which is its own
        """Enqueue it."""
        return self._enqueue()

    def existing(self, other: str) -> AnyResult:
        """Return the result of the task that is in its place."""
        if not self._backend.tells_the_first:
            raise self.duplicate(other)
        try:
            return self._first(other)
        except NOT_THERE:  # marked, and on its way to the queue
            pass
        except Exception:  # as in ``has_ended``
            logger.warning(UNKNOWN, other, exc_info=True)
        return self.placeholder(other)

    def _first(self, number: str) -> AnyResult:
        """Return the result of a task that has this number.

        Raises:
            TaskResultDoesNotExist: the backend has none, or does not tell.
        """
        backend = self._backend
        if isinstance(backend, DUMMY):  # it makes its ids itself, and has a list
            for each in backend.results:
                if each.kwargs.get(KEYWORD, {}).get(NUMBER) == number:
                    found: AnyResult = each
                    return found
        if not (backend.tells_the_first and backend.supports_get_result):
            raise TaskResultDoesNotExist(number)
        result: AnyResult = backend.get_result(number)
        return result

    def has_ended(self, other: str, marked_for: float) -> bool:
        """Tell whether another task, and what it has come back as, will run no more."""
        backend = self._backend
        if isinstance(backend, DUMMY):
            least = 0.0  # without workers: what is not in its list is not on its way
        elif not (backend.tells_the_first and backend.supports_get_result) or DIGEST(other):
            return False
        else:
            least = ON_ITS_WAY
        try:
            for _ in range(MOST_DEFERRALS):
                first = self._first(other)
                if not first.is_finished:
                    return False
                if not (then := _came_back_as(first)):
                    return True
                other = then
        except NOT_THERE:
            return marked_for >= least and not self._is_written(other)
        except Exception:  # of the backend, about a row whose code is gone perhaps
            logger.warning(UNKNOWN, other, exc_info=True)
        return False

    def is_sent(self) -> bool:
        """Tell whether the backend has this task; False where that cannot be known."""
        with suppress(Exception):  # there is none, or the database has failed
            return not self.again and bool(self._first(self.task_id))
        return False

    def _is_written(self, number: str) -> bool:
        """Tell whether there is a row of this task where rows are written: a replica lags."""
        for each in self._models:
            rows = each._base_manager.using(router.db_for_write(each))
            with suppress(ValueError, ValidationError):  # keys of another type
                if rows.filter(pk=number).exists():
                    return True
        return False

    def placeholder(self, number: str) -> AnyResult:
        """Return the result of a task with these arguments that is not in the queue yet."""
        return TaskResult(
            task=self._task,
            id=number,
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(self._args),
            kwargs={key: each for key, each in self._kwargs.items() if key != KEYWORD},
            backend=self._backend.alias,
            errors=[],
            worker_ids=[],
        )

    def settle(self, result: AnyResult, published: Any) -> None:
        """Bring a result up to date, as ``TaskResult.refresh`` does."""
        if isinstance(published, RESULTS):
            for each in ("id", "enqueued_at", "status"):
                object.__setattr__(result, each, getattr(published, each))


def unmark(task: AnyTask, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> None:
    """Let the next task with these arguments be enqueued, whatever is in the queue.

    Args:
        task: a task whose mode is "until_started" or "until_finished".
        args, kwargs: the arguments, as for ``enqueue``.

    Raises:
        TypeError: this is no task, the arguments do not fit it, or its messages have no marks.
    """
    if function_of(task) is None:
        raise TypeError(f"unmark() takes what @task makes, not {type(task).__name__}")

    plan = plan_of(task.func)
    remove_marks(
        task.module_path, plan, args, lambda p: _lock_of(p, task, args or (), kwargs or {})
    )


def _came_back_as(finished: AnyResult) -> str:
    """Return the id of the task that a finished one has become, as its ``Deferred`` says, or ""."""
    done = finished.status == TaskResultStatus.SUCCESSFUL
    value: Any = finished.return_value if done else None
    is_deferred = isinstance(value, Mapping) and value.get("deferred")
    return str(value.get("id") or "") if is_deferred else ""


def _lock_of(plan: Plan, task: AnyTask, args: Any, kwargs: Mapping[str, Any]) -> Lock:
    """Return the lock of the run of a task with these arguments, as its worker gets them."""
    own = {key: each for key, each in kwargs.items() if key != KEYWORD}
    given: Any = normalize_json({"args": list(args), "kwargs": own})
    args = (CONTEXT, *given["args"]) if task.takes_context else tuple(given["args"])
    return plan.lock_of_call(task.module_path, args, given["kwargs"], owned=task.takes_context)

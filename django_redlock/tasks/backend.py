"""``UniqueBackend``: a backend of tasks around another one, which enqueues no task twice.

    TASKS = {
        "default": {
            "BACKEND": "django_redlock.tasks.UniqueBackend",
            "OPTIONS": {"BACKEND": "django_tasks_db.DatabaseBackend"},
        }
    }

It is made a subclass of the backend that it wraps: commands such as ``db_worker`` look for their
own class, and what a backend supports is read from its attributes.

The mark of a task has its id, and it is set before the task is enqueued. So the id must be known
before. A backend with an ``id_function``, as ``DatabaseBackend``, is given the id. A task of any
other backend carries a number of its own in a keyword argument (``task.KEYWORD``), and there the
mark of a duplicate does not tell which ``TaskResult`` is the first.

A mark may outlive its task: the worker was killed, the row deleted. So before a duplicate is
reported the backend is asked for the first task, and a mark of one that has ended is removed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from copy import deepcopy
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID, uuid4

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.exceptions import ValidationError
from django.db import router
from django.db.models import Model
from django.tasks import TaskResult, TaskResultStatus
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist
from django.utils import timezone
from django.utils.json import normalize_json
from django.utils.module_loading import import_string

from django_redlock.core.completion import DIGEST
from django_redlock.core.errors import DuplicateTask
from django_redlock.core.policy import LONGEST
from django_redlock.locks.lock import Lock
from django_redlock.work import publishing
from django_redlock.work.marks import Mark
from django_redlock.work.plan import OF_DJANGO, Plan, plan_of, wrong_decorator

from .backport import BACKENDS, DUMMY, IMMEDIATE, NOT_THERE, RESULTS, function_of
from .task import KEYWORD, NUMBER, USING, AnyResult, AnyTask, logger, sent_again

KNOWN: Final = ("BACKEND", "OPTIONS")
ON_ITS_WAY: Final = 60.0  # seconds in which a task that is marked gets into the queue
UNKNOWN: Final = "the task %s cannot be looked up, and counts as one that waits or runs"
MOST_DEFERRALS: Final = 100  # of one task that are followed
USED: Final = ("backend", "queue_name", "priority")  # which a task that comes back has, too
CONTEXT: Final = "context"  # in place of the first argument of a task with ``takes_context``


if TYPE_CHECKING:
    _Base = BaseTaskBackend
else:
    _Base = object  # that of the wrapped backend, which may be the backport's


class _Ids:
    """An ``id_function``: the id that was reserved for the task that is being enqueued, or another.

    Args:
        make: makes an id.
    """

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._reserved: ContextVar[Any] = ContextVar("redlock_reserved_id", default=None)

    def __call__(self) -> Any:
        reserved = self._reserved.get()
        self._reserved.set(None)  # a receiver of ``task_enqueued`` may enqueue another task
        return reserved or self._make()

    def another(self) -> Any:
        """Return an id that can be reserved; None: the database makes them."""
        made = self._make()
        if isinstance(made, str):
            with suppress(ValueError):
                made = UUID(made)  # of several spellings the one that a result has
        return made if isinstance(made, str | UUID) else None

    def enqueue(self, reserved: Any, enqueue: Callable[[], AnyResult]) -> AnyResult:
        """Enqueue a task under this id; None: under any."""
        token = self._reserved.set(reserved)
        try:
            return enqueue()
        finally:
            self._reserved.reset(token)


class UniqueBackend(_Base):
    """A backend of tasks that enqueues no second task while its mode says that one is enough.

    ``OPTIONS["BACKEND"]`` is the path of the backend that it wraps, ``OPTIONS["OPTIONS"]`` are the
    options of that. Tasks without marks, and those of ``ImmediateBackend``, which are enqueued and
    done at once, are enqueued as ever.

    Raises:
        InvalidTaskBackend: ``OPTIONS`` names no backend.
    """

    _ids: _Ids | None = None

    def __new__(cls, alias: str, params: Mapping[str, Any]) -> Self:
        """Make an object of a class that is both this one and the one that it wraps."""
        wrapped = _wrapped(alias, params)
        both: Any = type(f"Unique{wrapped.__name__}", (cls, wrapped), {})
        made: Self = object.__new__(both)
        return made

    @property
    def tells_the_first(self) -> bool:
        """Whether the id of the first task is known, where another one is a duplicate."""
        return self._ids is not None or isinstance(self, DUMMY)

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        options = params["OPTIONS"]
        super().__init__(alias, {**params, "OPTIONS": options.get("OPTIONS", {})})
        if hasattr(self, "id_function"):
            self._ids = _Ids(self.id_function or uuid4)
            self.id_function: Any = self._ids

    def validate_task(self, task: AnyTask) -> None:
        """Refuse the decorator for Celery as well: its runs would remove no mark.

        Raises:
            InvalidTask: at the definition of a task, or where another backend is chosen for it.
        """
        super().validate_task(task)
        plan = plan_of(task.func)
        if plan is not None and plan.owner != OF_DJANGO:
            raise InvalidTask(wrong_decorator(task.module_path, plan.owner))

    def enqueue(self, task: AnyTask, args: Any, kwargs: Any) -> Any:
        """Enqueue a task, or do with a duplicate what ``on_duplicate`` says.

        Returns:
            The ``TaskResult``; for a duplicate what ``on_duplicate`` says. Inside a transaction one
            whose ``id`` counts after the COMMIT.

        Raises:
            DuplicateTask: it is a duplicate, and ``on_duplicate`` is "raise"; or it is "existing"
                or a function, and the wrapped backend cannot tell the first.
            ConnectionDoesNotExist: ``using`` names no database.
            TransactionManagementError: autocommit is off, so no COMMIT can be waited for.
        """
        plan = plan_of(task.func)
        if plan is None:
            return super().enqueue(task, args, kwargs)
        header = _header_of(kwargs)
        if header is None:
            kwargs = {key: each for key, each in kwargs.items() if key != KEYWORD}
        if isinstance(self, IMMEDIATE):
            return super().enqueue(task, args, kwargs)
        told = {USING: {each: getattr(task, each) for each in USED}}
        if not plan.marks:
            # The workers of some backends tell a run by nothing else which message it is.
            tells = self._ids is not None or isinstance(self, DUMMY) or not self.supports_defer
            if header is None and plan.on_conflict == "retry" and not tells:
                kwargs[KEYWORD] = {NUMBER: uuid4().hex, **told}
            return super().enqueue(task, args, kwargs)
        self.validate_task(task)
        again = header is not None  # by its own run: it stands for a message, and is sent
        databases = {router.db_for_write(each) for each in self._models()}
        later = publishing.waits_for_commit(plan, again=again, queue=sorted(databases))
        if later:  # the caller may change its objects until the COMMIT
            args, kwargs = deepcopy((args, kwargs))
        reserved = None if again or self._ids is None else self._ids.another()
        if header is None:
            number = uuid4().hex if reserved is None else str(reserved)
            if reserved is None:
                kwargs[KEYWORD] = {NUMBER: number, **told}
        else:
            number = str(header[NUMBER])
        # A copy sets no mark: it may find that its first run has finished, and a task that was not
        # enqueued for it would then be lost.
        is_copy = header is not None and header["again"]
        life = 0.0 if is_copy else _seconds_queued(task, plan)
        is_due = task.run_after is None
        lock = _lock_of(plan, task, args, kwargs)
        message = publishing.Message(task.module_path, number, plan, lock, life, again, is_due)
        publish = functools.partial(self._publish, message, task, args, kwargs, reserved)
        if not later:
            return publish()
        result = self._placeholder(task, number, args, kwargs)
        publishing.after_commit(functools.partial(self._on_commit, message, publish, result), later)
        return result

    async def aenqueue(self, task: AnyTask, args: Any, kwargs: Any) -> Any:
        """Enqueue a task as ``enqueue`` does, in a task of an event loop."""
        return await sync_to_async(self.enqueue)(task, args, kwargs)

    def _publish(
        self, message: publishing.Message, task: AnyTask, args: Any, kwargs: Any, reserved: Any
    ) -> Any:
        enqueue: Any = super().enqueue

        def send(_: Mark | None) -> AnyResult:
            now = functools.partial(enqueue, task, args, kwargs)
            return now() if self._ids is None else self._ids.enqueue(reserved, now)

        is_sent = functools.partial(self._is_sent, message)
        published = publishing.publish(message, send, self._has_ended, is_sent)
        if not published.other_id:
            return published.result

        def existing() -> AnyResult:
            return self._existing(message, task, published.other_id, args, kwargs)

        return publishing.instead(message, published.other_id, existing)

    def _existing(
        self, message: publishing.Message, task: AnyTask, other: str, args: Any, kwargs: Any
    ) -> AnyResult:
        if not self.tells_the_first:
            raise publishing.duplicate(message, other)
        try:
            return self._first(other)
        except NOT_THERE:  # marked, and on its way to the queue
            pass
        except Exception:  # noqa: BLE001 - as in ``_has_ended``
            logger.warning(UNKNOWN, other, exc_info=True)
        return self._placeholder(task, other, args, kwargs)

    def _first(self, number: str) -> AnyResult:
        """Return the result of a task that has this number.

        Raises:
            TaskResultDoesNotExist: the backend has none, or does not tell.
        """
        if isinstance(self, DUMMY):  # it makes its ids itself, and has a list
            for each in self.results:
                if each.kwargs.get(KEYWORD, {}).get(NUMBER) == number:
                    found: AnyResult = each
                    return found
        if self._ids is None or not self.supports_get_result:
            raise TaskResultDoesNotExist(number)
        return self.get_result(number)

    def _has_ended(self, number: str, marked_for: float) -> bool:
        """Tell whether a task, and what it has come back as, will run no more."""
        if isinstance(self, DUMMY):
            least = 0.0  # without workers: what is not in its list is not on its way
        elif self._ids is None or not self.supports_get_result or DIGEST(number):
            return False
        else:
            least = ON_ITS_WAY
        try:
            for _ in range(MOST_DEFERRALS):
                first = self._first(number)
                if not first.is_finished:
                    return False
                if not (then := _came_back_as(first)):
                    return True
                number = then
        except NOT_THERE:
            return marked_for >= least and not self._is_written(number)
        except Exception:  # noqa: BLE001 - of the backend, about a row whose code is gone perhaps
            logger.warning(UNKNOWN, number, exc_info=True)
        return False

    def _is_sent(self, message: publishing.Message) -> bool:
        """Tell whether the backend has this task; False where that cannot be known."""
        with suppress(Exception):  # there is none, or the database has failed
            return not message.again and bool(self._first(message.task_id))
        return False

    def _is_written(self, number: str) -> bool:
        """Tell whether there is a row of this task where rows are written: a replica lags."""
        for each in self._models():
            rows = each._base_manager.using(router.db_for_write(each))
            with suppress(ValueError, ValidationError):  # keys of another type
                if rows.filter(pk=number).exists():
                    return True
        return False

    def _models(self) -> list[type[Model]]:
        """Return the models of the wrapped backend's app; none: it has no tables."""
        bases = type(self).__mro__[type(self).__mro__.index(UniqueBackend) + 1 :]
        found = {apps.get_containing_app_config(each.__module__) for each in bases}
        return [model for app in found if app is not None for model in app.get_models()]

    def _placeholder(self, task: AnyTask, number: str, args: Any, kwargs: Any) -> AnyResult:
        """Return the result of a task that is not in the queue yet."""
        return TaskResult(
            task=task,
            id=number,
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=list(args),
            kwargs={key: each for key, each in kwargs.items() if key != KEYWORD},
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )

    def _on_commit(
        self, message: publishing.Message, publish: Callable[[], Any], result: AnyResult
    ) -> None:
        try:
            found = publish()
        except DuplicateTask as duplicate:
            # The caller has gone on, and others wait for this COMMIT as well: nobody can be told.
            logger.warning("%s[%s] was not sent: %s", message.task, message.task_id, duplicate)
            return
        if isinstance(found, RESULTS):  # as ``TaskResult.refresh`` does
            for each in ("id", "enqueued_at", "status"):
                object.__setattr__(result, each, getattr(found, each))


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

    def lock_of(plan: Plan) -> Lock:
        return _lock_of(plan, task, args or (), kwargs or {})

    publishing.unmark(task.module_path, plan_of(task.func), args, lock_of)


def _came_back_as(finished: AnyResult) -> str:
    """Return the id of the task that a finished one has become, as its ``Deferred`` says, or ""."""
    done = finished.status == TaskResultStatus.SUCCESSFUL
    value: Any = finished.return_value if done else None
    is_deferred = isinstance(value, Mapping) and value.get("deferred")
    return str(value.get("id") or "") if is_deferred else ""


def _header_of(kwargs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the header of a message that its own run enqueues for later; None: it is another one.

    Who enqueues the arguments of a result anew sends another message, and so does a receiver of
    ``task_enqueued``.
    """
    header, given = sent_again.get(), kwargs.get(KEYWORD)
    return header if given is header else None


def _lock_of(plan: Plan, task: AnyTask, args: Any, kwargs: Mapping[str, Any]) -> Lock:
    """Return the lock of the run of a task with these arguments, as its worker gets them."""
    own = {key: each for key, each in kwargs.items() if key != KEYWORD}
    given: Any = normalize_json({"args": list(args), "kwargs": own})
    args = (CONTEXT, *given["args"]) if task.takes_context else tuple(given["args"])
    return plan.lock_of_call(task.module_path, args, given["kwargs"], owned=task.takes_context)


def _seconds_queued(task: AnyTask, plan: Plan) -> float:
    """Return the seconds for which the mark of a task lasts where no worker sees the task."""
    after = task.run_after
    begin = 0.0 if after is None else (after - timezone.now()).total_seconds()
    return min(max(0.0, begin) + plan.queue_ttl, LONGEST)


def _wrapped(alias: str, params: Mapping[str, Any]) -> type[BaseTaskBackend]:
    """Return the class of the backend that ``OPTIONS`` names."""
    where = f"TASKS[{alias!r}]['OPTIONS']"
    options = params.get("OPTIONS") or {}
    if unknown := [each for each in options if each not in KNOWN]:
        msg = (
            f"{where} has an unknown key {unknown[0]!r}: UniqueBackend takes 'BACKEND', and for "
            "the backend that this names 'OPTIONS'"
        )
        raise InvalidTaskBackend(msg)
    path = options.get("BACKEND")
    if not isinstance(path, str):
        msg = (
            f"{where}['BACKEND'] must name the backend that UniqueBackend wraps, as "
            "'django_tasks_db.DatabaseBackend'"
        )
        raise InvalidTaskBackend(msg)
    try:
        wrapped = import_string(path)
    except ImportError as error:
        raise InvalidTaskBackend(f"{where}['BACKEND']: {error}") from error
    is_backend = isinstance(wrapped, type) and issubclass(wrapped, BACKENDS)
    if not is_backend or issubclass(wrapped, UniqueBackend):
        raise InvalidTaskBackend(f"{where}['BACKEND']: {path} is no backend that can be wrapped")
    return wrapped  # type: ignore[no-any-return]

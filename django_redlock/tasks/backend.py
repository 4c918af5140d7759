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
other backend carries a number of its own in a keyword argument (``run.KEYWORD``), and there the
mark of a duplicate does not tell which ``TaskResult`` is the first.
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
from django.db import router
from django.db.models import Model
from django.tasks.backends.base import BaseTaskBackend
from django.tasks.exceptions import InvalidTask, InvalidTaskBackend
from django.utils.module_loading import import_string

from django_redlock.work.plan import OF_DJANGO, plan_of, wrong_decorator
from django_redlock.work.publishing import waits_for_commit

from .backport import BACKENDS, DUMMY, IMMEDIATE
from .publishing import DjangoTaskMessage
from .run import KEYWORD, NUMBER, USING, AnyResult, AnyTask, sent_again

KNOWN: Final = ("BACKEND", "OPTIONS")
USED: Final = ("backend", "queue_name", "priority")  # which a task that comes back has, too


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
        enqueued = {USING: {each: getattr(task, each) for each in USED}}
        if not plan.marks:
            # The workers of some backends tell a run by nothing else which message it is.
            tells = self._ids is not None or isinstance(self, DUMMY) or not self.supports_defer
            if header is None and plan.on_conflict == "retry" and not tells:
                kwargs[KEYWORD] = {NUMBER: uuid4().hex, **enqueued}
            return super().enqueue(task, args, kwargs)
        self.validate_task(task)
        models = self._models()
        databases = {router.db_for_write(each) for each in models}
        # A message of its own run stands for one that was sent, and is sent.
        later = waits_for_commit(plan, again=header is not None, queue=sorted(databases))
        if later:  # the caller may change its objects until the COMMIT
            args, kwargs = deepcopy((args, kwargs))
        reserved = None if header is not None or self._ids is None else self._ids.another()
        if header is None and reserved is None:
            kwargs[KEYWORD] = {NUMBER: uuid4().hex, **enqueued}
        number = str(reserved or kwargs[KEYWORD][NUMBER])
        enqueue: Any = functools.partial(super().enqueue, task, args, kwargs)
        if self._ids is not None:
            enqueue = functools.partial(self._ids.enqueue, reserved, enqueue)
        message = DjangoTaskMessage(
            *(plan, self, task, args, kwargs),
            number=number,
            enqueue=enqueue,
            models=models,
            header=header,
        )
        if not later:
            return message.publish()
        return message.publish_after_commit(later, message.placeholder(number))

    async def aenqueue(self, task: AnyTask, args: Any, kwargs: Any) -> Any:
        """Enqueue a task as ``enqueue`` does, in a task of an event loop."""
        return await sync_to_async(self.enqueue)(task, args, kwargs)

    def _models(self) -> list[type[Model]]:
        """Return the models of the wrapped backend's app; none: it has no tables."""
        bases = type(self).__mro__[type(self).__mro__.index(UniqueBackend) + 1 :]
        found = {apps.get_containing_app_config(each.__module__) for each in bases}
        return [model for app in found if app is not None for model in app.get_models()]


def _header_of(kwargs: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the header of a message that its own run enqueues for later; None: it is another one.

    Who enqueues the arguments of a result anew sends another message, and so does a receiver of
    ``task_enqueued``.
    """
    header, given = sent_again.get(), kwargs.get(KEYWORD)
    return header if given is header else None


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

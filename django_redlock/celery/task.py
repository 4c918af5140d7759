"""``locked_task``: run the body of a Celery task once at a time, for each key.

    @shared_task
    @locked_task("report:{report_id}", ttl=30)
    def build(report_id): ...

A worker takes the lease when a run begins, and releases it after the body. The lease belongs to
that run, not to the task id: a broker may deliver a message twice, with one id. A run that finds
its own id in the key is such a copy, and waits its turn; only a message that cannot have run
before is skipped. With another mode than "while_running" a queued message has a mark besides, so
that a second one is not sent at all (``publishing``).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, Unpack, overload

from celery import Task
from celery._state import get_current_task
from celery.app.autoretry import add_autoretry_behaviour
from celery.contrib.django.task import DjangoTask
from celery.local import Proxy

from django_redlock.locks.advice import unknown_keywords
from django_redlock.work.options import OPTIONS, TaskOptions
from django_redlock.work.plan import (
    OF_CELERY,
    Plan,
    decorating,
    djangos_task,
    plan_of,
    wrong_decorator,
)

from . import publishing
from .run import CeleryRun, take_over_started

F = TypeVar("F", bound=Callable[..., Any])
FOREIGN = ("unique_on", "raise_on_duplicate", "lock_expiry")  # of other packages' tasks
AUTORETRIED = "_orig_run"  # the attribute of a task that has ``autoretry_for``


@overload
def locked_task(key: F, /) -> F: ...
@overload
def locked_task(
    key: str | Sequence[str] | None = None, **options: Unpack[TaskOptions]
) -> Callable[[F], F]: ...
def locked_task(key: Any = None, **options: Unpack[TaskOptions]) -> Any:
    """Run the body of a task under a lock; write it below ``@shared_task`` or ``@app.task``.

    ``TaskOptions`` describes the options; with Celery's tasks, besides:

    Args:
        key: the lock's name, with fields that are filled from the arguments; None: the name of
            the task and a digest of all its arguments.
        on_conflict: A message that comes back has not used up a retry. Nothing comes back from an
            eager or a direct call: by "retry" it fails as well.
        mode: "until_started" and "until_finished" need ``base=LockedTask``; a message that waits
            for its retry has not finished.
        on_duplicate: The result is an ``AsyncResult``, with ``duplicate`` True.

    Raises:
        TypeError: the decorated object is a task already, or not a plain function.
        ValueError: an option makes no sense; the text says which.
    """
    return decorating(_decorate, key, options)


def _decorate(make_plan: Callable[..., Plan], function: F) -> F:
    _check_function(function)
    plan = make_plan(function)

    @functools.wraps(function)
    def locked(*args: Any, **kwargs: Any) -> Any:
        task = _task_of(function, args)
        if task is None and (djangos := djangos_task(function)):
            raise TypeError(wrong_decorator(djangos.module_path, OF_CELERY))
        _check_base(task, plan)
        run = CeleryRun(plan, task, args, kwargs)
        retries = plan.marks and run.has_message
        body = _with_retries_inside(task, function) if retries else function
        return run.perform(functools.partial(body, *args, **kwargs))

    # Celery checks the arguments of ``delay`` against this.
    locked.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    plan.attach(locked)
    return locked  # type: ignore[return-value]


def _check_function(function: Any) -> None:
    kind = type(function)
    if issubclass(kind, Proxy | Task):
        msg = (
            "@locked_task is above @shared_task or @app.task, where there is no function to lock "
            "any more. Write it below:\n\n    @shared_task\n    @locked_task(...)\n    def …"
        )
        raise TypeError(msg)
    if issubclass(kind, type) or not callable(function):
        msg = f"@locked_task decorates a function, not {function!r}; of a task class, its 'run'"
        raise TypeError(msg)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        msg = f"{function.__qualname__} is a generator function: nothing would run under the lock"
        raise TypeError(msg)
    if inspect.iscoroutinefunction(function):
        msg = (
            f"{function.__qualname__} is a coroutine function, which Celery does not await: write "
            "'def', and inside it asyncio.run(…) or asgiref's async_to_sync"
        )
        raise TypeError(msg)


def _task_of(function: Callable[..., Any], args: tuple[Any, ...]) -> Task | None:
    """Return the task whose body this call is; None: the function was called directly."""
    bound = bool(args) and issubclass(type(args[0]), Task)
    task = args[0] if bound else get_current_task()
    # The body of another task may call this function, too.
    if task is None or inspect.unwrap(task.run) is not inspect.unwrap(function):
        return None
    return task


def _check_base(task: Task | None, plan: Plan) -> None:
    if plan.marks and task is not None and not issubclass(type(task), LockedTask):
        msg = (
            f"{task.name} has mode={plan.mode!r}, and its class sends messages without marks: "
            "write @shared_task(base=LockedTask)"
        )
        raise TypeError(msg)
    if task is not None and lets_copies_in(task, plan):
        msg = (
            f"{task.name} has limit={plan.limit} and acks_late, and its class gives messages no "
            "number: one that is delivered again while it runs would run in another slot: write "
            "@shared_task(base=LockedTask)"
        )
        raise TypeError(msg)


def lets_copies_in(task: Task, plan: Plan) -> bool:
    """Return True if a copy of a message that runs would get a slot of its own.

    A lock without a limit keeps it out. With one, only the number of the message does.
    """
    late = plan.limit is not None and bool(task.acks_late)
    return late and not issubclass(type(task), LockedTask)


def _with_retries_inside(task: Task, body: Callable[..., Any]) -> Callable[..., Any]:
    """Return the body, with the retries of the task's ``autoretry_for`` if it has any.

    Celery wraps ``run`` when the task is registered, outside of ``@locked_task``. There the lock
    and the mark are gone before the retry has its own mark, and a message that is sent in between
    is no duplicate. So Celery's own function wraps the body once more, inside of the lock. What
    ``@locked_task`` raises itself, as ``LockTaken``, meets the outer wrapper as before. A ``Retry``
    passes through it, and so does an error that has used up its retries.
    """
    if not hasattr(task, AUTORETRIED):
        return body
    inside = _Inside(task, body)
    add_autoretry_behaviour(inside)
    return inside.run


class _Inside:
    """A task as Celery's function wants it, whose ``run`` is the body."""

    run: Callable[..., Any]

    def __init__(self, task: Task, body: Callable[..., Any]) -> None:
        vars(self).update(task=task, run=body)

    def __getattr__(self, name: str) -> Any:
        if name == AUTORETRIED:
            raise AttributeError(name)
        return getattr(self.task, name)

    def __delattr__(self, name: str) -> None:
        delattr(self.task, name)


def _check_attributes(cls: type[Task]) -> None:
    """Raise TypeError for an option that Celery would keep as an attribute, for nobody to read."""
    own = vars(cls)
    foreign = [each for each in FOREIGN if each in own]
    foreign += ["once={…}"] * isinstance(own.get("once"), Mapping)  # of celery-once; ours is a time
    if foreign:
        raise unknown_keywords("LockedTask", foreign, OPTIONS)
    misplaced = [each for each in OPTIONS if each in own and "_decorated" in own]
    if misplaced:
        msg = (
            f"{cls.name}: {misplaced[0]}= is an option of @locked_task, and Celery uses it for "
            "nothing: write it there, or into lock={…}"
        )
        raise TypeError(msg)


class LockedTask(DjangoTask):  # type: ignore[misc] # Celery ships no types
    """A base class for tasks whose queued messages have marks, and for those locked by ``lock``.

    With a mode other than "while_running" it is the base of the decorated task: it sends no second
    message. It also does what the decorator does, with the arguments in ``lock``.

    ``lock`` counts in the class that defines ``run``, which has either this or the decorator::

        @shared_task(base=LockedTask, lock={"key": "report:{report_id}", "ttl": 30})
        def build(report_id): ...

    Raises:
        TypeError: at the definition of a task: nothing says what it locks, or both do; or it has an
            option that nobody would read.
    """

    lock: Mapping[str, Any] | None = None
    numbers_messages = True
    stores_started = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        run = inspect.getattr_static(cls, "run")
        if run is vars(Task)["run"] or cls.__module__.startswith("celery."):
            return  # a base of tasks; or one of Celery's own, of an application with this task_cls
        _check_attributes(cls)
        plan = plan_of(getattr(run, "__func__", run))
        if plan is not None:
            if plan.owner != OF_CELERY:
                raise TypeError(wrong_decorator(cls.name or cls.__name__, plan.owner))
            if cls.lock and "run" in vars(cls):
                msg = f"{cls.__name__} has both 'lock' and @locked_task: leave one of them out"
                raise TypeError(msg)
            return
        # The base of all tasks of an application locks those of others, too: by their arguments.
        is_of_all = any("_app" in vars(each) for each in cls.__mro__ if each is not Task)
        if cls.lock is None and not is_of_all:
            msg = (
                f"{cls.name or cls.__name__} has the base LockedTask, and nothing says what it "
                "locks: write @locked_task('report:{report_id}') right above its function, or "
                "lock={'key': 'report:{report_id}'} beside the base"
            )
            raise TypeError(msg)
        plain = isinstance(run, staticmethod)  # a function without ``self``
        decorate = locked_task(**{"key": None, **(cls.lock or {})})
        locked: Any = decorate(run.__func__ if plain else run)
        cls.run = staticmethod(locked) if plain else locked

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Take over from Celery to store STARTED, for tasks whose copies must not store it."""
        super().on_bound(app)
        take_over_started(cls)

    def apply_async(  # noqa: PLR0917 - as Celery has it
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> Any:
        """Send a message as Celery does, unless another one is in its place.

        The message gets a number by which copies of it are known.

        Returns:
            An ``AsyncResult``; its ``duplicate`` says whether it is that of an earlier message.
            Inside a transaction that is None until the COMMIT. Or what ``on_duplicate`` says.

        Raises:
            DuplicateTask: with on_duplicate="raise", if there is an earlier message.
        """
        own = {"producer": producer, "link": link, "link_error": link_error, "shadow": shadow}
        return publishing.send(self, super().apply_async, (args, kwargs), task_id, own | options)

    def unmark(self, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> None:
        """Let the next message with these arguments be sent, whatever is in the queue.

        Raises:
            TypeError: the arguments do not fit, or messages of this task have no marks.
        """
        publishing.unmark(self, args, kwargs)

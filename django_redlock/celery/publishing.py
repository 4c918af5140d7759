"""Send the message of a task, unless a mark on the nodes says that another one waits or runs.

``LockedTask.apply_async`` calls ``send``, with Celery's own ``apply_async``. A message is sent
without a look at marks where somebody waits for just this one: it is part of a group, chord or
chain, has callbacks, or replaces another task. A message that is sent again (a retry, one that
comes back later) sets its mark anew, and is never left out. A copy sets none: it may find that its
first run has finished, and a message that was left out for it would then be lost.

Each message carries a header of this package:

    {"message": number, "deferred": times, "again": bool}

The number stays the same when the message comes back; ``run`` writes the rest. ``again``
says that an earlier run of the message was met.
"""

from __future__ import annotations

import functools
import inspect
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from datetime import UTC, datetime
from numbers import Real
from typing import Any, Final

from celery import Task
from celery.exceptions import WorkerLostError
from celery.signals import task_failure
from celery.utils import uuid
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu import serialization

from django_redlock import conf
from django_redlock.core.policy import LONGEST
from django_redlock.locks.lock import Lock
from django_redlock.work.marks import Mark, mark_of
from django_redlock.work.plan import Plan, plan_of
from django_redlock.work.publishing import OutgoingMessage, remove_marks, waits_for_commit

from . import marks

HEADER: Final = "redlock"
NUMBER: Final = "message"
AWAITED: Final = ("link", "link_error", "chord", "group_id", "replaced_task_nesting")
PLAIN: Final = frozenset({str, int, float, bool, type(None)})  # as they are, whatever serializes
OF_THE_CALLER: Final = ("producer", "publisher", "connection")  # perhaps gone after the COMMIT
_same: ContextVar[bool] = ContextVar("redlock_same_message", default=False)
_copy: ContextVar[bool] = ContextVar("redlock_copy", default=False)


# -- the header -----------------------------------------------------------------------------------


def history(request: Any) -> Mapping[str, Any]:
    """Return the header in a request; anybody may have written it."""
    found = (request.headers or {}).get(HEADER)
    return found if isinstance(found, dict) else {}


@contextmanager
def same_message(*, copy: bool = False) -> Iterator[None]:
    """Let the messages that are sent in the block keep their numbers.

    Args:
        copy: whether they are copies, which may end without a run.
    """
    same, copies = _same.set(True), _copy.set(copy)
    try:
        yield
    finally:
        _copy.reset(copies)
        _same.reset(same)


def _with_number(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of ``apply_async`` with a new number for the message.

    Outside of ``same_message`` each message is a new one, also one with the headers of an earlier
    one: a retry is.
    """
    headers = dict(options.get("headers") or {})
    found = headers.get(HEADER)
    own = dict(found) if isinstance(found, Mapping) else {}
    if not (_same.get() and own.get(NUMBER)):
        own.pop("deferred", None)
        own[NUMBER] = secrets.token_hex(16)
    return {**options, "headers": headers | {HEADER: own}}


# -- publishing -----------------------------------------------------------------------------------


def send(
    task: Task,
    apply_async: Callable[..., Any],
    arguments: tuple[Any, Mapping[str, Any] | None],
    task_id: str | None,
    options: dict[str, Any],
) -> Any:
    """Send a message of a task, or do with a duplicate what ``on_duplicate`` says.

    Returns:
        What ``apply_async`` returns, an ``AsyncResult``, with an attribute ``duplicate``: False.
        For a duplicate what ``on_duplicate`` says. Inside a transaction a result that has
        ``duplicate`` None until the COMMIT.

    Raises:
        DuplicateTask: it is a duplicate, and ``on_duplicate`` is "raise".
        ConnectionDoesNotExist: ``using`` names no database.
    """
    options, plan = _with_number(options), plan_of(task.run)
    always = task.app.conf.task_always_eager or _is_awaited(options)
    if plan is None or not plan.marks or always:
        return _result(apply_async(*arguments, task_id=task_id, **options), duplicate=False)
    lock = _lock_of_message(plan, task, *_as_delivered(task, *arguments, options))
    again = _is_sent_again(task_id, options)
    task_id = task_id or uuid()
    later = waits_for_commit(plan, again=again)
    if later:  # the caller may change its objects until the COMMIT
        arguments = deepcopy(arguments)
        options = {key: each for key, each in options.items() if key not in OF_THE_CALLER}
    apply_async = functools.partial(apply_async, *arguments, task_id=task_id)
    message = CeleryMessage(
        plan, task, apply_async, options, task_id=task_id, lock=lock, again=again
    )
    if not later:
        return message.publish()
    return message.publish_after_commit(later, _result(task.AsyncResult(task_id), duplicate=None))


class CeleryMessage(OutgoingMessage):
    """A message of Celery's that is to be sent.

    Args:
        apply_async: sends it, called with the rest of its options.
        options: those of ``apply_async``, without ``task_id``.
    """

    def __init__(
        self,
        plan: Plan,
        task: Task,
        apply_async: Callable[..., Any],
        options: dict[str, Any],
        *,
        task_id: str,
        lock: Lock,
        again: bool,
    ) -> None:
        is_due = not {"countdown", "eta"} & options.keys()  # else it may not be
        super().__init__(plan, task.name, task_id, lock, again=again, is_due=is_due)
        self._celerys, self._apply_async, self._options = task, apply_async, options

    def life(self) -> float:
        """Return the seconds until no worker will begin it; a copy has no mark."""
        if _copy.get():
            return 0.0
        return seconds_queued(self._celerys, self._options, self.plan.queue_ttl)

    def send(self, mark: Mark | None) -> Any:
        """Send it, with its mark in a header."""
        options = self._options
        if mark is not None:
            options = {**options, "headers": {**options["headers"], **marks.header(mark)}}
        return _result(self._apply_async(**options), duplicate=False)

    def existing(self, other: str) -> Any:
        """Return the result of the message that is in its place."""
        return _result(self._celerys.AsyncResult(other), duplicate=True)

    def settle(self, result: Any, published: Any) -> None:
        """Write into a result what became of its message at the COMMIT."""
        of_this_id = getattr(published, "id", None) == self.task_id
        result.duplicate = not (of_this_id and published.duplicate is False)
        if published is not None and self.plan.on_duplicate == "existing":
            result.id = published.id


def unmark(task: Task, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> None:
    """Remove the mark of the messages with these arguments, whatever message set it.

    Raises:
        TypeError: the arguments do not fit the task, or its messages have no marks.
    """
    remove_marks(
        task.name,
        plan_of(task.run),
        args,
        lambda plan: _lock_of_message(plan, task, *_as_delivered(task, args, kwargs, {})),
    )


def _lock_of_message(
    plan: Plan, task: Task, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Lock:
    """Return the lock of the run that a message with these arguments will be."""
    owned = not isinstance(inspect.getattr_static(type(task), "run"), staticmethod)
    args = (task, *args) if owned else args  # the first argument of ``run``, as ``self``
    return plan.lock_of_call(task.name, args, kwargs, owned=owned)


def _on_failure(
    sender: Any = None,
    task_id: str = "",
    exception: object = None,
    args: Any = (),
    kwargs: Mapping[str, Any] | None = None,
    **_: object,
) -> None:
    """Remove the mark of a message whose child was killed; a run that ends removes it itself."""
    plan = plan_of(getattr(sender, "run", None))
    if plan is not None and plan.marks and isinstance(exception, WorkerLostError):
        lock = _lock_of_message(plan, sender, *_as_delivered(sender, args, kwargs, {}))
        mark = mark_of(conf.backend(lock.alias).policy, sender.name, lock)
        marks.remove_later(mark, task_id)


task_failure.connect(_on_failure, dispatch_uid="redlock_marks")


def _is_awaited(options: Mapping[str, Any]) -> bool:
    """Return True if somebody waits for just this message; a chain does for its last one."""
    return any(map(options.get, AWAITED)) or options.get("chain") is not None


def _is_sent_again(task_id: str | None, options: Mapping[str, Any]) -> bool:
    """Return True for a retry, and for a message that was put off: it has been sent before.

    Such a message is sent by its own run.
    """
    headers = options["headers"]
    put_off = bool(headers[HEADER].get("deferred"))
    carries = marks.mark_in(headers) is not None
    return task_id is not None and (bool(options.get("retries")) or put_off or carries)


def _as_delivered(
    task: Task, args: Any, kwargs: Mapping[str, Any] | None, options: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the arguments as the worker will get them, of which it makes the key."""
    args, kwargs = tuple(args or ()), kwargs or {}
    if PLAIN.issuperset(map(type, (*args, *kwargs.values()))):
        return args, kwargs
    if getattr(task, "_dump_pydantic_arguments", None) is not None:
        return args, kwargs  # the worker makes models of them again
    serializer = options.get("serializer") or task.serializer or task.app.conf.task_serializer
    kind, encoding, data = serialization.dumps((args, kwargs), serializer)
    args, kwargs = serialization.loads(data, kind, encoding, accept=[kind])
    return tuple(args), kwargs


def seconds_queued(task: Task, options: Mapping[str, Any], queue_ttl: float) -> float:
    """Return the seconds after which no worker will begin to run a message: its mark lasts as long.

    That is when it expires; without ``expires``, ``queue_ttl`` seconds after its ETA.
    """
    expires = options.get("expires", task.expires)
    if expires is not None:
        return min(_seconds_until(task, expires), LONGEST)
    begin = options.get("countdown") or _seconds_until(task, options.get("eta"))
    return min(max(0.0, begin) + queue_ttl, LONGEST)


def _seconds_until(task: Task, when: Any) -> float:
    """Return the seconds until a time, as Celery reads it: a number, a text or a ``datetime``."""
    if isinstance(when, Real):
        return float(when)
    when = maybe_iso8601(when)
    if not isinstance(when, datetime):
        return 0.0
    aware: datetime = maybe_make_aware(when, task.app.timezone)
    return (aware - datetime.now(UTC)).total_seconds()


def _result(result: Any, *, duplicate: bool | None) -> Any:
    result.duplicate = duplicate
    return result

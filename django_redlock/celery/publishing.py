"""Send the message of a task, unless a mark on the nodes says that another one waits or runs.

``LockedTask.apply_async`` calls ``publish``, with what sends the message. A message is sent without
a look at marks where somebody waits for just this one: it is part of a group, chord or chain, has
callbacks, or replaces another task. A message that is sent again (a retry, one that comes back
later) sets its mark anew, and is never left out. A copy sets none: it may find that its first run
has finished, and a message that was left out for it would then be lost.

Each message carries a header of this package:

    {"message": number, "deferred": times, "again": bool}

The number stays the same when the message comes back; ``redelivery`` writes the rest. ``again``
says that an earlier run of the message was met.
"""

from __future__ import annotations

import functools
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from datetime import UTC, datetime
from numbers import Real
from typing import Any, Final, NamedTuple

from celery import Task
from celery.result import AsyncResult
from celery.utils import uuid
from celery.utils.time import maybe_iso8601, maybe_make_aware
from django.db import DEFAULT_DB_ALIAS, transaction
from kombu import serialization

from django_redlock import conf, events
from django_redlock.core import completion as core
from django_redlock.core.errors import DuplicateTask, RedlockError
from django_redlock.core.policy import LONGEST
from django_redlock.core.protocol import one_or_all
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.events import TaskEvent, TaskOutcome
from django_redlock.locks.lock import Lock
from django_redlock.transactions import check_database, in_transaction

from . import marks
from .plan import UNTIL_FINISHED, Plan, plan_of

logger = logging.getLogger("django_redlock")
HEADER: Final = "redlock"
NUMBER: Final = "message"
AWAITED: Final = ("link", "link_error", "chord", "group_id", "replaced_task_nesting")
PLAIN: Final = frozenset({str, int, float, bool, type(None)})  # as they are, whatever serializes
REFUSALS: Final = 10  # of which a warning is logged
MOST_REFUSALS: Final = 1000  # messages whose refusals are counted
OF_THE_CALLER: Final = ("producer", "publisher", "connection")  # perhaps gone after the COMMIT
_same: ContextVar[bool] = ContextVar("redlock_same_message", default=False)
_copy: ContextVar[bool] = ContextVar("redlock_copy", default=False)
_refusals: Final[dict[str, int]] = {}  # by the id of the message that waits


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


# -- events ---------------------------------------------------------------------------------------


def notify(
    outcome: TaskOutcome,
    task: Task,
    task_id: str | None,
    *,
    alias: str,
    name: str | tuple[str, ...],
    template: str,
    other_id: str = "",
    seconds: float = 0.0,
    error: RedlockError | None = None,
) -> None:
    """Let signals and metrics know what became of a message, when it has; see ``TaskEvent``.

    What a listener raises is logged, and harms neither the message nor a lock or a mark.
    """
    if events.wanted_of_tasks(outcome):
        more = task.name, task_id or "", other_id, seconds, error, template
        events.tell_of_task(TaskEvent(outcome, alias, name, *more))


# -- publishing -----------------------------------------------------------------------------------


class Message(NamedTuple):
    """A message that is to be sent.

    Attributes:
        send: the function that sends the message, called with the options.
        lock: the lock of the message's run.
        options: the options of ``apply_async``, without ``task_id``.
        again: whether the message was sent before.
    """

    task: Task
    plan: Plan
    send: Callable[..., Any]
    lock: Lock
    task_id: str
    options: dict[str, Any]
    again: bool


def publish(
    task: Task,
    send: Callable[..., Any],
    arguments: tuple[Any, Mapping[str, Any] | None],
    task_id: str | None,
    options: dict[str, Any],
) -> Any:
    """Send a message of a task, or do with a duplicate what ``on_duplicate`` says.

    Returns:
        What ``send`` returns, an ``AsyncResult``, with an attribute ``duplicate``: False. For a
        duplicate what ``on_duplicate`` says. Inside a transaction a result that has ``duplicate``
        None until the COMMIT.

    Raises:
        DuplicateTask: it is a duplicate, and ``on_duplicate`` is "raise".
        ConnectionDoesNotExist: ``using`` names no database.
    """
    options, plan = _with_number(options), plan_of(task.run)
    always = task.app.conf.task_always_eager or _is_awaited(options)
    if plan is None or not plan.marks or always:
        return _result(send(*arguments, task_id=task_id, **options), duplicate=False)
    lock = plan.lock_of_message(task, *_as_delivered(task, *arguments, options))
    again = _is_sent_again(task_id, options)
    if plan.using is not None:  # else its transactions would be no reason to wait
        check_database(plan.using)
    later = not again and in_transaction(plan.using or DEFAULT_DB_ALIAS)
    if later:  # the caller may change its objects until the COMMIT
        arguments = deepcopy(arguments)
    send = functools.partial(send, *arguments)
    message = Message(task, plan, send, lock, task_id or uuid(), options, again)
    return _publish_after_commit(message) if later else _publish(message)


def unmark(task: Task, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> None:
    """Remove the mark of the messages with these arguments, whatever message set it.

    Raises:
        TypeError: the arguments do not fit the task, or its messages have no marks.
    """
    plan = plan_of(task.run)
    if plan is None or not plan.marks:
        msg = (
            f"messages of {task.name} have no marks: that takes mode='until_finished', or …started"
        )
        raise TypeError(msg)
    lock = plan.lock_of_message(task, *_as_delivered(task, args, kwargs, {}))
    backend = conf.backend(lock.alias)
    backend.run(core.remove(backend.policy, core.mark_key(backend.policy, task.name, lock.names)))


def _is_awaited(options: Mapping[str, Any]) -> bool:
    """Return True if somebody waits for just this message; a chain does for its last one."""
    return any(options.get(each) for each in AWAITED) or options.get("chain") is not None


def _is_sent_again(task_id: str | None, options: Mapping[str, Any]) -> bool:
    """Return True for a retry, and for a message that was put off: it has been sent before.

    Such a message is sent by its own run. In a transaction, which that run may roll back by the
    exception that ends it, waiting for a COMMIT would lose it.
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


def _publish_after_commit(message: Message) -> Any:
    """Return the result of a reserved id; the message is published after the COMMIT."""
    result = _result(message.task.AsyncResult(message.task_id), duplicate=None)
    options = {key: each for key, each in message.options.items() if key not in OF_THE_CALLER}
    later = functools.partial(_on_commit, message._replace(options=options), result)
    transaction.on_commit(later, using=message.plan.using)
    return result


def _on_commit(message: Message, result: AsyncResult[Any]) -> None:
    try:
        found = _publish(message)
    except DuplicateTask as duplicate:
        # The caller has gone on, and others wait for this COMMIT as well: nobody can be told.
        logger.warning("%s[%s] was not sent: %s", message.task.name, message.task_id, duplicate)
        result.duplicate = True
        return
    of_this_id = getattr(found, "id", None) == message.task_id
    result.duplicate = not (of_this_id and found.duplicate is False)
    if message.plan.on_duplicate == "existing":
        result.id = found.id


def _publish(message: Message) -> Any:
    marking = _marking(message)
    try:
        outcome = marking.mark() if marking is not None else core.Outcome()
        if message.again or not outcome.duplicate_of:
            options = message.options
            if marking is not None and outcome.nonce:
                headers = {**options["headers"], **marking.header(outcome.nonce)}
                options = {**options, "headers": headers}
            return _result(message.send(task_id=message.task_id, **options), duplicate=False)
    except BaseException:
        if marking is not None:
            marking.take_back()
        raise
    other = outcome.duplicate_of
    is_marked = any(vote.owner for vote in outcome.votes if vote.holder == other)  # not begun
    if is_marked and not {"countdown", "eta"} & message.options.keys():  # else it may not be due
        _note_refusal(message.task, other)
    return _duplicate(message, other)


def _note_refusal(task: Task, other: str) -> None:
    """Warn, once for each waiting message, when it has kept many others from being sent."""
    if len(_refusals) >= MOST_REFUSALS:
        _refusals.clear()  # a warning comes later, and memory does not grow
    _refusals[other] = count = _refusals.get(other, 0) + 1
    if count == REFUSALS:
        logger.warning(
            "%d messages of %s in a row were not sent, because %s waits. If no worker has it any "
            "more (one that was killed may have fetched it), 'manage.py redlock_release --task %s' "
            "lets the next one be sent. expires= or queue_ttl= below the period of a task of beat "
            "ends such a wait.",
            count,
            task.name,
            other,
            other,
        )


def _marking(message: Message) -> marks.Marking | None:
    """Return what marks the message; None: no worker will run it, or it is a copy."""
    task, plan, lock = message.task, message.plan, message.lock
    life = seconds_queued(task, message.options, plan.queue_ttl)
    if life <= 0 or _copy.get():
        return None
    of_run = plan.mode == UNTIL_FINISHED
    return marks.Marking(lock.alias, lock.names, task.name, message.task_id, life, of_run=of_run)


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


def _duplicate(message: Message, other: str) -> Any:
    """Do what ``on_duplicate`` says; ``other`` is the task id of the message that counts."""
    task, choice = message.task, message.plan.on_duplicate
    logger.info("%s[%s] is not sent: %s waits or runs", task.name, message.task_id, other)
    lock = message.lock
    name = one_or_all(lock.names)
    notify(
        TaskOutcome.DUPLICATE,
        task,
        message.task_id,
        alias=lock.alias,
        name=name,
        template=lock.template,
        other_id=other,
    )
    if choice == "drop":
        return None
    if choice == "raise":
        reason = because(ReasonCode.ALREADY_QUEUED, task_id=other)
        raise DuplicateTask(reason, name=name, task_id=other)
    result = _result(task.AsyncResult(other), duplicate=True)
    return choice(result) if callable(choice) else result


def _result(result: Any, *, duplicate: bool | None) -> Any:
    result.duplicate = duplicate
    return result

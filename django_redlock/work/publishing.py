"""Send a message, unless a mark on the nodes says that another one waits or runs.

The adapter says what sends it, and for how long its mark may last; here is the rest: the mark
before the message, what becomes of a duplicate, and who is told. A message that is sent again (a
retry, one that comes back later) sets its mark anew, and is never left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from django_redlock import conf, events
from django_redlock.core import completion as core
from django_redlock.core.errors import DuplicateTask, RedlockError
from django_redlock.core.protocol import one_or_all
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.events import TaskEvent, TaskOutcome
from django_redlock.locks.lock import Lock
from django_redlock.transactions import check_database, in_transaction

from .marks import Mark, Marking
from .plan import UNTIL_FINISHED, Plan

T = TypeVar("T")
logger = logging.getLogger("django_redlock")
REFUSALS: Final = 10  # of which a warning is logged
MOST_REFUSALS: Final = 1000  # messages whose refusals are counted
_refusals: Final[dict[str, int]] = {}  # by the id of the message that waits


class Message(NamedTuple):
    """A message that is to be sent, as far as its mark is concerned.

    Attributes:
        task: the name of the task.
        task_id: the id by which nodes know the message.
        plan: how the task is locked.
        lock: the lock of the message's run.
        life: seconds for which its mark may last; 0 or less: it has none.
        again: whether the message was sent before.
        is_due: whether a worker may begin it at once.
    """

    task: str
    task_id: str
    plan: Plan
    lock: Lock
    life: float
    again: bool
    is_due: bool


class Published(NamedTuple, Generic[T]):
    """What became of a message: what ``send`` returned, or the id of the message in its place."""

    result: T | None
    other_id: str = ""


def notify(
    outcome: TaskOutcome,
    task: str,
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
        more = task, task_id or "", other_id, seconds, error, template
        events.tell_of_task(TaskEvent(outcome, alias, name, *more))


def waits_for_commit(plan: Plan, *, again: bool, queue: Iterable[str] = ()) -> list[str]:
    """Return the databases for whose COMMIT a message of this plan waits; none: it is sent at once.

    Not one that is sent again: it is sent by its own run. In a transaction, which that run may roll
    back by the exception that ends it, waiting for a COMMIT would lose it.

    Args:
        queue: the databases to which the message itself is written.

    Raises:
        ConnectionDoesNotExist: ``using`` names no database.
        TransactionManagementError: one of them has autocommit off.
    """
    if plan.using is not None:  # else its transactions would be no reason to wait
        check_database(plan.using)
    if again:
        return []
    databases = list(dict.fromkeys([plan.using or DEFAULT_DB_ALIAS, *queue]))
    for each in databases:
        _check_autocommit(each)
    return [each for each in databases if in_transaction(each)]


def _check_autocommit(alias: str) -> None:
    """Refuse what ``on_commit`` refuses; a connection that is not open stays so."""
    connection = connections[alias]
    opened = connection.connection is not None
    autocommit = connection.autocommit if opened else connection.settings_dict["AUTOCOMMIT"]
    if not (autocommit or connection.in_atomic_block):
        msg = (
            f"autocommit is off for the database {alias!r}, so the COMMIT that a task with a mark "
            "waits for is unknown: send it in transaction.atomic(), or call set_autocommit(True)"
        )
        raise transaction.TransactionManagementError(msg)


def after_commit(call: Callable[[], object], databases: Sequence[str]) -> None:
    """Call it when this thread is in no transaction of these databases any more."""
    for alias in databases:
        if in_transaction(alias):
            transaction.on_commit(partial(after_commit, call, databases), using=alias)
            return
    call()


def publish(
    message: Message,
    send: Callable[[Mark | None], T],
    has_ended: Callable[[str, float], bool] = lambda *_: False,
    is_sent: Callable[[], bool] = lambda: False,
) -> Published[T]:
    """Mark a message and send it, unless it is a duplicate.

    Args:
        message: what is sent.
        send: sends it, with this mark; called at most once.
        has_ended: given the id of the message that has the mark, and for how many seconds at
            least: tells whether that one will run no more. Then its mark is removed, and this
            message is marked once more.
        is_sent: asked when ``send`` has raised: a receiver may have, of a message that is sent.
    """
    published, marked_for = _publish(message, send, is_sent)
    other = published.other_id
    if marked_for is not None and has_ended(other, marked_for):
        if (marking := _marking(message)) is not None and marking.remove_of(other):
            text = "%s[%s] has ended, and its mark was still there: %s is sent"
            logger.warning(text, message.task, other, message.task_id)
        published, marked_for = _publish(message, send, is_sent)
    if marked_for is not None and message.is_due:
        _note_refusal(message.task, published.other_id)
    return published


def _publish(
    message: Message, send: Callable[[Mark | None], T], is_sent: Callable[[], bool]
) -> tuple[Published[T], float | None]:
    """Do it once; return besides for how many seconds the other one is marked, None: it runs."""
    marking = _marking(message)
    try:
        outcome = marking.mark() if marking is not None else core.Outcome()
        if message.again or not outcome.duplicate_of:
            there = marking is not None and outcome.nonce
            mark = marking.made(outcome.nonce) if marking and there else None
            return Published(send(mark)), None
    except BaseException:
        if marking is not None and not is_sent():
            marking.take_back()
        raise
    return Published(None, outcome.duplicate_of), outcome.marked_for


def _marking(message: Message) -> Marking | None:
    if message.life <= 0:
        return None
    lock, of_run = message.lock, message.plan.mode == UNTIL_FINISHED
    told = message.task, message.task_id, message.life
    return Marking(lock.alias, lock.names, *told, of_run=of_run)


def _note_refusal(task: str, other: str) -> None:
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
            task,
            other,
            other,
        )


def instead(message: Message, other: str, existing: Callable[[], Any]) -> Any:
    """Do what ``on_duplicate`` says, in place of sending a message.

    Args:
        message: the one that is not sent.
        other: the id of the message that counts.
        existing: returns its result.

    Raises:
        DuplicateTask: ``on_duplicate`` is "raise".
    """
    task, lock, choice = message.task, message.lock, message.plan.on_duplicate
    logger.info("%s[%s] is not sent: %s waits or runs", task, message.task_id, other)
    notify(
        TaskOutcome.DUPLICATE,
        task,
        message.task_id,
        alias=lock.alias,
        name=one_or_all(lock.names),
        template=lock.template,
        other_id=other,
    )
    if choice == "drop":
        return None
    if choice == "raise":
        raise duplicate(message, other)
    return choice(existing()) if callable(choice) else existing()


def duplicate(message: Message, other: str) -> DuplicateTask:
    """Return the error of a message that is not sent, because of another one."""
    reason = because(ReasonCode.ALREADY_QUEUED, task_id=other)
    return DuplicateTask(reason, name=one_or_all(message.lock.names), task_id=other)


def unmark(task: str, plan: Plan | None, args: object, lock_of: Callable[[Plan], Lock]) -> None:
    """Remove the mark of the messages of a task whose run would take this lock, whoever set it.

    Args:
        task: its name.
        plan: how its function is locked; None: it is not.
        args: the positional arguments of the messages, as they were given.
        lock_of: makes the lock.

    Raises:
        TypeError: ``args`` is no list or tuple, or the messages of the task have no marks.
    """
    if not (args is None or isinstance(args, list | tuple)):  # a text has the arguments "7", "1"…
        msg = f"args must be a list or tuple, as in unmark(…, (7,)), not {type(args).__name__}"
        raise TypeError(msg)
    if plan is None or not plan.marks:
        msg = f"messages of {task} have no marks: that takes mode='until_finished', or …started"
        raise TypeError(msg)
    try:
        lock = lock_of(plan)
    except TypeError as error:
        raise TypeError(f"unmark() takes the arguments of {task}: {error}") from None
    backend = conf.backend(lock.alias)
    backend.run(core.remove(backend.policy, core.mark_key(backend.policy, task, lock.names)))

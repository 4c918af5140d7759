"""Send a message, unless a mark on the nodes says that another one waits or runs.

The adapter says what sends it, and for how long its mark may last; here is the rest: the mark
before the message, what becomes of a duplicate, and who is told. A message that is sent again (a
retry, one that comes back later) sets its mark anew, and is never left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from django_redlock import conf, events
from django_redlock.core import completion
from django_redlock.core.errors import DuplicateTask, RedlockError
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import one_or_all
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.events import TaskEvent, TaskOutcome
from django_redlock.locks.lock import Lock
from django_redlock.transactions import check_database, in_transaction

from .marks import Mark, mark_of, short_id, short_name
from .options import UNTIL_FINISHED
from .plan import Plan

logger = logging.getLogger("django_redlock")
REFUSALS: Final = 10  # of which a warning is logged
MOST_REFUSALS: Final = 1000  # messages whose refusals are counted
_refusals: Final[dict[str, int]] = {}  # by the id of the message that waits


def notify(
    outcome: TaskOutcome,
    task: str,
    task_id: str | None,
    lock: Lock,
    *,
    other_id: str = "",
    seconds: float = 0.0,
    error: RedlockError | None = None,
) -> None:
    """Let signals and metrics know what became of a message, when it has; see ``TaskEvent``.

    What a listener raises is logged, and harms neither the message nor a lock or a mark.
    """
    if events.wanted_of_tasks(outcome):
        more = task, task_id or "", other_id, seconds, error, lock.template
        events.tell_of_task(TaskEvent(outcome, lock.alias, one_or_all(lock.names), *more))


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


class OutgoingMessage:
    """A message that is to be sent, unless a mark says that another one waits or runs.

    An adapter says how it is sent (``send``), how long its mark lasts (``life``), and what stands
    for a duplicate (``existing``). What it may have left on the nodes is known at any moment.

    Args:
        plan: how the task is locked.
        task: the name of the task.
        task_id: the id by which nodes know the message.
        lock: the lock of the message's run.
        again: whether the message was sent before.
        is_due: whether a worker may begin it at once.
    """

    def __init__(
        self, plan: Plan, task: str, task_id: str, lock: Lock, *, again: bool, is_due: bool
    ) -> None:
        self.plan, self.task, self.task_id, self.lock = plan, task, task_id, lock
        self.again, self.is_due = again, is_due
        self._mark: Mark | None = None  # of any message of its key
        self._nonces: list[str] = []  # of the attempts to set its own

    def send(self, mark: Mark | None) -> Any:
        """Send it, with this mark; called at most once."""
        raise NotImplementedError

    def life(self) -> float:
        """Return the seconds for which its mark may last; 0 or less: it has none."""
        raise NotImplementedError

    def existing(self, other: str) -> Any:
        """Return the result of the message that is in its place."""
        raise NotImplementedError

    def has_ended(self, other: str, marked_for: float) -> bool:  # noqa: ARG002 - a hook
        """Tell whether another message will run no more, marked for so many seconds at least."""
        return False

    def is_sent(self) -> bool:
        """Tell whether it is sent, though ``send`` has raised: a receiver may have."""
        return False

    def settle(self, result: Any, published: Any) -> None:
        """Write into the result that the caller has what ``publish`` returned; None: nothing."""
        raise NotImplementedError

    def publish(self) -> Any:
        """Mark it and send it; or do with a duplicate what ``on_duplicate`` says.

        Raises:
            DuplicateTask: it is a duplicate, and ``on_duplicate`` is "raise".
        """
        try:
            outcome = self.set_mark()
            if self._is_outlived(outcome):
                outcome = self.set_mark()
            if self.again or not outcome.duplicate_of:
                mark = self._mark if outcome.nonce else None
                return self.send(mark and mark._replace(nonce=outcome.nonce))
        except BaseException:
            if self._nonces and not self.is_sent():
                self.take_back()
            raise
        return self.instead(outcome)

    def publish_after_commit(self, databases: Sequence[str], result: Any) -> Any:
        """Publish it when no transaction of these databases is open; return the result for then."""
        after_commit(partial(self._on_commit, result), databases)
        return result

    def _on_commit(self, result: Any) -> None:
        published = None
        try:
            published = self.publish()
        except DuplicateTask as duplicate:
            # The caller has gone on, and others wait for this COMMIT as well: nobody can be told.
            logger.warning("%s[%s] was not sent: %s", self.task, self.task_id, duplicate)
        self.settle(result, published)

    # -- its mark ---------------------------------------------------------------------------------

    def set_mark(self) -> completion.Outcome:
        """Set its mark on the nodes, unless it has none."""
        life = self.life()
        if life <= 0:
            return completion.Outcome()
        backend = conf.backend(self.lock.alias)
        self._mark = mark_of(backend.policy, self.task, self.lock)
        outcome = backend.run(
            completion.set_mark(
                backend.policy,
                self._mark.key,
                self.locks_of_run(backend.policy),
                task=short_name(self.task),
                task_id=short_id(self.task_id),
                ttl=life,
                begun=self._nonces.append,
            )
        )
        if not (outcome.certain or outcome.duplicate_of):
            text = "%s[%s] is sent unmarked: no majority of the nodes has marked it"
            logger.warning(text, self.task, self.task_id)
        return outcome

    def locks_of_run(self, policy: Policy) -> Sequence[str]:
        """Return the keys of the locks in which a run of the task counts as well."""
        if self.plan.mode != UNTIL_FINISHED:
            return ()
        return policy.target(self.lock.names).keys

    def _is_outlived(self, outcome: completion.Outcome) -> bool:
        """Remove the mark of another message that has ended, and tell whether it has."""
        other = "" if self.again else outcome.duplicate_of
        marked_for = outcome.marked_for if other else None
        if marked_for is None or not self.has_ended(other, marked_for):
            return False
        if self.remove_mark_of(other):
            text = "%s[%s] has ended, and its mark was still there: %s is sent"
            logger.warning(text, self.task, other, self.task_id)
        return True

    def remove_mark_of(self, other: str) -> bool:
        """Remove the mark of another message of this key; tell whether a node had it."""
        return self._mark is not None and self._mark.remove(task_id=other)

    def take_back(self) -> None:
        """Remove its mark: it was not sent, or that was interrupted."""
        if self._mark is not None:
            self._mark._replace(nonce=self._nonces[-1]).remove()

    # -- a duplicate ------------------------------------------------------------------------------

    def instead(self, outcome: completion.Outcome) -> Any:
        """Do what ``on_duplicate`` says, in place of sending the message."""
        other, choice = outcome.duplicate_of, self.plan.on_duplicate
        if self.is_due and outcome.marked_for is not None:
            _note_refusal(self.task, other)
        logger.info("%s[%s] is not sent: %s waits or runs", self.task, self.task_id, other)
        notify(TaskOutcome.DUPLICATE, self.task, self.task_id, self.lock, other_id=other)
        if choice == "drop":
            return None
        if choice == "raise":
            raise self.duplicate(other)
        return choice(self.existing(other)) if callable(choice) else self.existing(other)

    def duplicate(self, other: str) -> DuplicateTask:
        """Return the error of a message that is not sent, because of another one."""
        reason = because(ReasonCode.ALREADY_QUEUED, task_id=other)
        return DuplicateTask(reason, name=one_or_all(self.lock.names), task_id=other)


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


def remove_marks(
    task: str, plan: Plan | None, args: object, lock_of: Callable[[Plan], Lock]
) -> None:
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
    mark_of(conf.backend(lock.alias).policy, task, lock).remove()

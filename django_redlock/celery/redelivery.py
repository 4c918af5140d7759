"""What becomes of a message that is delivered again, or whose key is held, as Celery has it.

``work.redelivery`` decides. Celery gives a copy the task id of its message, and so:

* The run name is that of the message, not of the task id: ``publishing`` numbers each message. A
  second message with the same ``task_id`` is not a copy, nor is a retry.
* The tracer (``celery/app/trace.py``) sends ``task_success``, ``task_failure`` and ``task_retry``
  after it has stored the result and sent what follows. ``task_postrun`` comes last, also where
  storing failed and where no such signal was sent: the run ends there, with a record if there was
  one, else without.
* A copy stores no state, for that might replace the first run's. The tracer would store STARTED
  before the body is called, so ``LockedTask`` does it after the grant in its place.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn

from celery import signals, states
from celery.exceptions import Ignore, OperationalError, Reject, Retry, SoftTimeLimitExceeded

from django_redlock.core.protocol import one_or_all
from django_redlock.events import TaskOutcome
from django_redlock.leases.lease import Lease
from django_redlock.locks.lock import Lock
from django_redlock.locks.template import LockTemplate
from django_redlock.work import redelivery as core
from django_redlock.work.plan import Plan
from django_redlock.work.redelivery import Fate, Refusal, Skipped, count

from .backoff import pause, visibility_timeout
from .marks import PutOff
from .publishing import HEADER, NUMBER, history, same_message

logger = logging.getLogger("django_redlock")
SUCCEEDED: Final = "%s[%s] has succeeded before: this copy does not run"
NUMBERS: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch  # of messages
ATTRIBUTE: Final = "redlock_run"  # of a request: its ``Delivery``, when that has a run name


class Delivery(core.Delivery):
    """A call of a locked function, and Celery's message whose run it is, if it is one.

    Attributes:
        task: the task whose body the call is; None: the function was called directly.
        is_stored: whether Celery has stored the result, so that no copy needs to run.
    """

    def __init__(self, task: Any, plan: Plan) -> None:
        self.task, self.is_stored = task, False
        request: Any = None if task is None else task.request
        has_message = not (request is None or request.called_directly or request.is_eager)
        is_copy = has_message and bool(
            (request.delivery_info or {}).get("redelivered") or history(request).get("again")
        )
        number = self._find_number() if has_message else None
        name, task_id = ("", None) if task is None else (task.name, request.id)
        super().__init__(plan, name, task_id, number, has_message=has_message, is_copy=is_copy)

    def _find_number(self) -> str | None:
        """Return the number by which copies of the message are known.

        None: it has none, or it is acknowledged before its run, so that there are no copies.
        """
        task = self.task
        if not (getattr(task, "numbers_messages", False) and task.acks_late):
            return None
        if ATTRIBUTE in vars(task.request):  # the body calls itself
            return None
        number = history(task.request).get(NUMBER)
        if not (isinstance(number, str) and NUMBERS(number)):
            return None
        return number

    @property
    def _may_have_run(self) -> bool:
        return self.is_copy or bool(self.task.request.retries)

    # -- a message that is refused ----------------------------------------------------------------

    def refuse(self, refusal: Refusal, lock: Lock) -> Skipped:
        """Skip the message, or send it again for later, or raise the refusal.

        Args:
            lock: the one that was refused.

        Raises:
            Ignore: the message has finished in an earlier run, or it is a copy that was sent again.
            Retry, Reject: see ``_defer``.
        """
        own = self.meets_itself(refusal)
        again = own or (self.has_message and self._may_have_run)
        fate = self.fate(refusal, is_own=own, may_have_run=again)
        if fate is Fate.FINISHED:
            self.note_finished(lock, refusal.name)
            raise Ignore("an earlier run of this message has finished")
        if fate is Fate.LATER:
            silently = self.number is not None and (own or self.is_copy)
            self._defer(refusal, lock, again=again, silently=silently)
        if fate is Fate.SKIPPED:
            return self.skip(refusal, lock)
        raise refusal

    def _defer(self, refusal: Refusal, lock: Lock, *, again: bool, silently: bool) -> NoReturn:
        """Send this message again for later, with all it carries, its count of retries too.

        Not by ``Task.retry``: that counts, and its ``max_retries`` argument stays behind in the
        task.

        Args:
            silently: whether no state is stored: RETRY might replace what the first run stores.

        Raises:
            Retry: the message is sent; Celery acknowledges the old one and keeps chord and chain
                open.
            PutOff: the same, silently.
            Reject: the message could not be sent, and the broker still has the old one.
        """
        task, request = self.task, self.task.request
        before = history(request)
        times = count(before.get("deferred"))
        seconds = pause(task, times, for_slot=self.waits_for_slot(refusal))
        more = {"deferred": times + 1, "again": again}
        # Without those of RabbitMQ, which silently drops a message that says it has been delayed on
        # the same queue before.
        headers = request.as_execution_options()["headers"] or {}
        message = task.signature_from_request(
            request,
            countdown=seconds,
            retries=request.retries,
            headers={**headers, HEADER: {**before, **more}},
        )
        try:
            with same_message(copy=silently):
                message.apply_async()
        except OperationalError as error:
            if task.acks_late:
                raise Reject(error, requeue=True) from refusal
            raise
        self.notify(TaskOutcome.DEFERRED, lock, refusal.name, seconds=seconds, error=refusal)
        if silently:
            text = "%s[%s] is a copy and comes back in %.1f s: %s"
            logger.info(text, task.name, request.id, seconds, refusal)
            raise PutOff("this copy comes back later")
        raise Retry(exc=refusal, when=seconds, sig=message)

    # -- a message that has finished --------------------------------------------------------------

    def has_succeeded(self, lock: Lock) -> bool:
        """Return True if this message may be a second copy, and a run of it succeeded.

        With ``worker_deduplicate_successful_tasks`` Celery checks this for a message that the
        broker marked as redelivered. A copy that was sent again for later has no such mark, so its
        run checks it here, under the same conditions.
        """
        task = self.task
        if not (self.has_message and task.acks_late and self._may_have_run):
            return False
        if not (task.app.conf.worker_deduplicate_successful_tasks and task.backend.persistent):
            return False
        try:
            succeeded = bool(task.AsyncResult(task.request.id).state == states.SUCCESS)
        except SoftTimeLimitExceeded:
            raise
        except Exception:  # noqa: BLE001 - of any library that stores results; unknown is not done
            text = "%s[%s] may run a second time: its result cannot be read"
            logger.warning(text, task.name, task.request.id)
            return False
        if succeeded:
            self.note_finished(lock, one_or_all(lock.names), SUCCEEDED)
        return succeeded

    @contextmanager
    def run(self, options: LockTemplate, lock: Lock) -> Iterator[None]:
        """Hold the run name, from before the key is asked for until Celery has stored the result.

        Of a block whose body did not begin, or has no result, the run name is released with it.

        Args:
            options: of the lock, for the run name.
            lock: of the key; errors name it, and not the run name.

        Raises:
            LockTaken, NodesUnavailable: see ``take``.
        """
        if self.number is None:
            yield
            return
        setattr(self.task.request, ATTRIBUTE, self)
        try:
            self.take(options, lock)
            yield
        except BaseException as error:
            if not self.has_begun or isinstance(error, Ignore | Reject):
                self.end()
            raise

    @contextmanager
    def body(self, lease: Lease | None) -> Iterator[None]:
        """Run the body in the block, once it is stored that it has started."""
        self._store_started()
        with super().body(lease):
            yield

    def _store_started(self) -> None:
        """Store the state STARTED, where the tracer would have done it before the grant."""
        task = self.task
        if not (self.has_message and getattr(task, "stores_started", False)):
            return
        request = task.request
        ignored = vars(request).get("ignore_result")
        if task.ignore_result if ignored is None else ignored:
            return
        meta = {"pid": os.getpid(), "hostname": request.hostname}
        task.backend.store_result(request.id, meta, states.STARTED, request=request)

    def end(self) -> None:
        """Leave a completion record, or release the run name."""
        # A handler that raises after the result was stored wants its message back.
        is_done = self.is_stored and self.is_sound and sys.exc_info()[1] is None
        self.leave(visibility_timeout(self.task), is_done=is_done)


# -- what the tracer tells ------------------------------------------------------------------------


def take_over_started(task: Any) -> None:
    """Let a class of tasks store STARTED after the grant, and not the tracer before it."""
    if task.acks_late and task.track_started:
        task.stores_started, task.track_started = True, False


def _delivery_of(task: Any) -> Delivery | None:
    request = getattr(task, "request", None)
    found = None if request is None else vars(request).get(ATTRIBUTE)
    return found if isinstance(found, Delivery) else None


def _on_stored(sender: Any = None, **_: object) -> None:
    delivery = _delivery_of(sender)
    if delivery is not None:
        delivery.is_stored = True


def _on_failure(sender: Any = None, **_: object) -> None:
    """Note a failure, unless its message goes to a dead-letter queue, to be sent from there."""
    acknowledged = getattr(sender, "acks_on_failure", None)
    if acknowledged is None:  # before Celery 5.7
        acknowledged = getattr(sender, "acks_on_failure_or_timeout", True)
    if acknowledged:
        _on_stored(sender)


def _on_end(sender: Any = None, **_: object) -> None:
    delivery = _delivery_of(sender)
    if delivery is not None:
        delivery.end()


for _signal, _receiver in (
    (signals.task_success, _on_stored),
    (signals.task_retry, _on_stored),
    (signals.task_failure, _on_failure),
    (signals.task_postrun, _on_end),
):
    _signal.connect(_receiver, weak=False, dispatch_uid=f"redlock {_receiver.__name__}")

"""The run of Celery's messages: which message it is, how it comes back, and when it has ended.

``work.run`` decides. Celery gives a copy the task id of its message, and so:

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
from typing import Any, Final, NoReturn

from celery import signals, states
from celery.exceptions import Ignore, OperationalError, Reject, Retry, SoftTimeLimitExceeded

from django_redlock.events import TaskOutcome
from django_redlock.work.plan import Plan
from django_redlock.work.run import Refusal, Run, count

from .backoff import pause, visibility_timeout
from .marks import mark_in
from .publishing import HEADER, NUMBER, history, same_message

logger = logging.getLogger("django_redlock")
SUCCEEDED: Final = "%s[%s] has succeeded before: this copy does not run"
NUMBERS: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch  # of messages
ATTRIBUTE: Final = "redlock_run"  # of a request: its run, when that has a run name


class CeleryRun(Run):
    """A call of a locked function, and Celery's message whose run it is, if it is one.

    Args:
        task: the task whose body the call is; None: the function was called directly.

    Attributes:
        is_stored: whether Celery has stored the result, so that no copy needs to run.
    """

    def __init__(
        self, plan: Plan, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.task, self.is_stored = task, False
        request: Any = None if task is None else task.request
        has_message = not (request is None or request.called_directly or request.is_eager)
        is_copy = has_message and bool(
            (request.delivery_info or {}).get("redelivered") or history(request).get("again")
        )
        number = self._find_number() if has_message else None
        name, task_id = ("", None) if task is None else (task.name, request.id)
        super().__init__(
            plan,
            name=name,
            task_id=task_id,
            number=number,
            args=args,
            kwargs=kwargs,
            owned=task is not None and bool(args) and args[0] is task,  # a method, or bind=True
            has_message=has_message,
            is_copy=is_copy,
        )
        if has_message:
            self.may_have_run = is_copy or bool(request.retries)
            self.mark = mark_in(request.headers)
            # An earlier run may have marked the message anew, to put it off, and died before it
            # sent it. The broker delivers the old one again, with the old nonce; and nobody else
            # knows of the new mark.
            self.mark_id = request.id if is_copy else ""
        if number is not None:
            setattr(request, ATTRIBUTE, self)

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

    def redelivered_for(self) -> float:
        """Return the seconds in which a copy may be delivered."""
        return visibility_timeout(self.task)

    # -- a message that begins --------------------------------------------------------------------

    def begin(self) -> None:
        """Store the state STARTED, where the tracer would have done it before the grant.

        Raises:
            Ignore: the message has the lock, and an earlier run of it has succeeded.
        """
        task = self.task
        if self.is_granted and self._has_succeeded():
            raise Ignore("an earlier run of this message has succeeded")
        if self.has_message and getattr(task, "stores_started", False):
            request = task.request
            ignored = vars(request).get("ignore_result")
            if not (task.ignore_result if ignored is None else ignored):
                meta = {"pid": os.getpid(), "hostname": request.hostname}
                task.backend.store_result(request.id, meta, states.STARTED, request=request)
        super().begin()

    def _has_succeeded(self) -> bool:
        """Return True if this message may be a second copy, and a run of it succeeded.

        With ``worker_deduplicate_successful_tasks`` Celery checks this for a message that the
        broker marked as redelivered. A copy that was sent again for later has no such mark, so its
        run checks it here, under the same conditions.
        """
        task = self.task
        if not (self.has_message and task.acks_late and self.may_have_run):
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
            self.note_finished(SUCCEEDED)
        return succeeded

    # -- a message that is refused ----------------------------------------------------------------

    def finished(self) -> NoReturn:
        """End a copy, whose first run has stored the result.

        Raises:
            Ignore: so that Celery stores nothing.
        """
        raise Ignore("an earlier run of this message has finished")

    def come_back(self, refusal: Refusal, *, is_own: bool, again: bool) -> NoReturn:
        """Send this message again for later, with all it carries, its count of retries too.

        Not by ``Task.retry``: that counts, and its ``max_retries`` argument stays behind in the
        task. A copy comes back silently: the state RETRY might replace what the first run stores.

        Raises:
            Retry: the message is sent; Celery acknowledges the old one and keeps chord and chain
                open.
            Ignore: the same, silently.
            Reject: the message could not be sent, and the broker still has the old one.
        """
        task, request = self.task, self.task.request
        silently = self.number is not None and (is_own or self.is_copy)
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
                self.mark = None  # the broker's message has it
                raise Reject(error, requeue=True) from refusal
            raise
        if silently:
            self.drop_mark(only_own=True)  # the run that it has met may have sent a retry
        self.mark = None  # the message that was sent has it
        self.notify(TaskOutcome.DEFERRED, seconds=seconds, error=refusal)
        if silently:
            text = "%s[%s] is a copy and comes back in %.1f s: %s"
            logger.info(text, task.name, request.id, seconds, refusal)
            raise Ignore("this copy comes back later")
        raise Retry(exc=refusal, when=seconds, sig=message)


# -- what the tracer tells ------------------------------------------------------------------------


def take_over_started(task: Any) -> None:
    """Let a class of tasks store STARTED after the grant, and not the tracer before it."""
    if task.acks_late and task.track_started:
        task.stores_started, task.track_started = True, False


def _run_of(task: Any) -> CeleryRun | None:
    request = getattr(task, "request", None)
    found = None if request is None else vars(request).get(ATTRIBUTE)
    return found if isinstance(found, CeleryRun) else None


def _on_stored(sender: Any = None, **_: object) -> None:
    run = _run_of(sender)
    if run is not None:
        run.is_stored = True


def _on_failure(sender: Any = None, **_: object) -> None:
    """Note a failure, unless its message goes to a dead-letter queue, to be sent from there."""
    acknowledged = getattr(sender, "acks_on_failure", None)
    if acknowledged is None:  # before Celery 5.7
        acknowledged = getattr(sender, "acks_on_failure_or_timeout", True)
    if acknowledged:
        _on_stored(sender)


def _on_end(sender: Any = None, **_: object) -> None:
    run = _run_of(sender)
    if run is not None:
        # A handler that raises after the result was stored wants its message back.
        run.end(is_stored=run.is_stored and sys.exc_info()[1] is None)


for _signal, _receiver in (
    (signals.task_success, _on_stored),
    (signals.task_retry, _on_stored),
    (signals.task_failure, _on_failure),
    (signals.task_postrun, _on_end),
):
    _signal.connect(_receiver, weak=False, dispatch_uid=f"redlock {_receiver.__name__}")

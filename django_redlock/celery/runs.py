"""A run of a message, from its grant until Celery has stored its result.

A message that is acknowledged late may be delivered again: when its worker died, or when it took
longer than the broker waits. The copy has the same task id, and must run if the first run died,
wait while it lives, and end if it has finished. So a run holds a *run name* beside its key, which
becomes a completion record in the end: ``core.completion`` has the rules, and this module tells
when Celery (``celery/app/trace.py``) has come so far.

* The run name is that of the message, not of the task id: ``LockedTask.apply_async`` numbers each
  message it sends. A second message with the same ``task_id`` is not a copy, nor is a retry.
* The tracer sends ``task_success``, ``task_failure`` and ``task_retry`` after it has stored the
  result and sent what follows. ``task_postrun`` comes last, also where storing failed and where no
  such signal was sent: the run ends there, with a record if there was one, else without.
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
from typing import TYPE_CHECKING, Any, Final

from celery import signals, states
from celery.exceptions import Ignore, Reject

from django_redlock.core.names import fill
from django_redlock.leases.renewal import keep, record

from .headers import NUMBER, history
from .redelivery import visibility_timeout

if TYPE_CHECKING:
    from celery import Task

    from django_redlock.leases.lease import Lease

logger = logging.getLogger("django_redlock")
ATTRIBUTE: Final = "redlock_run"  # of a request: its ``Run``
ROOM: Final = 60.0  # seconds for which a record stays after the broker may deliver a copy


def run_name(task: Task | None) -> str | None:
    """Return the run name of the message whose body this call is; None: it has none.

    It has one if it is acknowledged late and was numbered, for a body that is called for the
    first time.
    """
    if task is None or not getattr(task, "numbers_messages", False) or not task.acks_late:
        return None
    request = task.request
    if request.called_directly or request.is_eager or ATTRIBUTE in vars(request):
        return None
    number = history(request).get(NUMBER)
    if not (isinstance(number, str) and re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", number)):
        return None
    return fill("run:{task}:{number}", {"task": task.name, "number": number})


# -- a run --------------------------------------------------------------------------------------


class Run:
    """What is left of a run when its body has ended.

    Attributes:
        lease: of the run name; None while the body runs, and where it was not kept.
        is_stored: whether Celery has stored its result, so that no copy needs to run.
    """

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.is_stored = False

    def own(self, lease: Lease) -> None:
        """Take the lease of the run name."""
        self.lease = lease

    def end(self, task: Task) -> None:
        """Leave a record, or free the run name."""
        lease, self.lease = self.lease, None
        if lease is None:
            return
        # A handler that raises after the result was stored wants its message back.
        if not (self.is_stored and sys.exc_info()[1] is None):
            lease.release()
        elif not record(lease, visibility_timeout(task) + ROOM):
            told = (task.name, task.request.id)
            logger.warning("%s[%s] is done, and would run again if delivered again", *told)


@contextmanager
def running(task: Task | None, lease: Lease | None, *, is_run: bool = False) -> Iterator[None]:
    """Run the body of a task: store that it has started, and keep its run name in the end.

    Args:
        task: None: the function was called directly.
        lease: of the key, and of the run name if ``is_run``; None: the body runs without a lock.
        is_run: whether the message has a run name.
    """
    if task is None:
        yield
        return
    _store_started(task)
    if lease is None or not is_run:
        yield
        return
    run = Run()
    setattr(task.request, ATTRIBUTE, run)
    try:
        yield
    except (Ignore, Reject):  # no result: all names are released, with the lease
        raise
    except BaseException:
        keep(lease, run.own)
        raise
    keep(lease, run.own)


def take_over_started(task: Any) -> None:
    """Let a class of tasks store STARTED after the grant, and not the tracer before it."""
    if task.acks_late and task.track_started:
        task.stores_started, task.track_started = True, False


def _store_started(task: Task) -> None:
    """Store the state STARTED, where the tracer would have done it before the grant."""
    request = task.request
    if not getattr(task, "stores_started", False) or request.called_directly or request.is_eager:
        return
    ignored = vars(request).get("ignore_result")
    if task.ignore_result if ignored is None else ignored:
        return
    told = {"pid": os.getpid(), "hostname": request.hostname}
    task.backend.store_result(request.id, told, states.STARTED, request=request)


# -- what the tracer tells ----------------------------------------------------------------------


def _run_of(task: Any) -> Run | None:
    request = getattr(task, "request", None)
    run = None if request is None else vars(request).get(ATTRIBUTE)
    return run if isinstance(run, Run) else None


def _stored(sender: Any = None, **_: object) -> None:
    run = _run_of(sender)
    if run is not None:
        run.is_stored = True


def _failed(sender: Any = None, **_: object) -> None:
    """Note a failure, unless its message goes to a dead-letter queue, to be sent from there."""
    if getattr(sender, "acks_on_failure", None) is None:  # before Celery 5.7
        acknowledged = getattr(sender, "acks_on_failure_or_timeout", True)
    else:
        acknowledged = sender.acks_on_failure
    if acknowledged:
        _stored(sender)


def _ended(sender: Any = None, **_: object) -> None:
    run = _run_of(sender)
    if run is not None:
        run.end(sender)


for _signal, _receiver in (
    (signals.task_success, _stored),
    (signals.task_retry, _stored),
    (signals.task_failure, _failed),
    (signals.task_postrun, _ended),
):
    _signal.connect(_receiver, weak=False, dispatch_uid=f"redlock {_receiver.__name__}")

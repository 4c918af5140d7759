"""What becomes of a message that is delivered again, or whose key is held.

**A refused message** is skipped, sent again for later, or fails. A run leaves its task id in the
keys. A run that is refused by its own id is a second copy of a message that is running: the broker
delivered it again because it took the first for lost. The copy must wait, for the first may yet
die. A run that is refused by another id is a duplicate, and ``on_conflict`` decides.

**A message that has finished** does not run again. A copy has the same task id, and must run if the
first run died, wait while it lives, and end if it has finished. So a run holds a *run name* beside
its key, from the grant until Celery has stored its result. Then the run name becomes a completion
record: ``core.completion`` has the rules, and this module knows when Celery
(``celery/app/trace.py``) has come so far.

* The run name is that of the message, not of the task id: ``publishing`` numbers each message. A
  second message with the same ``task_id`` is not a copy, nor is a retry.
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
from typing import Any, Final, NoReturn, TypeAlias

from celery import Task, signals, states
from celery.exceptions import Ignore, OperationalError, Reject, Retry, SoftTimeLimitExceeded

from django_redlock.backend import LABEL_BYTES, process_label
from django_redlock.core.errors import LockTaken, NodesUnavailable
from django_redlock.core.names import fill
from django_redlock.core.policy import LONGEST
from django_redlock.core.protocol import Answer
from django_redlock.core.reasons import ReasonCode
from django_redlock.events import TaskOutcome
from django_redlock.leases import context
from django_redlock.leases.keeping import keep, record
from django_redlock.leases.lease import Lease

from .backoff import pause, visibility_timeout
from .marks import short_id, short_name
from .plan import Plan
from .publishing import HEADER, NUMBER, history, notify, same_message

logger = logging.getLogger("django_redlock")
Refusal: TypeAlias = LockTaken | NodesUnavailable
ATTRIBUTE: Final = "redlock_run"  # of a request: its ``Run``
ROOM: Final = 60.0  # seconds for which a record stays after the broker may deliver a copy


class Skipped(dict[str, Any]):
    """The result of a message that was skipped; plain data, so that any serializer takes it.

    ``{"skipped": True, "reason": "…", "retry_after": seconds or None}``
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(skipped=True, reason=reason, retry_after=retry_after)


# -- which message it is --------------------------------------------------------------------------


def has_message(task: Task | None) -> bool:
    """Return True if this is the run of a message, not a direct or an eager call."""
    return task is not None and not (task.request.called_directly or task.request.is_eager)


def run_label(task: Task | None) -> str | None:
    """Make the owner label of a run, ``host:process(task):task_id``; None: there is no task id."""
    if task is None or task.request.id is None:
        return None
    run = f"({short_name(task.name)}):{short_id(task.request.id)}"
    host, _, pid = process_label().rpartition(":")
    host = host.encode()[: LABEL_BYTES - len(pid) - len(run) - 1].decode(errors="ignore")
    return f"{host}:{pid}{run}"


def run_name(task: Task | None) -> str | None:
    """Return the run name of the message whose body this call is; None: it has none.

    It has one if it is acknowledged late and was numbered, for a body that is called for the
    first time.
    """
    if task is None or not has_message(task):
        return None
    numbered = getattr(task, "numbers_messages", False) and task.acks_late
    if not numbered or ATTRIBUTE in vars(task.request):
        return None
    number = history(task.request).get(NUMBER)
    if not (isinstance(number, str) and re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", number)):
        return None
    return fill("run:{task}:{number}", {"task": task.name, "number": number})


def is_copy(task: Task | None) -> bool:
    """Return True if the broker delivered the message before, or an earlier run of it was met."""
    if task is None or not has_message(task):
        return False
    request = task.request
    return bool((request.delivery_info or {}).get("redelivered") or history(request).get("again"))


def _may_have_run(task: Task) -> bool:
    """Return True if this message is a retry, or a copy."""
    return bool(task.request.retries) or is_copy(task)


def _meets_itself(task: Task, refusal: Refusal, *, is_run: bool) -> bool:
    """Return True if an earlier run of this message lives: any majority has a node of the holder.

    A label without a task id ends in a process id, which may look like a task id.
    """
    own = short_id(task.request.id)
    if any(vote.holder.rsplit(":", 2)[2:] == [own] for vote in refusal.votes):
        return True
    # The run name is the first of the names that were asked for.
    return is_run and any(vote.answer is Answer.NO and vote.which == 0 for vote in refusal.votes)


# -- a message that is refused --------------------------------------------------------------------


def handle_refusal(
    task: Task | None,
    refusal: Refusal,
    plan: Plan,
    *,
    alias: str,
    waited: float,
    is_run: bool,
) -> Skipped:
    """Skip the message, or send it again for later, or raise the refusal.

    Without a majority ``on_unavailable`` says what to do, and nothing is ever skipped.

    Args:
        alias: that of the lock.
        waited: seconds for which this run has waited for the lock.
        is_run: whether the message has a run name, the first of the names that were refused.

    Raises:
        Ignore: the message has finished in an earlier run, or it is a copy that was sent again.
        Retry, Reject: see ``_defer``.
    """
    if task is not None and _can_come_back(task, refusal):
        if refusal.code == ReasonCode.RECORDED:
            _note_finished(task, "finished", alias, refusal.name)
            raise Ignore("an earlier run of this message has finished")
        own = _meets_itself(task, refusal, is_run=is_run)
        again = own or _may_have_run(task)
        wanted = plan.on_conflict if isinstance(refusal, LockTaken) else plan.on_unavailable
        if own or wanted == "retry" or (wanted == "skip" and again):
            silently = is_run and (own or is_copy(task))
            _defer(task, refusal, alias=alias, again=again, waited=waited, silently=silently)
    if isinstance(refusal, LockTaken) and plan.on_conflict == "skip":
        if task is not None:
            name, task_id = refusal.name, task.request.id
            notify(TaskOutcome.SKIPPED, task, task_id, alias=alias, name=name, error=refusal)
        left = refusal.retry_after
        return Skipped("the key is held", None if left is None else round(left, 3))
    if task is not None and isinstance(refusal, LockTaken):
        _expect(task, refusal)
    raise refusal


def _can_come_back(task: Task, refusal: Refusal) -> bool:
    """Return True if there is a message to send again, and this call stack is not the holder."""
    names = {refusal.name} if isinstance(refusal.name, str) else set(refusal.name)
    inside = any(names.intersection(lease.names) for lease in context.leases())
    return has_message(task) and not inside


def _defer(
    task: Task, refusal: Refusal, *, alias: str, again: bool, waited: float, silently: bool
) -> NoReturn:
    """Send this message again for later, with all it carries, its count of retries too.

    Not by ``Task.retry``: that counts, and its ``max_retries`` argument stays behind in the task.

    Args:
        silently: whether no state is stored: RETRY might replace what the first run stores.

    Raises:
        Retry: the message is sent; Celery acknowledges the old one and keeps chord and chain open.
        Ignore: the same, silently.
        Reject: the message could not be sent, and the broker still has the old one.
    """
    request, before = task.request, history(task.request)
    times, earlier = (_number(before.get(each)) for each in ("deferred", "waited"))
    waited += earlier
    seconds = pause(task, refusal, int(times), waited)
    more = {"deferred": int(times) + 1, "again": again, "waited": round(waited + seconds, 3)}
    message = task.signature_from_request(
        request,
        countdown=seconds,
        retries=request.retries,
        headers={**(request.headers or {}), HEADER: {**before, **more}},
    )
    try:
        with same_message(copy=silently):
            message.apply_async()
    except OperationalError as error:
        if task.acks_late:
            raise Reject(error, requeue=True) from refusal
        raise
    outcome, name = TaskOutcome.DEFERRED, refusal.name
    notify(outcome, task, request.id, alias=alias, name=name, seconds=seconds, error=refusal)
    if silently:
        text = "%s[%s] is a copy and comes back in %.1f s: %s"
        logger.info(text, task.name, request.id, seconds, refusal)
        raise Ignore("this copy comes back later")
    raise Retry(exc=refusal, when=seconds, sig=message)


def _number(value: object) -> float:
    """Return a number of a header, or 0; JSON has whole numbers that no float can hold."""
    return value if isinstance(value, int | float) and 0 <= value <= LONGEST else 0.0


class _OfTheKey(type):
    def __instancecheck__(cls, error: object) -> bool:
        return isinstance(error, LockTaken) and "conflict" in vars(error)


class Conflict(metaclass=_OfTheKey):
    """What ``isinstance`` finds in a refusal of the key of a task."""


def _expect(task: Task, refusal: LockTaken) -> None:
    """Let Celery log an ordinary conflict as one line, without a traceback.

    Celery does so for the errors in ``Task.throws``. ``LockTaken`` itself cannot be there: one that
    the body of the task raises, of another lock, is a fault like any other.
    """
    vars(refusal)["conflict"] = True
    throws: Any = task.throws
    expected = throws if isinstance(throws, tuple) else (throws,)
    if Conflict not in expected:
        task.throws = (*expected, Conflict)


# -- a message that has finished ------------------------------------------------------------------


def has_succeeded(task: Task | None, alias: str, name: str | tuple[str, ...]) -> bool:
    """Return True if this message may be a second copy, and a run of it succeeded.

    With ``worker_deduplicate_successful_tasks`` Celery checks this for a message that the broker
    marked as redelivered. A copy that was sent again for later has no such mark, so its run checks
    it here, under the same conditions.
    """
    if task is None or not has_message(task):
        return False
    wanted = task.app.conf.worker_deduplicate_successful_tasks and task.acks_late
    if not (wanted and task.backend.persistent and _may_have_run(task)):
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
        _note_finished(task, "succeeded", alias, name)
    return succeeded


def _note_finished(task: Task, how: str, alias: str, name: str | tuple[str, ...]) -> None:
    task_id = task.request.id
    logger.info("%s[%s] has %s before: this copy does not run", task.name, task_id, how)
    notify(TaskOutcome.FINISHED_BEFORE, task, task_id, alias=alias, name=name)


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
            text = "%s[%s] is done, and would run again if delivered again"
            logger.warning(text, task.name, task.request.id)


@contextmanager
def record_run(task: Task | None, lease: Lease | None, *, is_run: bool = False) -> Iterator[None]:
    """Run the body of a task: store that it has started, and keep its run name in the end.

    Args:
        task: None: the function was called directly.
        lease: of the key, and of the run name if ``is_run``; None: the body runs without a lock.
        is_run: whether the message has a run name.
    """
    if task is not None:
        _store_started(task)
    if task is None or lease is None or not is_run:
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
    if not getattr(task, "stores_started", False) or not has_message(task):
        return
    ignored = vars(request).get("ignore_result")
    if task.ignore_result if ignored is None else ignored:
        return
    meta = {"pid": os.getpid(), "hostname": request.hostname}
    task.backend.store_result(request.id, meta, states.STARTED, request=request)


def _run_of(task: Any) -> Run | None:
    request = getattr(task, "request", None)
    run = None if request is None else vars(request).get(ATTRIBUTE)
    return run if isinstance(run, Run) else None


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
        run.end(sender)


for _signal, _receiver in (
    (signals.task_success, _on_stored),
    (signals.task_retry, _on_stored),
    (signals.task_failure, _on_failure),
    (signals.task_postrun, _on_end),
):
    _signal.connect(_receiver, weak=False, dispatch_uid=f"redlock {_receiver.__name__}")

"""What becomes of a message that is delivered again, or whose key is held.

**A refused message** is skipped, sent again for later, or fails. A run leaves its task id in the
keys. A run that is refused by its own id is a second copy of a message that is running: the broker
delivered it again because it took the first for lost. The copy must wait, for the first may yet
die. A run that is refused by another id is a duplicate, and ``on_conflict`` decides.

**A message that has finished** does not run again. A copy has the same task id, and must run if the
first run died, wait while it lives, and end if it has finished. So a run takes a lock on its *run
name* before it takes its key, and holds it until Celery has stored the result. Then the run name
becomes a completion record: ``core.completion`` has the rules, and this module knows when Celery
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias

from celery import signals, states
from celery.exceptions import Ignore, OperationalError, Reject, Retry, SoftTimeLimitExceeded

from django_redlock import conf
from django_redlock.backend import LABEL_BYTES, process_label
from django_redlock.core import completion
from django_redlock.core.errors import LockTaken, NodesUnavailable
from django_redlock.core.policy import LONGEST
from django_redlock.core.protocol import one_or_all
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.events import TaskOutcome
from django_redlock.leases import context
from django_redlock.leases.lease import Lease
from django_redlock.locks.lock import Lock, tell_refusal
from django_redlock.locks.template import LockTemplate

from .backoff import pause, visibility_timeout
from .marks import PutOff, short_id, short_name
from .plan import Plan
from .publishing import HEADER, NUMBER, history, notify, same_message

logger = logging.getLogger("django_redlock")
FINISHED: Final = "%s[%s] has finished before: this copy does not run"
SUCCEEDED: Final = "%s[%s] has succeeded before: this copy does not run"
NUMBERS: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch  # of messages
Refusal: TypeAlias = LockTaken | NodesUnavailable
Name: TypeAlias = str | tuple[str, ...]  # of a lock
ATTRIBUTE: Final = "redlock_run"  # of a request: its ``Delivery``, when that has a run name
ROOM: Final = 60.0  # seconds for which a record stays after the broker may deliver a copy


class Skipped(dict[str, Any]):
    """The result of a message that was skipped; plain data, so that any serializer takes it.

    ``{"skipped": True, "reason": "…", "retry_after": seconds or None}``
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(skipped=True, reason=reason, retry_after=retry_after)


class Delivery:
    """A call of a locked function, and the message whose run it is, if it is one.

    Attributes:
        task: the task whose body the call is; None: the function was called directly.
        has_message: whether the call is the run of a message, neither direct nor eager.
        is_copy: whether the broker delivered the message before, or an earlier run of it was met.
        lease: the lease of the run name; None: the run name is not held. A message without a
            number, or one that is acknowledged before its run, has no run name.
        has_begun: whether the body has begun.
        is_stored: whether Celery has stored the result, so that no copy needs to run.
        is_sound: whether the lease of the key was good when the body ended.
        meets_run: whether the run name was refused: an earlier run of the message lives.
    """

    def __init__(self, task: Any, plan: Plan) -> None:
        self.task, self._plan = task, plan
        self.lease: Lease | None = None
        self.has_begun = self.is_stored = self.is_sound = self.meets_run = False
        request: Any = None if task is None else task.request
        self.has_message = not (request is None or request.called_directly or request.is_eager)
        self.is_copy, self._run = False, None
        if self.has_message:
            flag = (request.delivery_info or {}).get("redelivered")
            self.is_copy = bool(flag or history(request).get("again"))
            self._run = self._find_run()

    def _find_run(self) -> dict[str, str] | None:
        task = self.task
        if not (getattr(task, "numbers_messages", False) and task.acks_late):
            return None
        if ATTRIBUTE in vars(task.request):  # the body calls itself
            return None
        number = history(task.request).get(NUMBER)
        if not (isinstance(number, str) and NUMBERS(number)):
            return None
        return {"task": task.name, "number": number}

    @property
    def label(self) -> str | None:
        """The owner label, ``host:process(task):task_id``; None: there is no task id."""
        if self.task is None or self.task.request.id is None:
            return None
        run = f"({short_name(self.task.name)}):{short_id(self.task.request.id)}"
        host, _, pid = process_label().rpartition(":")
        host = host.encode()[: LABEL_BYTES - len(pid) - len(run) - 1].decode(errors="ignore")
        return f"{host}:{pid}{run}"

    @property
    def _may_have_run(self) -> bool:
        return self.is_copy or bool(self.task.request.retries)

    def _notify(self, outcome: TaskOutcome, lock: Lock, name: Name, **more: Any) -> None:
        if self.task is not None:
            more |= {"alias": lock.alias, "name": name, "template": lock.template}
            notify(outcome, self.task, self.task.request.id, **more)

    # -- a message that is refused ----------------------------------------------------------------

    def refuse(self, refusal: Refusal, lock: Lock) -> Skipped:
        """Skip the message, or send it again for later, or raise the refusal.

        Without a majority ``on_unavailable`` says what to do, and nothing is ever skipped.

        Args:
            lock: the one that was refused.

        Raises:
            Ignore: the message has finished in an earlier run, or it is a copy that was sent again.
            Retry, Reject: see ``_defer``.
        """
        plan = self._plan
        if self.has_message and not _is_holder(refusal):
            if refusal.code == ReasonCode.RECORDED and self.meets_run:
                self._note_finished(FINISHED, lock, refusal.name)
                raise Ignore("an earlier run of this message has finished")
            own = self._meets_itself(refusal)
            again = own or self._may_have_run
            wanted = plan.on_conflict if isinstance(refusal, LockTaken) else plan.on_unavailable
            if own or wanted == "retry" or (wanted == "skip" and again):
                silently = self._run is not None and (own or self.is_copy)
                self._defer(refusal, lock, again=again, silently=silently)
        if isinstance(refusal, LockTaken) and plan.on_conflict == "skip":
            self._notify(TaskOutcome.SKIPPED, lock, refusal.name, error=refusal)
            left = refusal.retry_after
            return Skipped("the key is held", None if left is None else round(left, 3))
        raise refusal

    def skip_done(self, lock: Lock, at: datetime) -> Skipped:
        """Skip the message, since the work of its key was done then."""
        why = because(ReasonCode.RECORDED)
        self._notify(
            TaskOutcome.SKIPPED, lock, lock.names[0], error=LockTaken(why, name=lock.names[0])
        )
        return Skipped(f"the work was done at {at.isoformat(timespec='seconds')}")

    def _meets_itself(self, refusal: Refusal) -> bool:
        """Return True if an earlier run of this message lives.

        Any majority includes a node of the holder. A label without a task id ends in a process id,
        which may look like a task id.
        """
        own = short_id(self.task.request.id)
        return self.meets_run or any(
            vote.holder.rsplit(":", 2)[2:] == [own] for vote in refusal.votes
        )

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
        times = _count(before.get("deferred"))
        seconds = pause(task, times)
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
        self._notify(TaskOutcome.DEFERRED, lock, refusal.name, seconds=seconds, error=refusal)
        if silently:
            text = "%s[%s] is a copy and comes back in %.1f s: %s"
            logger.info(text, task.name, request.id, seconds, refusal)
            raise PutOff("this copy comes back later")
        raise Retry(exc=refusal, when=seconds, sig=message)

    # -- a message that has finished --------------------------------------------------------------

    def has_succeeded(self, lock: Lock, name: Name) -> bool:
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
            self._note_finished(SUCCEEDED, lock, name)
        return succeeded

    def _note_finished(self, text: str, lock: Lock, name: Name) -> None:
        logger.info(text, self.task.name, self.task.request.id)
        self._notify(TaskOutcome.FINISHED_BEFORE, lock, name)

    @contextmanager
    def run(self, options: LockTemplate, lock: Lock) -> Iterator[None]:
        """Hold the run name, from before the key is asked for until Celery has stored the result.

        Of a block whose body did not begin, or has no result, the run name is released with it.

        Args:
            options: of the lock, for the run name.
            lock: of the key; errors name it, and not the run name.

        Raises:
            LockTaken: an earlier run of the message lives; or, with the code "recorded", one has
                finished.
            NodesUnavailable: no majority of the nodes could be asked.
        """
        if self._run is None:
            yield
            return
        setattr(self.task.request, ATTRIBUTE, self)
        own = options.using(
            renew=True,
            min_hold=0,
            durable=False,
            waits_for="nodes",  # a copy that meets its run comes back later; a record wakes nobody
            thorough=self.is_copy,  # one completion record is enough to end a copy: hear all nodes
            foreign=self._own,
        )
        try:
            self._take_run_name(own.named(completion.RUN_NAME, **self._run), lock)
            yield
        except BaseException as error:
            if not self.has_begun or isinstance(error, Ignore | Reject):
                self.end()
            raise

    def _take_run_name(self, run: Lock, lock: Lock) -> None:
        backend = conf.backend(lock.alias)
        began = backend.policy.clock()
        try:
            run.acquire()
        except (LockTaken, NodesUnavailable) as error:
            self.meets_run = isinstance(error, LockTaken)
            error.name = one_or_all(lock.names)
            tell_refusal(backend, error, began, lock.template)
            raise

    @contextmanager
    def body(self, lease: Lease | None) -> Iterator[None]:
        """Run the body in the block: store that it has started; note how the lease has fared.

        Args:
            lease: of the key; None: the body runs without a lock.
        """
        self._store_started()
        self.has_begun = True
        try:
            yield
        finally:
            self.is_sound = lease is not None and lease.remaining() > 0

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

    def _own(self, lease: Lease) -> None:
        lease.told = True
        self.lease = lease

    def end(self) -> None:
        """Leave a completion record, or release the run name."""
        lease = self.lease
        if lease is None:
            return
        # A handler that raises after the result was stored wants its message back.
        is_done = self.is_stored and self.is_sound and sys.exc_info()[1] is None
        leave: Callable[[], object] = lease.release
        if is_done:
            leave = partial(record, lease, visibility_timeout(self.task) + ROOM)
        try:
            if leave() is False:
                text = "%s[%s] is done, and would run again if delivered again"
                logger.warning(text, self.task.name, self.task.request.id)
        except BaseException:  # a time limit, perhaps: the result is stored, and twice does no harm
            leave()
            raise
        finally:
            lease.disown()  # also where that was interrupted: nobody else ends its renewal
            self.lease = None


def record(lease: Lease, life: float) -> bool:
    """End a lease and leave completion records for its names.

    Args:
        life: seconds for which the records stay.

    Returns:
        Whether a majority of the nodes has them. They are written only where the names are still
        the lease's, and not at all if its time is over.
    """
    return lease.backend.run(lease.recording(life))


def _is_holder(refusal: Refusal) -> bool:
    """Return True if this call stack holds what it was refused: a body that locks its own key."""
    names = {refusal.name} if isinstance(refusal.name, str) else set(refusal.name)
    return any(names.intersection(lease.names) for lease in context.leases())


def _count(value: object) -> int:
    """Return a count of a header, which anybody may have written; what is no count is 0."""
    return value if type(value) is int and 0 <= value <= LONGEST else 0


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

"""Handle a message that does not get the lock: skip it, send it again for later, or raise.

A run leaves its task id in the keys. A run that is refused by its own id is a second copy of a
message that is running: the broker delivered it again because it took the first for lost. The copy
must wait, for the first may yet die. A run that is refused by another id is a duplicate, and
``on_conflict`` decides.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

from celery import Task
from celery.exceptions import Ignore, OperationalError, Reject, Retry, SoftTimeLimitExceeded
from celery.states import SUCCESS

from django_redlock.backend import LABEL_BYTES, process_label
from django_redlock.core.errors import LockTaken, NodesUnavailable
from django_redlock.core.policy import LONGEST
from django_redlock.core.protocol import Answer
from django_redlock.core.reasons import ReasonCode
from django_redlock.events import TaskOutcome
from django_redlock.leases import context

from .backoff import pause_after, pause_in_outage
from .conflicts import expect_conflict
from .headers import HEADER, history, same_message
from .identity import short_id, short_name
from .telling import tell

if TYPE_CHECKING:
    from .options import Options

logger = logging.getLogger("django_redlock")
Refusal: TypeAlias = LockTaken | NodesUnavailable
VISIBILITY_TIMEOUT: Final = 3600.0  # seconds, of a Redis broker that is told nothing else
LONGEST_PAUSE: Final = 60.0  # seconds


class Skipped(dict[str, Any]):
    """The result of a message that was skipped; plain data, so that any serializer takes it.

    ``{"skipped": True, "reason": "…", "retry_after": seconds or None}``
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(skipped=True, reason=reason, retry_after=retry_after)


def label(task: Task | None) -> str | None:
    """Make the owner label of a run, ``host:process(task):task_id``; None: there is no task id."""
    if task is None or task.request.id is None:
        return None
    run = f"({short_name(task.name)}):{short_id(task.request.id)}"
    host, _, pid = process_label().rpartition(":")
    host = host.encode()[: LABEL_BYTES - len(pid) - len(run) - 1].decode(errors="ignore")
    return f"{host}:{pid}{run}"


def _is_own(refusal: Refusal, task_id: str) -> bool:
    """Return True if a vote names this task id: any majority includes a node of the holder.

    A label without a task id ends in a process id, which may look like a task id.
    """
    mark = short_id(task_id)
    parts = [vote.holder.rsplit(":", 2) for vote in refusal.votes]
    return any(each[2:] == [mark] for each in parts)


def has_message(task: Task | None) -> bool:
    """Return True if this is the run of a message, not a direct or an eager call."""
    return task is not None and not (task.request.called_directly or task.request.is_eager)


def handle_conflict(
    task: Task | None,
    refusal: Refusal,
    options: Options,
    *,
    alias: str,
    waited: float = 0.0,
    is_run: bool = False,
) -> Skipped:
    """Skip the message, or send it again for later, or raise the refusal.

    Without a majority ``on_unavailable`` says what to do, and nothing is ever skipped.

    Args:
        alias: that of the lock.
        waited: seconds for which this run has waited for the lock.
        is_run: whether the message has a run name, the first of the names that were refused.

    Raises:
        Ignore: the message has finished in an earlier run, or it is a copy that was sent again.
    """
    again = False
    if task is not None and _can_come_back(task, refusal):
        request = task.request
        if refusal.code == ReasonCode.RECORDED:
            logger.info("%s[%s] has finished before: this copy does not run", task.name, request.id)
            tell(TaskOutcome.FINISHED_BEFORE, task, request.id, alias=alias, name=refusal.name)
            raise Ignore("an earlier run of this message has finished")
        own = _is_own(refusal, request.id) or (is_run and _meets_run(refusal))
        again = own or _may_have_run(request)
        wanted = options.on_conflict
        if isinstance(refusal, NodesUnavailable):
            wanted = options.on_unavailable
        if own or wanted == "retry" or (wanted == "skip" and again):
            silently = is_run and (own or is_copy(task))
            _defer(task, refusal, alias=alias, again=again, waited=waited, silently=silently)
    if options.on_conflict == "skip" and isinstance(refusal, LockTaken):
        seconds = refusal.retry_after
        if task is not None:
            name, task_id = refusal.name, task.request.id
            tell(TaskOutcome.SKIPPED, task, task_id, alias=alias, name=name, error=refusal)
        return Skipped("the key is held", None if seconds is None else round(seconds, 3))
    if task is not None and isinstance(refusal, LockTaken):
        expect_conflict(task, refusal)
    raise refusal


def _meets_run(refusal: Refusal) -> bool:
    """Return True if a node has the run name: an earlier run of the message lives."""
    return any(vote.answer is Answer.NO and vote.which == 0 for vote in refusal.votes)


def is_copy(task: Task | None) -> bool:
    """Return True if the broker delivered the message before, or an earlier run of it was met."""
    if task is None or not has_message(task):
        return False
    request = task.request
    return bool((request.delivery_info or {}).get("redelivered") or history(request).get("again"))


def _can_come_back(task: Task, refusal: Refusal) -> bool:
    """Return True if there is a message to send again, and this call stack is not the holder."""
    names = {refusal.name} if isinstance(refusal.name, str) else set(refusal.name)
    inside = any(names.intersection(lease.names) for lease in context.leases())
    return has_message(task) and not inside


def _may_have_run(request: Any) -> bool:
    """Return True if this message is a retry, or the broker delivered it before."""
    redelivered = (request.delivery_info or {}).get("redelivered")
    return bool(request.retries or redelivered or history(request).get("again"))


def has_succeeded(task: Task | None, alias: str, name: str | tuple[str, ...]) -> bool:
    """Return True if this message may be a second copy, and a run of it succeeded; tell of it.

    With ``worker_deduplicate_successful_tasks`` Celery checks this for a message that the broker
    marked as redelivered. A copy that was sent again for later has no such mark, so its run checks
    it here, under the same conditions.
    """
    if task is None or not has_message(task):
        return False
    wanted = task.app.conf.worker_deduplicate_successful_tasks and task.acks_late
    if not (wanted and task.backend.persistent and _may_have_run(task.request)):
        return False
    told = (task.name, task.request.id)
    try:
        succeeded = bool(task.AsyncResult(task.request.id).state == SUCCESS)
    except SoftTimeLimitExceeded:
        raise
    except Exception:  # noqa: BLE001 - of any library that stores results; unknown is not done
        logger.warning("%s[%s] may run a second time: its result cannot be read", *told)
        return False
    if succeeded:
        logger.info("%s[%s] has succeeded before: this copy does not run", *told)
        tell(TaskOutcome.FINISHED_BEFORE, task, task.request.id, alias=alias, name=name)
    return succeeded


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
    request = task.request
    before = history(request)
    times, earlier = (_number(before.get(each)) for each in ("deferred", "waited"))
    waited += earlier
    pause = _pause(task, refusal, int(times), waited)
    more = {"deferred": int(times) + 1, "again": again, "waited": round(waited + pause, 3)}
    headers = {**(request.headers or {}), HEADER: {**before, **more}}
    message = task.signature_from_request(
        request, countdown=pause, retries=request.retries, headers=headers
    )
    try:
        with same_message(copy=silently):
            message.apply_async()
    except OperationalError as error:
        if task.acks_late:
            raise Reject(error, requeue=True) from refusal
        raise
    tell(
        TaskOutcome.DEFERRED,
        task,
        request.id,
        alias=alias,
        name=refusal.name,
        seconds=pause,
        error=refusal,
    )
    if silently:
        told = (task.name, request.id, pause, refusal)
        logger.info("%s[%s] is a copy and comes back in %.1f s: %s", *told)
        raise Ignore("this copy comes back later")
    raise Retry(exc=refusal, when=pause, sig=message)


def _number(told: object) -> float:
    """Return a number that a header tells, or 0; JSON has whole numbers that no float can hold."""
    return told if isinstance(told, int | float) and 0 <= told <= LONGEST else 0.0


def _pause(task: Task, refusal: Refusal, times: int, waited: float) -> float:
    """Return the seconds until the message comes back."""
    longest = _longest_pause(task)
    if isinstance(refusal, NodesUnavailable):
        return pause_in_outage(times, longest)
    most = refusal.retry_after
    return pause_after(waited, longest if most is None else min(max(most, 0.1), longest))


def _longest_pause(task: Task) -> float:
    """Return half of the broker's visibility timeout, in seconds, a minute at the most.

    A worker keeps a message with a countdown unacknowledged. If the broker took it for lost
    meanwhile, each copy would be sent again, and the copies would multiply.
    """
    return min(LONGEST_PAUSE, visibility_timeout(task) / 2)


def visibility_timeout(task: Task) -> float:
    """Return the seconds after which the broker takes an unacknowledged message for lost."""
    timeout = (task.app.conf.broker_transport_options or {}).get("visibility_timeout")
    if isinstance(timeout, int | float) and 0 < timeout < math.inf:
        return float(timeout)
    return VISIBILITY_TIMEOUT

"""Whose run a lease is, and what becomes of a message that does not get the lock.

A run leaves its task id in the keys. Who is refused by its own id is a second copy of a message
that is running, delivered again because the broker took the first for lost: it must wait, for
the first may yet die. Who is refused by another is a duplicate, and is treated as was asked.
"""

from __future__ import annotations

import hashlib
import logging
import random
import re
from collections.abc import Mapping
from typing import Any, Final, NoReturn, TypeAlias

from celery import Task
from celery.exceptions import OperationalError, Reject, Retry, SoftTimeLimitExceeded
from celery.states import SUCCESS

from django_redlock.backend import LABEL_BYTES, process_label
from django_redlock.core.errors import LockTaken, NodesUnavailable
from django_redlock.leases import context

logger = logging.getLogger("django_redlock")
Refusal: TypeAlias = LockTaken | NodesUnavailable
HEADER: Final = "redlock"  # of a message that came back: {"deferred": times, "again": bool}
LONGEST_PAUSE: Final = 60.0  # seconds


class Skipped(dict[str, Any]):
    """The result of a message that was skipped; plain data, so that any serializer takes it.

    ``{"skipped": True, "reason": "…", "retry_after": seconds or None}``
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(skipped=True, reason=reason, retry_after=retry_after)


def label(task: Task | None) -> str | None:
    """The owner label of a run: host, process, and task id; None: only host and process."""
    if task is None or task.request.id is None:
        return None
    mark = _mark(task.request.id)
    host, _, pid = process_label().rpartition(":")
    host = host.encode()[: LABEL_BYTES - len(pid) - len(mark) - 2].decode(errors="ignore")
    return f"{host}:{pid}:{mark}"


def _mark(task_id: str) -> str:
    """The task id, as short text without colons."""
    if re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", task_id):
        return task_id
    return hashlib.sha256(task_id.encode("utf-8", "surrogatepass")).hexdigest()


def _is_own(refusal: Refusal, task_id: str) -> bool:
    """Whether a key names our task id: every majority that refuses meets the holder's.

    A label without a task id ends in a process id, which may look like one.
    """
    mark = _mark(task_id)
    parts = [vote.holder.rsplit(":", 2) for vote in refusal.votes]
    return any(each[2:] == [mark] for each in parts)


def handle_conflict(task: Task | None, refusal: Refusal, on_conflict: str) -> Skipped:
    """Skip the message, or send it again for later, or raise the refusal."""
    again = False
    if task is not None and _can_come_back(task, refusal):
        request = task.request
        own = _is_own(refusal, request.id)
        again = own or _may_have_run(request)
        unknown = isinstance(refusal, NodesUnavailable) or again
        if own or on_conflict == "retry" or (on_conflict == "skip" and unknown):
            _defer(task, refusal, again=again)
    if on_conflict == "skip" and isinstance(refusal, LockTaken):
        seconds = refusal.retry_after
        return Skipped("the key is held", None if seconds is None else round(seconds, 3))
    raise refusal


def _can_come_back(task: Task, refusal: Refusal) -> bool:
    """Whether there is a message to send again, and the holder is not this very call stack."""
    request = task.request
    names = {refusal.name} if isinstance(refusal.name, str) else set(refusal.name)
    inside = any(names.intersection(lease.names) for lease in context.leases())
    return not (request.called_directly or request.is_eager or inside)


def _may_have_run(request: Any) -> bool:
    """Whether this message is a retry, or the broker delivered it before."""
    redelivered = (request.delivery_info or {}).get("redelivered")
    return bool(request.retries or redelivered or _history(request).get("again"))


def has_succeeded(task: Task | None) -> bool:
    """Whether this message may be a second copy, and the stored result says that a run succeeded.

    With ``worker_deduplicate_successful_tasks`` Celery asks the same of a message that the broker
    marked as redelivered. A copy that was sent again for later has no such mark, so its run asks
    here, under the same conditions.
    """
    if task is None or task.request.called_directly or task.request.is_eager:
        return False
    wanted = task.app.conf.worker_deduplicate_successful_tasks and task.acks_late
    if not (wanted and task.backend.persistent and _may_have_run(task.request)):
        return False
    told = (task.name, task.request.id)
    try:
        succeeded = bool(task.AsyncResult(task.request.id).state == SUCCESS)
    except SoftTimeLimitExceeded:
        raise
    except Exception:  # noqa: BLE001 - of whatever library stores results; unknown is not done
        logger.warning("%s[%s] may run a second time: its result cannot be read", *told)
        return False
    if succeeded:
        logger.info("%s[%s] has succeeded before: this copy does not run", *told)
    return succeeded


def _history(request: Any) -> Mapping[str, Any]:
    history = (request.headers or {}).get(HEADER)
    return history if isinstance(history, dict) else {}


def _defer(task: Task, refusal: Refusal, *, again: bool) -> NoReturn:
    """Send this message again for later, with all it carries, its count of retries too.

    Not by ``Task.retry``: that counts, and its ``max_retries`` argument stays behind in the task.

    Raises:
        Retry: it is sent; Celery acknowledges the old message and keeps chord and chain open.
        Reject: it could not be sent, and the broker still has the old message.
    """
    request = task.request
    times = _history(request).get("deferred")
    times = times if isinstance(times, int) else 0
    most = refusal.retry_after if isinstance(refusal, LockTaken) else None
    longest = _longest_pause(task)
    pause = min(2.0 ** min(times, 10), longest if most is None else max(most, 0.1))
    pause = random.uniform(0.5, 1.0) * min(pause, longest)  # noqa: S311 - spreads, guards nothing
    headers = {**(request.headers or {}), HEADER: {"deferred": times + 1, "again": again}}
    message = task.signature_from_request(
        request, countdown=pause, retries=request.retries, headers=headers
    )
    try:
        message.apply_async()
    except OperationalError as error:
        if task.acks_late:
            raise Reject(error, requeue=True) from refusal
        raise
    raise Retry(exc=refusal, when=pause, sig=message)


def _longest_pause(task: Task) -> float:
    """Half of the broker's visibility timeout, or a minute.

    A worker keeps a message with a countdown unacknowledged. If the broker took it for lost
    meanwhile, each of its copies would be sent again, and they would multiply.
    """
    timeout = (task.app.conf.broker_transport_options or {}).get("visibility_timeout")
    if isinstance(timeout, int | float) and timeout > 0:
        return min(LONGEST_PAUSE, timeout / 2)
    return LONGEST_PAUSE

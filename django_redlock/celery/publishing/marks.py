"""The mark of a message, on its way: in a header from the publisher to the run that removes it.

The header says which mark it is, so that a run removes its own and no other: that of a message that
was sent meanwhile has another nonce. From the start of the run the lock is the mark. A message that
never runs, because it expired or was revoked, loses its mark in the main process of the worker.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from celery.exceptions import Reject, Retry
from celery.signals import task_revoked
from django.core.exceptions import ImproperlyConfigured

from django_redlock import conf
from django_redlock.celery.identity import short_id, short_name
from django_redlock.celery.options import UNTIL_FINISHED
from django_redlock.concurrency.forking import reset_in_child
from django_redlock.concurrency.threads import WorkerThreads
from django_redlock.core import marks as core
from django_redlock.core.protocol import NONCE, Answer
from django_redlock.interruption import Latch

if TYPE_CHECKING:
    from celery import Task

logger = logging.getLogger("django_redlock")
HEADER: Final = "redlock_mark"
MOST: Final = 4  # threads that remove marks
LONGEST_WAIT: Final = 5.0  # seconds for a removal in the background; it takes a node timeout


class Mark(NamedTuple):
    """A mark on the nodes of an alias."""

    alias: str
    key: str
    nonce: str

    def remove(self) -> None:
        """Remove it, if it is there; a node that does not answer is asked again in the background.

        A node that cannot be asked for longer than MAX_TTL keeps the mark until it expires.
        """
        try:
            backend = conf.backend(self.alias)
        except ImproperlyConfigured:
            logger.exception("the mark %s stays until it expires", self.key)
            return
        if not self.key.startswith(f"{backend.policy.prefix}mark:"):
            return  # no key of this kind is ours to delete
        votes = backend.run(core.remove(backend.policy, self.key, self.nonce))
        heard = sum(vote.answer is not Answer.UNKNOWN for vote in votes)
        if heard < backend.policy.majority:
            logger.warning(
                "the mark %s may stay for a while: %d of %d nodes have answered",
                self.key,
                heard,
                len(votes),
            )


def mark_in(headers: Mapping[str, Any] | None) -> Mark | None:
    """Return the mark in the headers of a message; None: there is none, or no sound one."""
    found = (headers or {}).get(HEADER)
    if not isinstance(found, Mapping):
        return None
    parts = [found.get(each) for each in Mark._fields]
    if not all(isinstance(each, str) for each in parts) or not NONCE.fullmatch(str(parts[2])):
        return None
    return Mark(*map(str, parts))


class Marking:
    """The mark of a message that is to be sent: what it may have left is known at any moment.

    Args:
        task, task_id: of the message.
        life: seconds until the mark expires.
        of_run: whether a run of the task that holds one of the names counts as well.
    """

    def __init__(
        self,
        alias: str,
        names: Sequence[str],
        task: str,
        task_id: str,
        life: float,
        *,
        of_run: bool,
    ) -> None:
        self._backend = conf.backend(alias)
        policy = self._backend.policy
        self._alias, self._life = alias, life
        self._task, self._task_id = task, task_id
        self._key = core.mark_key(policy, task, names)
        self._locks = policy.target(names).keys if of_run else ()
        self._attempts: list[str] = []

    def mark(self) -> core.Outcome:
        """Set the mark on the nodes."""
        outcome = self._backend.run(
            core.publish(
                self._backend.policy,
                self._key,
                self._locks,
                task=short_name(self._task),
                task_id=short_id(self._task_id),
                ttl=self._life,
                begun=self._attempts.append,
            )
        )
        if not (outcome.certain or outcome.duplicate_of):
            told = (self._task, self._task_id)
            logger.warning("%s[%s] is sent unmarked: no majority of the nodes has marked it", *told)
        return outcome

    def header(self, nonce: str) -> dict[str, dict[str, str]]:
        """Return the header of a message with the mark of this nonce."""
        return {HEADER: Mark(self._alias, self._key, nonce)._asdict()}

    def take_back(self) -> None:
        """Remove what was set, of a message that was not sent, also where that was interrupted."""
        if self._attempts:
            Mark(self._alias, self._key, self._attempts[-1]).remove()


class Carried:
    """The mark that the message of a run has brought, if any."""

    def __init__(self, mark: Mark | None, mode: str) -> None:
        self._mark = mark
        self._mode = mode

    @contextmanager
    def replaced_by_lock(self) -> Iterator[None]:
        """Remove the mark while the body runs under the lock, and before the lock is released.

        With ``until_finished`` that is in the background, for until then the lock keeps other
        messages out as well. With ``until_started`` the body begins afterwards: a message for what
        changes from now on must be sent.
        """
        mark, self._mark = self._mark, None
        if mark is None or self._mode != UNTIL_FINISHED:
            if mark is not None:
                mark.remove()
            yield
            return
        removed = Latch()
        _background.threads.do("marks", partial(_remove, mark, removed), most=MOST)
        try:
            yield
        finally:
            removed.wait(LONGEST_WAIT)

    def drop(self) -> None:
        """Remove the mark, of a message that ends without the lock."""
        mark, self._mark = self._mark, None
        if mark is not None:
            mark.remove()


@contextmanager
def carried(task: Task | None, mode: str) -> Iterator[Carried]:
    """Bring the mark of the message that a task is running; remove it at the end at the latest.

    A message that was sent again for later, or goes back to the broker, keeps it.
    """
    mark = None
    if task is not None and not (task.request.called_directly or task.request.is_eager):
        mark = mark_in(task.request.headers)
    brought = Carried(mark, mode)
    try:
        yield brought
    except Retry:
        raise
    except Reject as error:
        if not error.requeue:
            brought.drop()
        raise
    except BaseException:
        brought.drop()
        raise
    brought.drop()


class _Background:
    """Threads that remove marks; a forked child has its own."""

    def __init__(self) -> None:
        self.reset()
        reset_in_child(self)

    def reset(self) -> None:
        """Forget the threads of the parent process."""
        self.threads = WorkerThreads()


_background: Final = _Background()


def _remove(mark: Mark, removed: Latch) -> None:
    try:
        mark.remove()
    finally:
        removed.set()


def _on_revoked(request: Any = None, **_: Any) -> None:
    """Remove the mark of a message that was revoked or has expired.

    Only the mark: the child of a task that is terminated may still run, and its lock ends one ttl
    after it.
    """
    mark = mark_in(getattr(request, "headers", None))
    if mark is not None:
        _background.threads.do("marks", mark.remove, most=MOST)


task_revoked.connect(_on_revoked)

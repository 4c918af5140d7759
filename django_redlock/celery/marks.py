"""The mark of a message, on its way: in a header from the publisher to the run that removes it.

The header says which mark it is, so that a run removes its own and no other: that of a message that
was sent meanwhile has another nonce. A run removes its mark when it has the lock, and from then on
the lock is the mark. A message that never runs, because it expired or was revoked, loses its mark
in the main process of the worker.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from celery import Task
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import task_revoked

from django_redlock.core.protocol import NONCE
from django_redlock.nodes.background import WorkerThreads, reset_in_child
from django_redlock.work.marks import Carried, Mark

HEADER: Final = "redlock_mark"
MOST: Final = 4  # threads that remove marks


def mark_in(headers: Mapping[str, Any] | None) -> Mark | None:
    """Return the mark in the headers of a message; None: there is none, or no sound one."""
    found = (headers or {}).get(HEADER)
    if not isinstance(found, Mapping):
        return None
    parts = [found.get(each) for each in Mark._fields]
    if not all(isinstance(each, str) for each in parts) or not NONCE.fullmatch(str(parts[2])):
        return None
    return Mark(*map(str, parts))


def header(mark: Mark) -> dict[str, dict[str, str]]:
    """Return the header of a message with this mark."""
    return {HEADER: mark._asdict()}


class PutOff(Ignore):  # type: ignore[misc] # Celery has no types
    """A copy comes back later, under the number and the task id of its message."""


@contextmanager
def carried(task: Task | None, *, is_copy: bool) -> Iterator[Carried]:
    """Bring the mark of the message that a task is running; remove it at the end at the latest.

    A message that was sent again for later, or goes back to the broker, keeps it.

    Args:
        task: None: there is no message, see ``Delivery.has_message``.
        is_copy: whether the message may have had an earlier run.
    """
    mark, copy_of = None, ""
    if task is not None:
        mark, copy_of = mark_in(task.request.headers), task.request.id if is_copy else ""
    brought = Carried(mark, copy_of=copy_of)
    try:
        yield brought
    except Retry:
        raise
    except Reject as error:
        if not error.requeue:
            brought.drop()
        raise
    except PutOff:
        brought.drop(only_own=True)  # the run that it has met may have sent a retry
        raise
    except BaseException:
        brought.drop()
        raise
    brought.drop()


class _Background:
    """Threads of the main process of a worker that remove marks; a forked child has its own."""

    def __init__(self) -> None:
        self.reset()
        reset_in_child(self)

    def reset(self) -> None:
        """Forget the threads of the parent process."""
        self.threads = WorkerThreads()


_background: Final = _Background()


def _on_revoked(request: Any = None, **_: Any) -> None:
    """Remove the mark of a message that was revoked or has expired.

    Only the mark: the child of a task that is terminated may still run, and its lock ends one ttl
    after it.
    """
    mark = mark_in(getattr(request, "headers", None))
    if mark is not None:
        remove_later(mark)


def remove_later(mark: Mark, task_id: str = "") -> None:
    """Remove a mark in the background, as the main process of a worker must: ``Mark.remove``."""
    _background.threads.do("marks", partial(mark.remove, task_id=task_id), most=MOST)


task_revoked.connect(_on_revoked)

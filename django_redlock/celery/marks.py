"""The mark of a message, on its way: in a header from the publisher to the run that removes it.

The header says which mark it is, so that a run removes its own and no other: that of a message that
was sent meanwhile has another nonce. A run removes its mark when it has the lock, and from then on
the lock is the mark. A message that never runs, because it expired or was revoked, loses its mark
in the main process of the worker.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from celery.signals import task_revoked

from django_redlock.core.protocol import NONCE
from django_redlock.nodes.background import WorkerThreads, reset_in_child
from django_redlock.work.marks import Mark

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

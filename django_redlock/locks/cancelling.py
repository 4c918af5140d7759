"""``on_lost="cancel"``: cancel the task that runs a block, as ``asyncio.timeout`` does it.

A task counts the requests to cancel it. The block that made one takes it back as it ends. If no
more are left than there were when the block began, nobody else wants the task cancelled, and the
``CancelledError`` becomes a ``LeaseLost``. Else it goes on: to an outer block whose lease is lost,
to a timeout, or to whoever cancelled the task. An error of the body goes on as it is.
"""

from __future__ import annotations

import asyncio
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from django_redlock.leases.lease import Lease

ONLY_ASYNC: Final = (
    "on_lost='cancel' cancels the task that runs an 'async with' block, or an 'async def' under "
    "the decorator; nothing else can be cancelled: give on_lost a function there, or 'raise'"
)


class LossCancels:
    """What cancels the task that is running now when the lease of its block is lost.

    The lease keeps it, and the watchdog the lease. So it refers to the task weakly: the frames of
    the task hold the block, and a block that is gone must be seen to be gone.
    """

    __slots__ = ("__weakref__", "_before", "_over", "_requested", "_task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("on_lost='cancel' needs a task: call this from a coroutine")
        self._task = weakref.ref(task)
        self._before = task.cancelling()
        self._requested = self._over = False

    def __call__(self, _: Lease) -> None:
        """Take in the loss, in any thread."""
        task = self._task()
        if task is not None:
            with suppress(RuntimeError):  # its loop is closed
                task.get_loop().call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        task = self._task()
        if task is not None and not self._over:
            self._requested = task.cancel()

    def end(self, kind: type[BaseException] | None) -> bool:
        """Cancel nothing from now on; return whether the loss alone ended the body.

        Args:
            kind: the class of the exception that ended the body.
        """
        self._over = True
        task = self._task()
        requested, self._requested = self._requested, False
        if task is None or not requested:
            return False
        nobody_else = task.uncancel() <= self._before
        return nobody_else and kind is not None and issubclass(kind, asyncio.CancelledError)

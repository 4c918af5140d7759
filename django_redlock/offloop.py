"""Blocking lock calls for coroutines: in threads, run to their end whoever is cancelled.

Taking and giving back have threads of their own. Those who wait for a lock may fill theirs, and
the release that they wait for never queues behind them.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from . import context

if TYPE_CHECKING:
    from .lease import Lease
    from .locks import Lock

TAKERS: Final = 200  # threads, made when there is no idle one: who may wait at once in a process
GIVERS: Final = 8


class _Threads:
    """The threads of this process."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin with none, as a forked child must."""
        self.taking = ThreadPoolExecutor(TAKERS, "redlock-take")
        self.giving = ThreadPoolExecutor(GIVERS, "redlock-give")


_threads: Final = _Threads()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.reset)


async def acquire(lock: Lock) -> Lease:
    """``lock.acquire()``; what is granted after we were cancelled is given back."""
    work = _threads.taking.submit(lock.acquire)
    try:
        lease = await asyncio.wrap_future(work)
    except asyncio.CancelledError:
        work.add_done_callback(_give_back)
        raise
    context.push(lease)  # the thread had a context of its own
    return lease


async def release(lease: Lease) -> None:
    """``lease.release()``, also when we are cancelled while we wait for its end."""
    # Shielded, since it may still wait for its thread: then cancelling would undo it.
    await asyncio.shield(asyncio.wrap_future(_threads.giving.submit(lease.release)))


def _give_back(work: Future[Lease]) -> None:
    if not work.cancelled() and work.exception() is None:
        _threads.giving.submit(work.result().release)

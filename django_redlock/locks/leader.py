"""``redlock("beat").leader(...)``: of all processes that campaign for a name, one leads.

A campaign waits for the lock in line with the others, and keeps it until the lease is lost or the
block ends; after a loss it gets in line again. ``leads`` asks the lease, and no flag: a process
that was paused for longer than its ttl must not believe what it last noted.

In a thread and in a task it is the same: elected, ``on_elected``; lost or at the end, ``on_lost``;
then the release. So what the one begins, the other ends before anybody else begins it, unless the
lease was lost.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
import queue
import random
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias

from django_redlock.core.errors import LeaseLost
from django_redlock.core.protocol import JoinQueue
from django_redlock.events import log_fields
from django_redlock.nodes.background import start_thread

if TYPE_CHECKING:
    from django_redlock.backend import Backend
    from django_redlock.core.protocol import Effect, Steps
    from django_redlock.leases.lease import Lease

    from .options import OnLost

logger = logging.getLogger("django_redlock")

Told: TypeAlias = "Callable[[Lease], object]"
LOOK: Final = 1.0  # seconds after which a campaign behind others of its process looks if it is over
LONGEST_REST: Final = 30.0  # seconds, after errors
_campaigns: Final[dict[Leader, None]] = {}  # of this process, and of the one that forked it


def leads(alias: str, names: tuple[str, ...]) -> bool:
    """Return whether a campaign of this process has a lease of these names that is valid now."""
    return any(each.leads() for each in list(_campaigns) if each.of == (alias, names))


class Campaigning(Protocol):
    """The part of a ``Lock`` that a ``Leader`` uses."""

    def checked(self) -> Backend:
        """Return the backend, if the lock can be taken there."""

    def hold(self, block: None, wait: None, through: Callable[[Steps[Any]], Steps[Any]]) -> Lease:
        """Take the lock; ``through`` passes the steps on."""

    async def __aenter__(self) -> Lease: ...

    async def __aexit__(self, *error: object) -> None: ...


class Stopped(Exception):  # noqa: N818 - no error
    """The block has ended while its campaign waits."""


class Leader:
    """A campaign for a lock; ``Lock.leader`` makes it. For one block at a time.

    In a ``with`` block it runs in a thread of its own, in ``async with`` in a task of the loop. It
    belongs to the process that has entered the block: a forked child leads nothing.

    Args:
        lock_of: makes the lock, which does this when its lease is lost.
        of: its alias and names.
        on_elected, on_lost: see ``Lock.leader``.
    """

    def __init__(
        self,
        lock_of: Callable[[OnLost], Campaigning],
        of: tuple[str, tuple[str, ...]],
        on_elected: Told | None,
        on_lost: Told | None,
    ) -> None:
        self._told: Final = {"on_elected": on_elected, "on_lost": on_lost}
        given: dict[str, object] = {**self._told}
        for name, function in given.items():
            if not (function is None or callable(function)):
                msg = f"{name} must be something to call with the lease, not {function!r}"
                raise TypeError(msg)
        self.of: Final = of
        self._lock_of = lock_of
        self._lease: Lease | None = None
        self._over = False
        self._failures = 0  # since a campaign was successful
        self._news: queue.SimpleQueue[Lease | None]  # of a loss, and None of the block's end
        self._ended: queue.SimpleQueue[None] | None = None  # what the thread says at its end
        self._pid = 0  # of the process that has the thread
        self._task: asyncio.Task[None] | None = None
        self._stopping = False  # whether its ``on_lost`` runs

    def __repr__(self) -> str:
        return f"<Leader of {self.of[1]!r} of {self.of[0]!r}>"

    def leads(self) -> bool:
        """Return whether this campaign has a lease that is valid now; asks no node."""
        lease = self._lease
        return lease is not None and lease.remaining() > 0

    def _begin(self, on_lost: OnLost) -> Campaigning:
        if self in _campaigns:
            msg = f"{self!r} runs already: call leader() once for each block"
            raise RuntimeError(msg)
        lock = self._lock_of(on_lost)
        lock.checked()
        return lock

    def _end(self) -> None:
        self._over, self._lease = True, None  # in this order, see ``_lead``
        _campaigns.pop(self, None)

    def _failed(self) -> float:
        """Log an error; return the seconds to rest. Call it in the handler of the error."""
        self._failures += 1
        self._log("leading %r failed: another process may, and this one tries again later")
        longest = min(LONGEST_REST, 2.0 ** min(self._failures, 10))
        return random.uniform(0.5, 1.0) * longest  # noqa: S311 - guards nothing

    def _log(self, text: str = "on_lost of %r failed") -> None:
        name: object = self.of[1][0] if len(self.of[1]) == 1 else self.of[1]
        logger.exception(text, name, extra=log_fields(*self.of))  # noqa: LOG004 - as above

    # -- in a thread ----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        for name, function in self._told.items():
            if inspect.iscoroutinefunction(function):
                msg = f"{name} is a coroutine function, and nobody awaits it here: 'async with'"
                raise TypeError(msg)
        news: queue.SimpleQueue[Lease | None] = queue.SimpleQueue()
        lock = self._begin(news.put)
        lock.checked().refuse_event_loop()
        self._over, self._news = False, news
        self._ended, self._pid = queue.SimpleQueue(), os.getpid()
        _campaigns[self] = None
        try:
            start_thread(self._in_thread, lock, self._ended)
        except BaseException:  # rule: what an interruption has let begin must not go on
            self._end()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        self._news.put(None)
        if self._ended is not None and self._pid == os.getpid():  # a fork has no thread
            self._ended.get()

    def _in_thread(self, lock: Campaigning, ended: queue.SimpleQueue[None]) -> None:
        try:
            self._run(lock)
        finally:
            ended.put(None)

    def _run(self, lock: Campaigning) -> None:
        while not self._over:
            try:
                self._lead(lock)
            except Stopped:
                return
            except (Exception, SystemExit):  # noqa: BLE001 - logged; a thread ends without a word
                with suppress(queue.Empty):
                    self._news.get(timeout=self._failed())

    def _lead(self, lock: Campaigning) -> None:
        lease = lock.hold(None, None, self._until_over)
        try:
            self._lease = lease
            if self._over:  # either this sees it, or ``_end`` finds the lease
                return
            if on_elected := self._told["on_elected"]:
                on_elected(lease)
            self._failures = 0
            while self._news.get() not in (None, lease):  # that of an earlier lease came late
                pass
            try:
                if on_lost := self._told["on_lost"]:
                    on_lost(lease)
            except Exception:  # noqa: BLE001 - logged
                self._log()
        finally:
            self._lease = None
            lease.release()

    def _until_over(self, steps: Steps[Any]) -> Steps[Any]:
        """Pass the steps on; once the block has ended, interrupt them, so that they undo."""
        step: Callable[[Any], Effect] = steps.send
        value: Any = None
        stopped = False
        try:
            while True:
                effect = step(value)
                if self._over and not stopped:
                    stopped, step, value = True, steps.throw, Stopped()
                    continue
                if isinstance(effect, JoinQueue):
                    effect = effect._replace(seconds=min(effect.seconds, LOOK))
                try:
                    value = yield effect
                    step = steps.send
                except BaseException as error:  # noqa: BLE001 - theirs, who decide
                    step, value = steps.throw, error
        except StopIteration as end:
            return end.value

    # -- in a task ------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        lock = self._begin("cancel")
        self._over = False
        _campaigns[self] = None
        self._task = asyncio.create_task(self._arun(lock))
        return self

    async def __aexit__(self, *error: object) -> None:
        self._end()
        if self._task is not None:
            if not self._stopping:  # else it comes to its end: what it stops must not go on
                self._task.cancel()
            await asyncio.wait([self._task])

    async def _arun(self, lock: Campaigning) -> None:
        while not self._over:
            try:
                await self._alead(lock)
            except LeaseLost:
                pass
            except Exception:  # noqa: BLE001 - logged
                await asyncio.sleep(self._failed())

    async def _alead(self, lock: Campaigning) -> None:
        async with lock as lease:  # a loss cancels, also an ``on_lost`` at the end of the block
            self._lease = lease
            try:
                await _call(self._told["on_elected"], lease)
                self._failures = 0
                if self.leads():  # else it has swallowed the cancellation
                    await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:  # the lease is lost, or the block ends
                await self._alost(lease)
                raise
            else:
                await self._alost(lease)
            finally:
                self._lease = None

    async def _alost(self, lease: Lease) -> None:
        self._stopping = True
        try:
            await _call(self._told["on_lost"], lease)
        except Exception:  # noqa: BLE001 - logged
            self._log()
        finally:
            self._stopping = False


async def _call(function: Told | None, lease: Lease) -> None:
    result = None if function is None else function(lease)
    if inspect.isawaitable(result):
        await result

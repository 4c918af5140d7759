"""``redlock("beat").leader(...)``: of all processes that campaign for a name, one leads.

A campaign waits for the lock in line with the others, and keeps it until the lease is lost or the
block ends; after a loss it gets in line again. ``leads`` asks the lease, and no flag: a process
that was paused for longer than its ttl must not believe what it last noted.

In a thread and in a task a *term* is the same. Elected, the campaign calls ``on_elected``. The loss
and the end of the block ask that function to stop: ``leads`` is False, and a task is cancelled. The
campaign waits until the function has returned, calls ``on_lost``, and releases. So the work of a
term ends before that of the next one begins, unless the lease was lost.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, TypeAlias

from django_redlock.core.errors import LeaseLost
from django_redlock.core.names import did_you_mean
from django_redlock.core.protocol import JoinQueue
from django_redlock.events import log_fields
from django_redlock.interruption import Latch
from django_redlock.nodes.background import start_thread

from .advice import warn_once
from .callables import check_call

if TYPE_CHECKING:
    from django_redlock.backend import Backend
    from django_redlock.core.protocol import Effect, Steps
    from django_redlock.leases.lease import Lease

    from .options import OnLost

logger = logging.getLogger("django_redlock")

LeaseHandler: TypeAlias = "Callable[[Lease], object]"
NOT_GIVEN: Any = ...  # for None is what a function returned that was called in place of given
LOOK: Final = 1.0  # seconds after which a campaign that waits looks if its wait is over
LONGEST_REST: Final = 30.0  # seconds, after errors
PATIENCE: Final = 10.0  # seconds that a function may take to stop before the log names it
_campaigns: Final[dict[Leader, None]] = {}  # of this process, and of the one that forked it


def leads(alias: str, names: tuple[str, ...], pause: float = 0.0) -> bool:
    """Return whether a campaign of this process has a lease of these names that is valid now.

    ``pause``: first sleep for so many seconds, or until that is over.
    """
    campaigns = list(_campaigns)
    if found := [each for each in campaigns if each.of == (alias, names)]:
        return any(each.leads(pause) for each in found)
    others = [name for each in campaigns for name in each.of[1]]
    if hint := did_you_mean(names[0], others):
        warn_once("redlock.leads(%r) is False: this process has no such campaign%s", names[0], hint)
    return False


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


class Returned(Exception):  # noqa: N818 - no error
    """``on_elected`` has returned while its process leads, and nothing else does the work."""


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
        on_elected: LeaseHandler | None,
        on_lost: LeaseHandler | None,
    ) -> None:
        self._handlers: Final = {"on_elected": on_elected, "on_lost": on_lost}
        given: dict[str, object] = {**self._handlers}
        for name, function in given.items():
            if function is None:
                continue
            if not callable(function):
                msg = f"{name} must be something to call with the lease, not {function!r}"
                raise TypeError(msg)
            check_call(name, function, "lease")
        self.of: Final = of
        self._lock_of = lock_of
        # Without ``on_lost`` the function itself is the work, and its return the end of the term.
        self._is_work = on_elected is not None and on_lost is None
        self._lease: Lease | None = None  # of the term, until it ends
        self._stop = Latch()  # raised when the term ends, and when the block does
        self._returned = Latch()  # raised when the functions of the term have returned
        self._over = False
        self._runs: LeaseHandler | None = None  # which of the functions does
        self._failures = 0  # since a campaign was successful
        self._ended = Latch()  # raised when the campaign has ended
        self._pid = 0  # of the process that has the campaign, once it has begun
        self._task: asyncio.Task[None] | None = None
        self._work: asyncio.Task[None] | None = None  # runs ``on_elected``

    def __repr__(self) -> str:
        return f"<Leader of {self.of[1]!r} of {self.of[0]!r}>"

    def leads(self, pause: float = 0.0) -> bool:
        """Return whether this campaign has a lease that is valid now; asks no node.

        Args:
            pause: see ``LockTemplate.leads``.
        """
        end = time.monotonic() + pause
        while True:
            stop, lease = self._stop, self._lease
            if self._over or lease is None or lease.remaining() <= 0:
                return False
            if (left := end - time.monotonic()) <= 0:
                return True
            stop.wait(min(left, LOOK))

    # -- a block --------------------------------------------------------------------------------

    def _begin(self) -> Campaigning:
        if self._pid == os.getpid() and not self._ended.is_set():
            msg = f"{self!r} runs already: call leader() once for each block"
            raise RuntimeError(msg)
        lock = self._lock_of(self._lost)
        lock.checked()
        return lock

    def _started(self) -> Latch:
        self._over, self._pid, self._ended, self._task = False, os.getpid(), Latch(), None
        _campaigns[self] = None
        return self._ended

    def _end(self) -> None:
        self._over = True  # before the latch: a campaign makes another one, and then looks
        self._stop.set()
        _campaigns.pop(self, None)

    # -- a term ---------------------------------------------------------------------------------

    def _elected(self, lease: Lease) -> bool:
        """Begin a term; return False if it is over: the lease is lost, or the block has ended."""
        self._stop, self._returned = Latch(), Latch()
        self._lease = lease
        return self.leads()

    @contextmanager
    def _term(self, lease: Lease) -> Iterator[None]:
        try:
            yield
        except LeaseLost:  # so a step learns of it
            if lease.remaining() > 0:  # of another lock
                raise
        finally:
            self._lease = None

    @contextmanager
    def _end_of_term(self) -> Iterator[None]:
        try:
            yield
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - logged
            self._log(logging.ERROR, "on_lost of %r failed", error=error)
        finally:
            self._runs = None
            self._returned.set()

    def _call(self, name: str, lease: Lease) -> object:
        self._runs = function = self._handlers[name]
        return None if function is None else function(lease)

    def _lost(self, lease: Lease) -> None:
        """Take in a loss, in any thread: ask what the term does to stop."""
        if lease is not self._lease:  # of an earlier term, or the campaign knows it
            return
        self._stop.set()
        with suppress(RuntimeError):  # its loop is closed, or no thread can be started
            if self._task is not None:
                self._task.get_loop().call_soon_threadsafe(self._cut, lease)
            start_thread(self._name_unless, self._returned, PATIENCE)

    def _name_unless(self, over: Latch, seconds: float) -> None:
        """Name the function that runs, unless it is over within so many seconds."""
        if not over.wait(seconds) and (runs := self._runs) is not None:
            self._log(
                logging.WARNING,
                "leading %r ended %d seconds ago, and the campaign waits for %s to return: let it "
                "ask redlock.leads() before each step; in an event loop, let CancelledError pass",
                *(int(PATIENCE), getattr(runs, "__qualname__", runs)),
            )

    def _failed(self, error: BaseException) -> float:
        """Log an error; return the seconds to rest."""
        self._failures += 1
        if isinstance(error, Returned):
            self._log(
                logging.WARNING,
                "on_elected of %r has returned while this process leads, and there is no on_lost: "
                "so nobody works, and another process may lead. Let it loop while redlock.leads()",
            )
        else:
            text = "leading %r failed: another process may, and this one tries again later"
            self._log(logging.ERROR, text, error=error)
        longest = min(LONGEST_REST, 2.0 ** min(self._failures, 10))
        return random.uniform(0.5, 1.0) * longest  # noqa: S311 - guards nothing

    def _log(
        self, level: int, text: str, *more: object, error: BaseException | None = None
    ) -> None:
        name: object = self.of[1][0] if len(self.of[1]) == 1 else self.of[1]
        logger.log(level, text, name, *more, exc_info=error, extra=log_fields(*self.of))

    # -- in a thread ----------------------------------------------------------------------------

    def __enter__(self) -> Self:
        for name, function in self._handlers.items():
            if inspect.iscoroutinefunction(function):
                msg = f"{name} is a coroutine function, and nobody awaits it here: 'async with'"
                raise TypeError(msg)
        lock = self._begin()
        lock.checked().refuse_event_loop()
        ended = self._started()
        try:
            start_thread(self._in_thread, lock, ended)
        except BaseException:  # rule: what an interruption has let begin must not go on
            self._end()
            ended.set()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._end()
        if self._pid == os.getpid():  # a fork has no thread
            self._name_unless(self._ended, PATIENCE)  # an interruption leaves the wait alone
            self._ended.wait(math.inf)

    def _in_thread(self, lock: Campaigning, ended: Latch) -> None:
        try:
            self._run(lock)
        finally:
            ended.set()

    def _run(self, lock: Campaigning) -> None:
        while not self._over:
            try:
                self._lead(lock)
                self._failures = 0
            except Stopped:
                return
            except BaseException as error:  # noqa: BLE001 - logged; a thread ends without a word
                if _killed(error):
                    text = "no more campaign for %r: its greenlet was killed"
                    self._log(logging.ERROR, text, error=error)
                    return
                self._rest(self._failed(error))

    def _rest(self, seconds: float) -> None:
        self._stop = stop = Latch()
        if not self._over:
            stop.wait(seconds)

    def _lead(self, lock: Campaigning) -> None:
        lease = lock.hold(None, None, self._until_over)
        try:
            if self._elected(lease):
                self._serve(lease)
        finally:
            self._lease = None
            lease.release()

    def _serve(self, lease: Lease) -> None:
        try:
            with self._term(lease):
                self._call("on_elected", lease)
                if not self._is_work:
                    self.leads(math.inf)
                elif self.leads():
                    raise Returned
        finally:
            with self._end_of_term():
                self._call("on_lost", lease)

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
        lock = self._begin()
        ended = self._started()
        self._task = asyncio.create_task(self._arun(lock))
        self._task.add_done_callback(lambda _: ended.set())
        return self

    async def __aexit__(self, *error: object) -> None:
        asked = self._runs is not None if self._lease is None else self._stop.is_set()
        self._end()
        if self._task is not None:
            if not asked:  # else what it runs comes to its end
                self._task.cancel()
            _, late = await asyncio.wait([self._task], timeout=PATIENCE)
            if late:
                self._name_unless(self._ended, 0.0)
                if asked and self._work is not None:  # it has swallowed what the loss asked
                    self._work.cancel()
                await asyncio.wait(late)

    async def _arun(self, lock: Campaigning) -> None:
        task, rest = asyncio.current_task(), 0.0
        assert task is not None
        while not (self._over or task.cancelling()):
            try:
                await asyncio.sleep(rest)
                rest = 0.0
                await self._alead(lock)
                self._failures = 0
            except (KeyboardInterrupt, SystemExit):  # they end the loop
                raise
            except BaseException as error:  # noqa: BLE001 - logged
                if not (task.cancelling() and isinstance(error, asyncio.CancelledError)):
                    rest = self._failed(error)
        if not self._over:
            self._log(logging.ERROR, "no more campaign for %r: its task was cancelled")

    async def _alead(self, lock: Campaigning) -> None:
        async with lock as lease:
            try:
                if self._elected(lease):
                    await self._aserve(lease)
            finally:
                self._lease = None

    async def _aserve(self, lease: Lease) -> None:
        self._work = work = asyncio.create_task(self._awork(lease))
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError:  # the block ends, or somebody cancels the campaign
                self._lease = None
                work.cancel()
        leads, self._work = self.leads(), None
        try:
            with self._term(lease), suppress(*[] if leads else [asyncio.CancelledError]):
                work.result()
                if leads:
                    raise Returned
        finally:
            with self._end_of_term():
                await _awaited(self._call("on_lost", lease))

    async def _awork(self, lease: Lease) -> None:
        await _awaited(self._call("on_elected", lease))
        if not self._is_work and self.leads():  # else it has swallowed the cancellation
            await asyncio.get_running_loop().create_future()

    def _cut(self, lease: Lease) -> None:
        if lease is self._lease and self._work is not None:
            self._work.cancel()


async def _awaited(result: object) -> None:
    if inspect.isawaitable(result):
        await result


def _killed(error: BaseException) -> bool:
    """Return whether this ends a greenlet that is killed."""
    greenlet = sys.modules.get("greenlet")
    return greenlet is not None and isinstance(error, greenlet.GreenletExit)

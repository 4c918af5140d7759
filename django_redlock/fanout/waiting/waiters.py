"""Wait for a turn: how a waiter joins, moves and leaves, for threads and for tasks.

When it does so is decided in ``core.wait``. Only the first waiter of this process (``local_queue``)
has a place in the queue of a node, and it keeps the place between two looks. The rules are the
same for real nodes and for nodes in memory; these differ in what a ``Place`` is.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

from django_redlock.core.protocol import BlockOnNode, JoinQueue, LeaveQueue, Waiter, Wakeup
from django_redlock.interruption import LOOK, Latch, SafeFinalizer

from .local_queue import LocalQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from .place import Place, Places

Effect: TypeAlias = JoinQueue | BlockOnNode | LeaveQueue
Result: TypeAlias = "bool | Wakeup | str"  # of a JoinQueue, a BlockOnNode, a LeaveQueue

SELDOM: Final = 5.0  # seconds after which a task in the local queue looks for itself


class Waiters:
    """The waiters of one process, for one group of nodes.

    Args:
        places: the queues of the nodes.
        timeout: seconds that a node may take to let a waiter go.

    Attributes:
        local: the queue of this process.
    """

    def __init__(self, places: Places, timeout: float) -> None:
        self._places = places
        self._timeout = timeout
        self.local = LocalQueue()

    def reset(self) -> None:
        """Forget everybody, as a forked child must."""
        self.local.reset()

    # -- rules ----------------------------------------------------------------------------------

    def _enter(self, ticket: Waiter, place: Place) -> None:
        """Note a new place; when the ticket is forgotten, the place is given up."""
        ticket.blocked = place
        SafeFinalizer(ticket, place.abandon)

    def _came(self, ticket: Waiter, place: Place) -> Wakeup:
        """Return what the wait has brought; where that is something, the place is given up.

        A wake-up stays with the ticket, to be found again when an interruption makes it leave.
        """
        outcome = place.outcome()
        if outcome is None:
            return Wakeup()
        place.end()
        if outcome.wakeup:
            self.local.leave(ticket)
        else:
            ticket.blocked = None
        return outcome

    # -- threads --------------------------------------------------------------------------------

    def queue(self, effect: Effect) -> Result:
        """Join, block or leave, in a thread."""
        if isinstance(effect, JoinQueue):
            return self._join(effect)
        if isinstance(effect, BlockOnNode):
            return self._block(effect)
        try:
            return self._withdraw(effect.ticket)
        finally:
            self.local.leave(effect.ticket)

    def _join(self, effect: JoinQueue) -> bool:
        first, end = Latch(), time.monotonic() + effect.seconds
        if self.local.join(effect.ticket, first.set):
            return True
        while (left := end - time.monotonic()) > 0:
            # A waiter that leaves calls the next; an interruption may have kept it from that.
            if first.wait(min(left, LOOK)) or self.local.is_first(effect.ticket):
                return True
        return first.is_set()

    def _block(self, effect: BlockOnNode) -> Wakeup:
        place = _place_of(effect.ticket)
        if place is None or place.index != effect.place:
            wakeup = self._withdraw(effect.ticket)
            if wakeup:
                return Wakeup(wakeup)
            place = self._places.open(effect)
            if place is None:
                return Wakeup(broken=True)
            self._enter(effect.ticket, place)
        place.wait(effect.seconds)
        return self._came(effect.ticket, place)

    def _withdraw(self, ticket: Waiter) -> str:
        """Give the ticket's place up, if it has one; return the wake-up that has come there."""
        place, ticket.blocked = _place_of(ticket), None
        if place is None:
            return ""
        try:
            if place.withdraw(looped=False):
                place.wait(self._timeout)
        finally:
            place.end()
        return _wakeup_at(place)

    # -- tasks ----------------------------------------------------------------------------------

    def aqueue(self, effect: Effect) -> asyncio.Future[Result]:
        """The same for a task of the running loop."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Result] = loop.create_future()
        once = _Once(done)
        if isinstance(effect, JoinQueue):
            self._ajoin(effect, once, loop)
        elif isinstance(effect, BlockOnNode):
            self._ablock(effect, once, loop)
        else:
            self.local.leave(effect.ticket)
            self._awithdraw(effect.ticket, loop, once)
        return done

    def _ajoin(self, effect: JoinQueue, once: _Once, loop: asyncio.AbstractEventLoop) -> None:
        # Weakly, so that the ticket of a task that is dropped is forgotten.
        ticket = weakref.ref(effect.ticket)

        def call() -> None:
            loop.call_soon_threadsafe(once, True)  # noqa: FBT003 - the future's result

        def look() -> None:
            """Look, should an interruption have kept the call from us."""
            waiter = ticket()
            if waiter is not None and not once.over:
                loop.call_later(SELDOM, look)
                if self.local.is_first(waiter):
                    once(True)  # noqa: FBT003 - as above

        if self.local.join(effect.ticket, call):
            once(True)  # noqa: FBT003 - as above
            return
        loop.call_later(SELDOM, look)
        if effect.seconds < threading.TIMEOUT_MAX:
            once.after(loop, effect.seconds, result=False)

    def _ablock(self, effect: BlockOnNode, once: _Once, loop: asyncio.AbstractEventLoop) -> None:
        place = _place_of(effect.ticket)
        if place is not None and place.index == effect.place:
            self._await(effect, place, once, loop)
            return

        def opened(place: Place | None) -> None:
            if place is None:
                once(Wakeup(broken=True))
                return
            self._enter(effect.ticket, place)
            place.watch(loop)
            self._await(effect, place, once, loop)

        def moved(wakeup: str) -> None:
            if wakeup:
                once(Wakeup(wakeup))
                return
            seconds = self._places.aopen(effect, loop, wanted=lambda: not once.over, then=opened)
            once.after(loop, seconds, result=Wakeup(broken=True))

        self._awithdraw(effect.ticket, loop, moved)

    def _await(
        self, effect: BlockOnNode, place: Place, once: _Once, loop: asyncio.AbstractEventLoop
    ) -> None:
        waiter = weakref.ref(effect.ticket)

        def told() -> None:
            ticket = waiter()
            if ticket is not None:
                once(self._came(ticket, place))

        place.told = told
        if place.outcome() is not None:
            told()
        else:
            once.after(loop, effect.seconds, result=Wakeup())

    def _awithdraw(
        self, ticket: Waiter, loop: asyncio.AbstractEventLoop, then: Callable[[str], object]
    ) -> None:
        """Give the ticket's place up, if it has one; ``then`` is told the wake-up that came."""
        place, ticket.blocked = _place_of(ticket), None
        if place is None:
            then("")
            return

        def over() -> None:
            place.told = None
            place.end()
            then(_wakeup_at(place))

        if not place.withdraw(looped=True):
            over()
            return
        timer = loop.call_later(self._timeout, over)

        def told() -> None:
            timer.cancel()
            over()

        place.told = told


def _place_of(ticket: Waiter) -> Place | None:
    """The ticket's place, unless it is the parent's, from which this child was forked.

    The ticket itself has it: no table keeps what an interruption has left there.
    """
    place: Place | None = ticket.blocked
    return place if place is not None and place.pid == os.getpid() else None


def _wakeup_at(place: Place) -> str:
    outcome = place.outcome()
    return outcome.wakeup if outcome is not None else ""


class _Once:
    """Sets a future's result once. Weakly, so that a task that is dropped has left."""

    def __init__(self, future: asyncio.Future[Result]) -> None:
        self._future = weakref.ref(future)

    @property
    def over(self) -> bool:
        """Return whether the future is done or forgotten."""
        future = self._future()
        return future is None or future.done()

    def __call__(self, result: Result) -> None:
        future = self._future()
        if future is not None and not future.done():
            future.set_result(result)

    def after(self, loop: asyncio.AbstractEventLoop, seconds: float, *, result: Result) -> None:
        """Set this result then."""
        future = self._future()
        if future is not None and not future.done():
            for late in (0.0, LOOK):  # twice, should an interruption keep the first from it
                timer = loop.call_later(seconds + late, self, result)
                future.add_done_callback(partial(_cancel, timer))


def _cancel(timer: asyncio.TimerHandle, _: object) -> None:
    timer.cancel()

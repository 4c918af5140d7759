"""Wait for a turn: the queue of this process, and the queues of the nodes.

When a waiter joins, looks, moves and leaves is decided in ``core.wait``. All waiters of this
process for one name queue here, in a ``LocalQueue``; only the first of them has a place in the
queue of a node, and keeps the place between two looks. The rules (``Waiters``) are the same for
threads and tasks, and for real nodes and nodes in memory; these differ in what a ``Place`` is.
"""

from __future__ import annotations

import asyncio
import functools
import os
import select
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from django_redlock.core.protocol import (
    Answer,
    BlockOnNode,
    Command,
    JoinQueue,
    LeaveQueue,
    Vote,
    Waiter,
    Wakeup,
)
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.interruption import LOOK, Latch, first, when_forgotten

from .background import new_poll
from .connection import OnWire, PlainCommand, nobody, packed
from .exchange import HANDSHAKE
from .faults import LEFT_QUEUE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .connection import Connection
    from .node import ConnectAttempt, Node
    from .threads import Threads


Call: TypeAlias = "Callable[[], object]"
Queue: TypeAlias = "dict[weakref.ref[Waiter], Call | None]"  # None: knows that it is the first
Effect: TypeAlias = JoinQueue | BlockOnNode | LeaveQueue
Result: TypeAlias = "bool | Wakeup | str"  # of a JoinQueue, a BlockOnNode, a LeaveQueue

SELDOM: Final = 5.0  # seconds after which a task in the local queue looks for itself
LEAST: Final = 0.05  # seconds to block on a node: 0 would be for ever


class LocalQueue:
    """The queues of one process, for threads and tasks alike.

    Waiters are held weakly. One that is forgotten, by whatever accident, has left.

    Attributes:
        queues: those that have a waiter, by name.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget them all, as a forked child must."""
        self._changing = threading.RLock()  # re-entrant: collecting garbage may get here, too
        self.queues: dict[str, Queue] = {}

    def waiting(self) -> Counter[str]:
        """Return how many waiters stand in the queues now, by the template of what they want."""
        queues = [list(queue) for queue in list(self.queues.values())]  # each in one step
        waiters = [waiter() for queue in queues for waiter in queue]
        return Counter(waiter.template for waiter in waiters if waiter is not None)

    def join(self, waiter: Waiter, call: Call) -> bool:
        """Join the queue; return whether as the first. Else ``call`` is called when that is so."""
        forgotten = functools.partial(self._remove, waiter.queue)
        with self._changing:
            self._forget_gone(waiter.queue)
            queue = self.queues.setdefault(waiter.queue, {})
            alone = not queue
            queue[weakref.ref(waiter, forgotten)] = None if alone else call
            return alone

    def is_first(self, waiter: Waiter) -> bool:
        """Return whether it is the first."""
        with self._changing:
            self._forget_gone(waiter.queue)
            return first(self.queues.get(waiter.queue, ())) == weakref.ref(waiter)

    def leave(self, waiter: Waiter) -> None:
        """Leave the queue, and call the one that is first then.

        May be called again, where that was interrupted.
        """
        self._remove(waiter.queue, weakref.ref(waiter))

    def _forget_gone(self, name: str) -> None:
        """Drop the first ones that are forgotten, and have not left."""
        while (oldest := first(self.queues.get(name, ()))) and oldest() is None:
            self._remove(name, oldest)

    def _remove(self, name: str, reference: weakref.ref[Waiter]) -> None:
        with self._changing:
            queue = self.queues.get(name, {})
            queue.pop(reference, None)
            self._call_first(queue)
            if not queue:
                self.queues.pop(name, None)

    def _call_first(self, queue: Queue) -> None:
        """Call the first, unless it knows; those that are gone leave the queue."""
        while found := first(queue.items()):
            waiter, call = found
            if call is None:
                return
            if _called(call):
                if waiter in queue:  # else it left while it was called
                    queue[waiter] = None
                return
            queue.pop(waiter, None)


def _called(call: Call) -> bool:
    try:
        call()
    except RuntimeError:  # its event loop has been closed
        return False
    return True


class Place(ABC):
    """A place in a node's queue, kept until there is an outcome or it is given up.

    Attributes:
        index: the node's, in its group.
        pid: of the process that has it.
        then: called, in the event loop that watches, when there is an outcome.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.pid = os.getpid()
        self.then: Callable[[], object] | None = None

    @abstractmethod
    def outcome(self) -> Wakeup | None:
        """Return the outcome; None while the place is kept."""

    @abstractmethod
    def wait(self, seconds: float) -> None:
        """Block this thread until there is an outcome, for at most so long."""

    @abstractmethod
    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have an event loop call ``then``."""

    @abstractmethod
    def withdraw(self, *, looped: bool) -> bool:
        """Ask the node to let the waiter go; return whether its answer is worth waiting for.

        Args:
            looped: whether a task asks, not a thread.
        """

    @abstractmethod
    def end(self) -> None:
        """Give the place up. May be called again."""

    @abstractmethod
    def abandon(self) -> None:
        """Give it up, for its waiter is gone; any thread may come to know."""


class Places(Protocol):
    """Where places come from: a group of nodes."""

    def open(self, effect: BlockOnNode) -> Place | None:
        """Take a place, for a thread; None: the node cannot be asked."""

    def aopen(
        self,
        effect: BlockOnNode,
        loop: asyncio.AbstractEventLoop,
        *,
        wanted: Callable[[], bool],
        then: Callable[[Place | None], object],
    ) -> float:
        """The same for a task; return the seconds after which ``then`` may be given up.

        Args:
            wanted: tells whether the task still waits.
            then: called with the place, now or later, in the loop.
        """


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

    def _enter(self, waiter: Waiter, place: Place) -> None:
        """Note a new place; when the waiter is forgotten, the place is given up."""
        waiter.blocked = place
        when_forgotten(waiter, place.abandon)

    def _came(self, waiter: Waiter, place: Place) -> Wakeup:
        """Return what the wait has brought; where that is something, the place is given up.

        A wake-up stays with the waiter, to be found again when an interruption makes it leave.
        """
        outcome = place.outcome()
        if outcome is None:
            return Wakeup()
        place.end()
        if outcome.wakeup:
            waiter.which = outcome.which
            self.local.leave(waiter)
        else:
            waiter.blocked = None
        return outcome

    # -- threads --------------------------------------------------------------------------------

    def queue(self, effect: Effect) -> Result:
        """Join, block or leave, in a thread."""
        if isinstance(effect, JoinQueue):
            return self._join(effect)
        if isinstance(effect, BlockOnNode):
            return self._block(effect)
        try:
            return self._withdraw(effect.waiter)
        finally:
            self.local.leave(effect.waiter)

    def _join(self, effect: JoinQueue) -> bool:
        first, end = Latch(), time.monotonic() + effect.seconds
        if self.local.join(effect.waiter, first.set):
            return True
        while (left := end - time.monotonic()) > 0:
            # A waiter that leaves calls the next, unless it was interrupted.
            if first.wait(min(left, LOOK)) or self.local.is_first(effect.waiter):
                return True
        return first.is_set()

    def _block(self, effect: BlockOnNode) -> Wakeup:
        place = _place_of(effect.waiter)
        if place is None or place.index != effect.node_index:
            wakeup = self._withdraw(effect.waiter)
            if wakeup:
                return Wakeup(wakeup, which=effect.waiter.which)
            place = self._places.open(effect)
            if place is None:
                return Wakeup(broken=True)
            self._enter(effect.waiter, place)
        place.wait(effect.seconds)
        return self._came(effect.waiter, place)

    def _withdraw(self, waiter: Waiter) -> str:
        """Give the waiter's place up, if it has one; return the wake-up that has come there."""
        place, waiter.blocked = _place_of(waiter), None
        if place is None:
            return ""
        try:
            if place.withdraw(looped=False):
                place.wait(self._timeout)
        finally:
            place.end()
        return _wakeup_at(place, waiter)

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
            self.local.leave(effect.waiter)
            self._awithdraw(effect.waiter, loop, once)
        return done

    def _ajoin(self, effect: JoinQueue, once: _Once, loop: asyncio.AbstractEventLoop) -> None:
        # Weakly, so that the waiter of a task that is dropped is forgotten.
        waiter = weakref.ref(effect.waiter)

        def call() -> None:
            loop.call_soon_threadsafe(once, True)  # noqa: FBT003 - the future's result

        def look() -> None:
            """Look, for the one before may have been kept from the call."""
            living = waiter()
            if living is not None and not once.over:
                loop.call_later(SELDOM, look)
                if self.local.is_first(living):
                    once(True)  # noqa: FBT003 - as above

        if self.local.join(effect.waiter, call):
            once(True)  # noqa: FBT003 - as above
            return
        loop.call_later(SELDOM, look)
        if effect.seconds < threading.TIMEOUT_MAX:
            once.after(loop, effect.seconds, result=False)

    def _ablock(self, effect: BlockOnNode, once: _Once, loop: asyncio.AbstractEventLoop) -> None:
        place = _place_of(effect.waiter)
        if place is not None and place.index == effect.node_index:
            self._await(effect, place, once, loop)
            return

        def opened(place: Place | None) -> None:
            if place is None:
                once(Wakeup(broken=True))
                return
            self._enter(effect.waiter, place)
            place.watch(loop)
            self._await(effect, place, once, loop)

        def moved(wakeup: str) -> None:
            if wakeup:
                once(Wakeup(wakeup, which=effect.waiter.which))
                return
            seconds = self._places.aopen(effect, loop, wanted=lambda: not once.over, then=opened)
            once.after(loop, seconds, result=Wakeup(broken=True))

        self._awithdraw(effect.waiter, loop, moved)

    def _await(
        self, effect: BlockOnNode, place: Place, once: _Once, loop: asyncio.AbstractEventLoop
    ) -> None:
        reference = weakref.ref(effect.waiter)

        def came() -> None:
            waiter = reference()
            if waiter is not None:
                once(self._came(waiter, place))

        place.then = came
        if place.outcome() is not None:
            came()
        else:
            once.after(loop, effect.seconds, result=Wakeup())

    def _awithdraw(
        self, waiter: Waiter, loop: asyncio.AbstractEventLoop, then: Callable[[str], object]
    ) -> None:
        """Give the waiter's place up, if it has one; ``then`` is told the wake-up that came."""
        place, waiter.blocked = _place_of(waiter), None
        if place is None:
            then("")
            return

        def over() -> None:
            place.then = None
            place.end()
            then(_wakeup_at(place, waiter))

        if not place.withdraw(looped=True):
            over()
            return
        timer = loop.call_later(self._timeout, over)

        def came() -> None:
            timer.cancel()
            over()

        place.then = came


def _place_of(waiter: Waiter) -> Place | None:
    """The waiter's place, unless it is the parent's, from which this child was forked.

    The waiter itself has it, so no table keeps a place whose waiter is gone.
    """
    place: Place | None = waiter.blocked
    return place if place is not None and place.pid == os.getpid() else None


def _wakeup_at(place: Place, waiter: Waiter) -> str:
    """Return the wake-up that has come, of which the waiter is told in which list it was."""
    outcome = place.outcome()
    if outcome is None or not outcome.wakeup:
        return ""  # the waiter may have another slot in mind, which is free
    waiter.which = outcome.which
    return outcome.wakeup


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
            timer = loop.call_later(seconds, self, result)
            future.add_done_callback(partial(_cancel, timer))


def _cancel(timer: asyncio.TimerHandle, _: object) -> None:
    timer.cancel()


# -- real nodes ------------------------------------------------------------------------------------


class NodePlaces:
    """Places in the queues of real nodes, each with a connection of its own.

    Args:
        put: sends something over the running loop's connection to a node, if there is one.
        threads: has the links that threads use; one of them serves where no connection is idle.
        timeout: the node timeout, in seconds.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        put: Callable[[int, OnWire], bool],
        threads: Threads,
        timeout: float,
    ) -> None:
        self._nodes = nodes
        self._put = put
        self._threads = threads
        self._connecting = HANDSHAKE * timeout

    def open(self, effect: BlockOnNode) -> BlockedConnection | None:
        """Take a place, for a thread; see ``Places``."""
        node, now = self._nodes[effect.node_index], time.monotonic()
        connection = node.take(now)  # the thread needs its link when it is woken
        if connection is None and (attempt := node.open(now, urgent=True)) is not None:
            attempt.done.wait(self._connecting)
            connection = attempt.take()
            if connection is None:
                node.forgo(attempt)
        connection = connection or self._threads.take(node, now)
        if connection is None:
            return None
        return BlockedConnection(node, connection, effect, self._put, self._threads)

    def aopen(
        self,
        effect: BlockOnNode,
        loop: asyncio.AbstractEventLoop,
        *,
        wanted: Callable[[], bool],
        then: Callable[[BlockedConnection | None], object],
    ) -> float:
        """Take a place, for a task; see ``Places``."""
        node = self._nodes[effect.node_index]

        def connected(connection: Connection | None) -> None:
            if connection is None:
                then(None)
            elif wanted():
                then(BlockedConnection(node, connection, effect, self._put, self._threads))
            else:
                node.give(connection, time.monotonic())

        def later(attempt: ConnectAttempt) -> None:
            loop.call_soon_threadsafe(lambda: connected(attempt.take()))

        connection = self._threads.take(node, time.monotonic())
        if connection or node.open(time.monotonic(), urgent=True, then=later) is None:
            connected(connection)
        return max(effect.seconds, self._connecting)


class BlockedConnection(Place):
    """A waiter's place in a queue of one node.

    Attributes:
        connection: blocked there, and used for nothing else.
        vote: what the node said in the end; None until then.
    """

    def __init__(
        self,
        node: Node,
        connection: Connection,
        effect: BlockOnNode,
        put: Callable[[int, OnWire], bool],
        threads: Threads,
    ) -> None:
        super().__init__(effect.node_index)
        self.connection = connection
        self.vote: Vote | None = None
        self._node = node
        self._put = put
        self._threads = threads
        self._given = False
        self._loop: asyncio.AbstractEventLoop | None = None
        queues = effect.waiter.queues
        data = packed("BLPOP", *queues, f"{max(LEAST, effect.longest):.3f}")
        pending = PlainCommand(Command.BLOCK, "\0".join(queues).encode(), data, self._hear)
        if not connection.send(pending) and self.vote is None:
            why = connection.fault or because(ReasonCode.BACKLOG)
            self.vote = Vote(connection.label, Answer.UNKNOWN, reason=why)

    def _hear(self, _: int, vote: Vote) -> None:
        self.vote = vote

    def outcome(self) -> Wakeup | None:
        """Return the outcome; None while the place is kept."""
        if self.vote is None:
            return None
        if self.vote.answer is Answer.YES:
            return Wakeup(self.vote.result, which=self.vote.which)
        return Wakeup(broken=self.vote.answer is Answer.UNKNOWN)

    def wait(self, seconds: float) -> None:
        """Block until something comes, for at most so long."""
        poll = new_poll()
        poll.register(self.connection.fileno, select.POLLIN)
        end = time.monotonic() + seconds
        while self.vote is None and (left := end - time.monotonic()) > 0:
            poll.poll(left * 1000)
            self.connection.read()

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have an event loop wait, which calls ``then``."""
        if self.vote is not None:
            return  # the connection has ended, and its socket's number may be another's by now
        self._loop, self.connection.looped = loop, True
        loop.add_reader(self.connection.fileno, self._read)

    def _read(self) -> None:
        self.connection.read()
        if self.vote is not None:
            self.end()
            if self.then is not None:
                self.then()

    def withdraw(self, *, looped: bool) -> bool:
        """Have the node answer now: told over another connection, if there is one."""
        if self.vote is None and self.connection.client:
            data = packed("CLIENT", "UNBLOCK", self.connection.client)
            pending = PlainCommand(Command.UNBLOCK, b"", data, nobody)
            if self._put(self.index, pending) if looped else self._send(pending):
                return True
        if not self._given:
            self.connection.read()  # a wake-up may have come already
        return False

    def _send(self, pending: OnWire) -> bool:
        other = self._threads.take(self._node, time.monotonic())
        if other is None:
            return False
        sent = other.send(pending)
        self._node.give(other, time.monotonic())
        return sent

    def end(self) -> None:
        """Give the connection back; one that is still blocked is closed."""
        if self._given:
            return
        self._given = True
        if self._loop is not None:
            self._loop.remove_reader(self.connection.fileno)
            self.connection.looped = False
        if self.connection.owed or self.connection.fault:
            self.connection.close(LEFT_QUEUE)
        self._node.give(self.connection, time.monotonic())

    def abandon(self) -> None:
        """Leave: a dead waiter would consume the wake-up."""
        if self._given:
            return
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self.end)
            except RuntimeError:  # the loop is closed, and has forgotten the connection
                self._loop, self.connection.looped = None, False
        if self._loop is None:
            self.end()

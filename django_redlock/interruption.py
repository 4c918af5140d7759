"""What an interruption may leave behind, and what it may not.

An interruption is an exception that no code of the block raised: a signal handler's (Ctrl-C,
Celery's soft time limit, gunicorn's ``SystemExit``), a greenlet's kill, or the cancellation of a
task. It may come between any two steps of this package.

The contract
============

* **In the body, or while a node is waited for**, the name is freed before the exception goes on:
  ``Backend.run`` throws it into the steps, which yield what to undo.
* **In the instants in which a block begins or ends**, the lease is renewed no more, and its ttl
  frees the name. An end that is interrupted is made once more.
* **Wherever it comes**: no hang, no lock of the package left locked, no second believer, no fence
  twice.
* **While a thread asks the nodes for one lock**, a signal handler or a finalizer takes no other one
  there: that is refused with ``RuntimeError``. A release there ends the lease at once, and a thread
  of the background sends it. Listeners, receivers and log handlers are called outside of that.

============================  ===================================  ===============================
the interruption comes        it is covered by                     and then
============================  ===================================  ===============================
while the nodes are asked     ``Backend.run``, which throws it     the attempt is rolled back
for a grant                   into the steps of ``core.acquire``   before the exception goes on
after the grant, before the   ``locks.lock.make_lease``, then      the lease is released before
block's first statement       ``BlockExit.enter``                  the exception goes on
in the block                  Python, which calls ``__exit__``     the lease is released
at the end of the block       ``_leave``, which ends the block     the lease is released
                              once more
before that, or twice         nothing that could run               the lease is renewed no more,
                                                                   and its ttl frees the name
============================  ===================================  ===============================

A lease that is renewed no more is logged at its deadline as lost, with the reason
``never_released``; ``on_lost`` is not called, for there is no holder. A transaction of
``Lock.atomic`` is rolled back wherever the lease is released. A block that is gone leaves it
open, as Django's own ``atomic`` does, and the next request or task in the thread rolls it back.

Nobody guesses that a block has ended, and no callback of the garbage collector asks a node,
releases, or rolls back. A generator that is dropped inside a ``with`` block is closed: its
``finally`` runs under the lease, and its ``__exit__`` ends that. The nodes are asked then and
there, unless the collector closes the generator: then a thread of the background asks them.

A bound remains: a program that calls ``lock.__enter__()`` itself, and is interrupted before it
calls ``lock.__exit__()``. Nothing shows that such a block is gone. Its lease is renewed until the
lock and the lease are forgotten.

How it is seen that a block is gone
===================================

Python drops what a ``with`` statement has left on the stack of its frame: what
``type(lock).__exit__`` returned when the block began. So ``__exit__`` is a descriptor: it gives
each block a function of its own, and a weak reference to that function tells whether the block is
still there. The watchdog asks it. The reference has no callback.

What the rest of this module is for
===================================

``in_steps`` marks the steps of a lock, ``aloud`` what is called outside of them. ``Latch`` and
``ThreadWakeup`` let threads wait by locks that are written in C, so that no interruption leaves
them locked. ``when_forgotten`` has something done once an object is gone. ``collector`` tells what
the garbage collector runs.
"""

from __future__ import annotations

import functools
import gc
import os
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, MutableSequence

T = TypeVar("T")

MOST_GIVEN: Final = 16  # functions of a thread that await an ``__enter__``; nearly always one does
LOOK: Final = 1.0  # seconds after which a waiting thread looks at the flag itself


# -- blocks -------------------------------------------------------------------------------------


class Block:
    """A ``with`` block that is entered, or about to be.

    Attributes:
        held: what the block holds, as its lease; None before it is entered and after it is left.
            ``block`` of it is what tells whether the block is there.
        inside: what the block has begun inside that, and ends first, as a transaction.
        target: what the block was told of its work, where its end asks for that.
        function: a weak reference to what lives as long as the block; None: entered by hand.
        owner: the lock that is entered; None: any, since ``__exit__`` of the class was read.
    """

    __slots__ = ("__weakref__", "function", "held", "inside", "owner", "target")

    def __init__(self, owner: object) -> None:
        self.held: Any = None
        self.inside: Any = None
        self.target: Any = None
        self.function: weakref.ref[Any] | None = None
        self.owner: Any = owner

    def keep(self, held: Any) -> None:
        """Hold this until the block ends."""
        held.block = self.function
        self.held = held

    def close(self) -> None:
        """Note that the block is over, or was not entered."""
        held, self.held = self.held, None
        if held is not None:
            held.block = gone  # also where something keeps the function
        if self.function is None:
            remove(self, blocks_by_hand(self.owner))


def gone() -> None:
    """Return None, as a weak reference does whose object is gone: for what has no block now."""


def blocks_by_hand(owner: object) -> list[Block]:
    """Return the blocks of this lock that no ``with`` statement has entered."""
    return vars(owner).setdefault("_by_hand", [])  # type: ignore[no-any-return]


class BlockExit:
    """The descriptor ``__exit__`` of a class: gives each block a function that ends it.

    Python looks ``__exit__`` up before it calls ``__enter__``, in the same thread. So ``enter``
    takes the newest function that was made for its lock in this thread. If there is none, the
    program calls ``lock.__enter__()`` itself.

    The function is a ``functools.partial``, which holds the ``Block`` and thereby the lease. While
    it is called no Python frame holds it, so a traceback does not keep it.

    Args:
        end: called with the block, the lock, and the class of the exception that ended the body.
        undo: called with the block where ``end`` was interrupted, or where what it holds came
            before an interruption of ``__enter__``; does no harm where ``end`` was through.
        innermost: called with what blocks hold that were entered by hand, the oldest first;
            returns that which is left first.
    """

    def __init__(
        self,
        end: Callable[[Block, Any, type[BaseException] | None], Any],
        undo: Callable[[Block], Any],
        innermost: Callable[[list[Any]], Any],
    ) -> None:
        self._end = end
        self._undo = undo
        self._innermost = innermost
        self._given = _Given()

    def __get__(self, owner: object, _: type | None = None) -> functools.partial[Any]:
        if owner is None:  # the caller passes the lock, as ``contextlib.ExitStack`` does
            block = Block(None)
            function = functools.partial(self._leave, block)
        else:
            block = Block(owner)
            function = functools.partial(self._leave, block, owner)
        block.function = weakref.ref(function)
        self._given.blocks.append(block)
        return function

    def enter(self, owner: object, begin: Callable[[Block], T]) -> T:
        """Enter a block; ``__enter__`` calls it.

        Args:
            owner: the lock.
            begin: takes what the block is to hold, and has ``Block.keep`` called with it.
        """
        block = self._entered(owner)
        try:
            return begin(block)
        except BaseException:  # a block that is not entered has no end
            try:
                if block.held is not None:
                    self._undo(block)
            finally:
                block.close()
            raise

    def _entered(self, owner: object) -> Block:
        """Return the block that is being entered."""
        given = self._given.blocks
        for block in reversed(tuple(given)):
            is_gone = block.function is None or block.function() is None
            if is_gone or block.owner is owner or block.owner is None:
                remove(block, given)
                if not is_gone:
                    block.owner = owner
                    return block
        block = Block(owner)
        blocks_by_hand(owner).append(block)
        return block

    def _leave(
        self, block: Block, owner: Any, kind: type[BaseException] | None, *_: object
    ) -> None:
        """End this block of the lock, or the innermost one that was entered by hand."""
        if block.owner is not owner or block.held is None:
            block = self._by_hand(owner)
        try:
            self._end(block, owner, kind)
        except BaseException:  # rule: an end that is interrupted is made once more
            self._undo(block)
            raise
        finally:
            block.close()

    def _by_hand(self, owner: object) -> Block:
        entered = list(blocks_by_hand(owner))  # another thread may leave a block meanwhile
        blocks = {held: block for block in entered if (held := block.held) is not None}
        if not blocks:
            msg = f"{owner!r} is left, but nothing entered it"
            raise RuntimeError(msg)
        return blocks[self._innermost(list(blocks))]


class AsyncBlockExit(BlockExit):
    """The descriptor ``__aexit__``: the same where ``end``, ``undo`` and ``begin`` are awaited."""

    def aenter(
        self, owner: object, begin: Callable[[Block], Awaitable[T]]
    ) -> Coroutine[Any, Any, T]:
        """Enter a block; ``__aenter__`` calls it."""
        return self._aenter(self._entered(owner), begin)

    async def _aenter(self, block: Block, begin: Callable[[Block], Awaitable[T]]) -> T:
        try:
            return await begin(block)
        except BaseException:  # as in ``BlockExit.enter``
            try:
                if block.held is not None:
                    await self._undo(block)
            finally:
                block.close()
            raise

    async def _leave(  # type: ignore[override]
        self, block: Block, owner: Any, kind: type[BaseException] | None, *_: object
    ) -> None:
        """End the block in a task."""
        if block.owner is not owner or block.held is None:
            block = self._by_hand(owner)
        try:
            await self._end(block, owner, kind)
        except BaseException:  # rule: as above; what was sent is not awaited again
            await self._undo(block)
            raise
        finally:
            block.close()


class _Given(threading.local):
    """The blocks of a thread whose functions await an ``__enter__``, the newest last."""

    def __init__(self) -> None:
        self.blocks: deque[Block] = deque(maxlen=MOST_GIVEN)


# -- steps --------------------------------------------------------------------------------------

IN_STEPS: Final = (
    "a signal handler or a finalizer asks for a lock in the middle of the steps of another one, in "
    "the same thread. Only a release is possible there: let the handler set a flag, or raise, and "
    "take the lock in code that the program calls"
)
COLLECTING: Final = (
    "the garbage collector runs this, in a __del__ or in the rest of a generator that nobody "
    "closed; only a release is possible there. Close the generator yourself, as by "
    "contextlib.closing, and take, extend and look up locks in code that the program calls"
)
# The threads, or greenlets, that are in the middle of steps, each with its process.
_steps: Final[dict[int, int]] = {}


def in_steps(function: Callable[..., T], *args: Any) -> T:
    """Call a function between whose steps no other lock may be taken.

    ``threading.get_ident`` is looked up at each use: gevent may patch it after the import, and its
    number is the greenlet's.
    """
    me = threading.get_ident()
    try:
        _steps[me] = os.getpid()
        return function(*args)
    finally:
        _steps.pop(me, None)


def aloud(function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    """Call a function that may lock, as a listener or a log handler, in the middle of steps."""
    me, before = threading.get_ident(), None
    try:
        before = _steps.pop(me, None)
        function(*args, **kwargs)
    finally:
        if before is not None:
            _steps[me] = before


def why_not_here() -> str:
    """Return why no node may be asked here, for people; "": it may."""
    if collector.runs_here():
        return COLLECTING
    return IN_STEPS if _steps.get(threading.get_ident()) == os.getpid() else ""


# -- containers that other threads change meanwhile ---------------------------------------------


def first(things: Iterable[T]) -> T | None:
    """Return the first of them, or None."""
    for each in things:  # one step: ``next(iter(things))`` may find that they have changed
        return each
    return None


def remove(thing: T, things: MutableSequence[T]) -> bool:
    """Remove it from a list or deque; return whether it was there."""
    try:
        things.remove(thing)
    except ValueError:
        return False
    return True


def drain(*pops: Callable[[], T]) -> Iterator[T]:
    """Yield what each of these calls takes out of a list or dictionary, until that is empty."""
    for pop in pops:
        with suppress(LookupError):
            while True:
                yield pop()


# -- waiting in a thread ------------------------------------------------------------------------
# ``threading.Condition``, ``Event`` and the others that are written in Python acquire a lock in one
# call and release it in another: an exception between the two leaves it locked for ever, for all
# threads. These hold no lock while other code runs.


class Latch:
    """A flag that is raised once, for which threads wait.

    Each waiting thread has a lock of its own, which no other acquires. If ``set`` is interrupted,
    calling it again wakes the threads that it left out; without that they look at the flag.
    """

    __slots__ = ("_raised", "_waiting")

    def __init__(self) -> None:
        self._raised = False
        self._waiting: list[threading.Lock] = []

    def is_set(self) -> bool:
        """Return True if the flag is raised."""
        return self._raised

    def set(self) -> None:
        """Raise the flag and wake all waiting threads."""
        self._raised = True
        for lock in tuple(self._waiting):
            _release(lock)

    def wait(self, seconds: float) -> bool:
        """Wait until the flag is raised, for at most so many seconds; return whether it is."""
        end = time.monotonic() + seconds
        lock = threading.Lock()
        lock.acquire()
        self._waiting.append(lock)
        while not self._raised and (left := end - time.monotonic()) > 0:
            lock.acquire(timeout=min(left, LOOK))
        remove(lock, self._waiting)
        return self._raised


class ThreadWakeup:
    """Wakes one thread that sleeps; if that is awake, its next sleep ends at once.

    Each sleep makes a lock of its own. A server may import the application, fork, and only then let
    gevent patch ``threading``; a greenlet that acquires an older lock stops all others.
    """

    __slots__ = ("_silent", "_woken")

    def __init__(self) -> None:
        self._silent: threading.Lock | None = None
        self._woken = False

    def wake(self) -> None:
        """End the sleep."""
        self._woken = True
        if (lock := self._silent) is not None:
            _release(lock)

    def sleep(self, seconds: float) -> None:
        """Sleep until ``wake`` is called, for at most so many seconds; may be infinite."""
        lock = threading.Lock()
        lock.acquire()
        self._silent = lock
        if not self._woken:
            lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))
        self._woken = False  # a wake-up from now on ends the next sleep


def _release(lock: threading.Lock) -> None:
    with suppress(RuntimeError):  # it was released already
        lock.release()


# -- what the garbage collector runs ------------------------------------------------------------


class Collector:
    """Tells whether this thread is in the middle of a collection, which may close a block.

    Python may collect garbage wherever a thread makes an object, so also while the thread has a
    lock of this package, of ``logging`` or of a library of metrics. What is released there would
    want other locks, in another order than other threads want them, and all would wait for ever.
    So the rule: *under the collector nothing is asked of a node, and nothing is told.* A release
    is handed over to a thread of the background, a ``when_forgotten`` too; all else is refused.

    A lease ends there all the same, a waiter leaves its local queue, and a job is handed over. The
    two locks for that are the innermost: a thread that has one wants no other. A process collects
    in one thread at a time.

    Attributes:
        runs_here: returns whether the collector has called this.
        hand_over: called with a job that the collector has begun; does it in the background, or
            returns False if there is no thread for it.
    """

    __slots__ = ("acquire", "hand_over", "release", "runs_here")

    # Python calls ``getattr`` with the phase. All is written in C: it would swallow the exception
    # of a signal handler in a callback that is written in Python.
    start = property(methodcaller("acquire"))
    stop = property(methodcaller("release"))

    def __init__(self) -> None:
        self.hand_over: Callable[[Callable[[], object]], bool] = lambda _: False
        self.reset()
        gc.callbacks.append(functools.partial(getattr, self))

    def reset(self) -> None:
        """Forget the collection of another thread, as a forked child must."""
        lock = threading.RLock()
        self.acquire, self.release = lock.acquire, lock.release
        self.runs_here: Callable[[], bool] = lock._is_owned  # type: ignore[attr-defined] # noqa: SLF001 - as ``Condition`` does


collector: Final = Collector()


# -- when an object is forgotten ----------------------------------------------------------------


def when_forgotten(thing: object, job: Callable[[], object]) -> None:
    """Have a job done once an object is garbage-collected.

    Where the collector runs, a thread of the background does it. An interruption of its first step
    loses the job, so it may only give back what goes by itself in the end.
    """
    weakref.finalize(thing, _do, job).atexit = False


def _do(job: Callable[[], object]) -> None:
    if collector.runs_here():
        collector.hand_over(job)
    else:
        job()

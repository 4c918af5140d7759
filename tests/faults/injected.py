"""A process that raises at every call of what a lock does, one after the other; run by tests.

Arguments: a scenario, the nodes' URLs ("" for nodes in memory), and, for broken variants that the
tests must catch, a variant's name. Prints one JSON line: at how many points it raised, after which
of them the name stayed taken, how often a block was torn, and what was not well at the end.

A block is torn at the first instruction of its end, before the ``try`` there. Its lease is then
renewed no more. After an interruption anywhere else the name is free at once.

Python runs signal handlers where it begins a function, where it comes back from one that is
written in C, where a loop jumps back, and where a generator goes on after a ``yield``. A profile
function is called at the first two and may raise there, a trace function at the others.
"""

from __future__ import annotations

import asyncio
import dis
import functools
import gc
import itertools
import json
import logging
import math
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from types import CodeType, FrameType
from typing import Any, NamedTuple
from unittest.mock import patch

from django_redlock import LockTaken, NodesUnavailable
from django_redlock.backend import Backend, Group
from django_redlock.core.policy import Policy
from django_redlock.interruption import Block
from django_redlock.leases.lease import Lease
from django_redlock.leases.renewal import LoopWatchdog, RenewalSchedule, Watchdog, watchdog
from django_redlock.locks import lock as locks
from django_redlock.locks.lock import Lock, leave
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes import node as node_module
from django_redlock.nodes.background import PerLoop
from django_redlock.nodes.memory import MemoryNode, MemoryNodes
from tests.support.loops import group_of

from . import transactions
from .afterwards import Afterwards, in_blocks

NAME = "shared"
TTL = 60.0
NODE_TIMEOUT = 5.0
PATIENCE = 20.0  # seconds in which a name is free that is undone in the background
PACKAGE = "/django_redlock/"
HELPERS = ("/threading.py", "/weakref.py", "/_weakrefset.py", "/contextlib.py", "/queue.py")
DJANGO = ("/django/db/", "/django/utils/", "/asgiref/")  # what begins and ends a transaction


class Interruption(Exception):  # noqa: N818 - it is one
    """What a signal handler raises."""


_outer = threading.local()  # .trace: who traced the thread before, coverage for one


class Injector:
    """Raises at the point of this number; ``at`` says where that was."""

    def __init__(self, number: int) -> None:
        self.at = ""
        self._left = number
        # CPython 3.11 makes a frame's object before it calls them, and the garbage collector may
        # run then: a finalizer, counted as a point, stops them, and the last reference was theirs.
        self._kept = self._enter, self._profile

    def start(self) -> None:
        """Count the points from here on."""
        _outer.trace = sys.gettrace()
        enter, profile = self._kept
        sys.settrace(enter)
        sys.setprofile(profile)

    @staticmethod
    def stop() -> None:
        """Raise no more."""
        sys.setprofile(None)
        sys.settrace(getattr(_outer, "trace", None))

    def _profile(self, frame: FrameType, event: str, what: Any) -> None:
        if not ours(frame):
            return
        code = frame.f_code
        # The profiler is told as well when a generator goes on, but where no handler of it counts.
        if event == "call" and frame.f_lasti <= points(code).begin:
            self._count(frame, "")
        elif event == "c_return":
            self._count(frame, f" after {what.__qualname__}")

    def _enter(self, frame: FrameType, event: str, _: Any) -> Any:
        if not ours(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        before, where = -1, points(frame.f_code)

        def opcode(frame: FrameType, event: str, _: Any) -> Any:
            nonlocal before
            if event == "opcode":
                last, before = before, frame.f_lasti
                if before in where.within or (last in where.tested and before < last):
                    self._count(frame, " within")
            return opcode

        return opcode

    def _count(self, frame: FrameType, how: str) -> None:
        self._left -= 1
        if self._left == 0:
            self.stop()
            self.at = f"{frame.f_code.co_qualname}:{frame.f_lineno}{how}"
            raise Interruption


def ours(frame: FrameType | None) -> bool:
    """Whether it is the package's, or one that is written in Python and works for it."""
    while frame is not None:
        if PACKAGE in frame.f_code.co_filename:
            return True
        file = frame.f_code.co_filename
        if not (file.endswith(HELPERS) or any(folder in file for folder in DJANGO)):
            return False
        frame = frame.f_back
    return False


class Points(NamedTuple):
    """Where in a function handlers run.

    Attributes:
        begin: the instruction with which it begins.
        within: those that jump back or go on after a ``yield``.
        tested: those of Python 3.11 that jump back if the condition of a ``while`` holds: handlers
            run when it has been looked at, and before the body.
    """

    begin: int
    within: frozenset[int]
    tested: frozenset[int]


@functools.cache
def points(code: CodeType) -> Points:
    """Where in this function handlers run."""
    begins, within, tested = list[int](), set[int](), set[int]()
    longer: int | None = None
    for each in dis.get_instructions(code):
        # The tracer is told of what lengthens an argument, and not of the instruction behind it.
        at = each.offset if longer is None else longer
        longer = at if each.opname == "EXTENDED_ARG" else None
        if each.opname == "RESUME":
            begins.append(at)
        if each.opname == "JUMP_BACKWARD" or (each.opname == "RESUME" and (each.arg or 0) & 3 == 1):
            within.add(at)
        elif each.opname.startswith("POP_JUMP_BACKWARD"):
            tested.add(at)
    return Points(begins[0], frozenset(within), frozenset(tested))


# -- scenarios ------------------------------------------------------------------------------------


def block(lock: Lock) -> None:
    """Enter and leave."""
    with lock:
        pass


def extended(lock: Lock) -> None:
    """Extend in a block."""
    with lock as lease:
        lease.extend()
        assert lease.remaining() > 0


def by_stack(lock: Lock) -> None:
    """Enter by what asks the class for ``__exit__``."""
    with ExitStack() as stack:
        stack.enter_context(lock)


def decorated(lock: Lock) -> None:
    """Call a function that runs under the lock."""
    lock(lambda: None)()


def by_acquire(lock: Lock) -> None:
    """Acquire and release, as who is careful does it."""
    lease = None
    try:
        lease = lock.acquire()
    finally:
        if lease is not None:
            again(lease)


def again(lease: Lease) -> None:
    """Release; if that is interrupted, release once more."""
    try:
        lease.release()
    except BaseException:
        lease.release()
        raise


def waiting(lock: Lock) -> None:
    """Stand in line for what a thread releases."""
    holder = lock.acquire()
    thread = threading.Timer(0.002, holder.release)
    thread.start()
    try:
        with lock:
            pass
    finally:
        Injector.stop()
        thread.join()
        holder.release()


def outvoting(lock: Lock) -> None:
    """Enter and leave while a rival has the name on one node, where nothing is to be undone."""
    with lock:
        pass


async def ablock(lock: Lock) -> None:
    """Enter and leave in a task."""
    async with lock:
        await asyncio.sleep(0)


async def aextended(lock: Lock) -> None:
    """Extend in a task."""
    async with lock as lease:
        await lease.aextend()


async def arenewed(lock: Lock, *, until: Callable[[], object] = sys.getprofile) -> None:
    """Hold until the watchdog of the loop has renewed the lease twice, or was interrupted."""
    never = RenewalSchedule(lag=60.0, grace=60.0)  # for the thread, which would step in
    with (
        patch("django_redlock.leases.lease.RENEWALS", 20_000),
        patch.object(watchdog, "_of_loops", never),
    ):
        async with lock as lease:
            end = time.monotonic() + PATIENCE
            for _ in range(2):
                before = lease.grant.deadline
                while lease.grant.deadline == before and until():
                    await asyncio.sleep(0)
                    if time.monotonic() > end:
                        Injector.stop()
                        raise TimeoutError("the loop renews nothing")


SCENARIOS: dict[str, Callable[[Lock], Any]] = {
    each.__name__: each
    for each in (block, extended, by_stack, decorated, by_acquire, waiting, outvoting)
}
SCENARIOS |= transactions.SCENARIOS
TASKS: dict[str, Callable[[Lock], Awaitable[None]]] = {
    each.__name__: each for each in (ablock, aextended, arenewed)
}
FIRST = "first"  # a block whose nodes have to be connected
# The first instruction of these is before the ``try``.
ENDS = {"BlockExit._leave", "AsyncBlockExit._leave"}
# An exception that is kept keeps no lease.
KEPT = {"block", "extended", "decorated", "ablock", "atomic", "atomic_failing"}


# -- broken variants ------------------------------------------------------------------------------


class HeldByTheLock(Lock):
    """The lease of a block is held by the ``Lock``, and released by ``__exit__`` alone."""

    def __enter__(self) -> Lease:
        self.lease = self.acquire()
        return self.lease

    def __exit__(self, *error: object) -> None:
        self.lease.release()


def _leave(block: Block, lock: Lock, kind: type[BaseException] | None, *_: object) -> None:
    """Release once, also where that is interrupted."""
    block.held.release()


class Trusting(LoopWatchdog):
    """Believes that a question is on its way until it has heard the answer and settled it."""

    def _ask_next(self, kind: int, loop: asyncio.AbstractEventLoop) -> None:
        if kind not in self._asked:
            super()._ask_next(kind, loop)

    def _heard(self, renewal: Any, steps: Any, kind: int, loop: Any, answered: Any) -> None:
        self._go_on(renewal, steps, kind, loop, answered)
        self._asked.pop(kind, None)
        self._ask_next(kind, loop)


def break_(variant: str) -> None:
    """Make what the tests must catch."""
    if variant == "condition":  # what the watchdog slept on
        broken = Watchdog()
        broken._lock = threading.Condition(threading.RLock())  # type: ignore[assignment]
        vars(locks)["watchdog"] = broken
    elif variant == "event":  # what awaited a connection
        vars(node_module)["Latch"] = threading.Event
    elif variant in transactions.VARIANTS:
        transactions.VARIANTS[variant]()
    elif variant == "once":
        leave._leave = _leave  # type: ignore[method-assign,assignment]
    elif variant == "renewed":
        Lease.torn = False  # type: ignore[method-assign,assignment]
    elif variant == "trusting":
        watchdog._in_loops = PerLoop(Trusting)
    elif variant not in ("", "held-by-the-lock"):
        raise ValueError(variant)


# -- running --------------------------------------------------------------------------------------


class Storm:
    """A scenario, interrupted at each of its points."""

    def __init__(self, scenario: str, urls: str, variant: str) -> None:
        self.within = 10.0 if variant else 60.0  # seconds
        self.scenario, self.urls = scenario, urls.split(",") if urls else []
        self._memory = MemoryNodes([MemoryNode() for _ in range(3)])
        self.said: dict[str, Any] = {"points": 0, "torn": 0, "left": [], "strange": []}
        self.backend, self.other = self._backend(renew=True), self._backend(renew=False)
        kind = HeldByTheLock if variant == "held-by-the-lock" else Lock
        described = LockTemplate(lambda _: self.backend)(NAME, wait=PATIENCE)
        self.lock = kind(lambda _: self.backend, "default", NAME, described._options)
        self.free = LockTemplate(lambda _: self.other)(NAME, wait=PATIENCE if urls else 2)
        self.one = self._backend(renew=False, size=1)
        self.rival = LockTemplate(lambda _: self.one)(NAME, wait=PATIENCE)

    def _backend(self, *, renew: bool, size: int = 3) -> Backend:
        group: Group = self._memory
        if self.urls:
            group = group_of(self.urls[:size], NODE_TIMEOUT)
        elif size < len(self._memory.nodes):
            group = MemoryNodes(self._memory.nodes[:size])
        policy = Policy(size=size, max_ttl=600)
        more = transactions.wired() if self.scenario in transactions.SCENARIOS else {}
        return Backend("default", group, policy, ttl=TTL, renew=renew, **more)

    def rage(self, most: int) -> dict[str, Any]:
        """Raise at every point, or at so many spread over them; then look what is broken."""
        if self.scenario in TASKS:
            block(self.lock)  # starts the watchdog
            before = Afterwards(self.backend.group, self.other.group, within=self.within)
            asyncio.run(self._tasks(most, before))
            self.said["problems"] += before.left()
            return self.said
        scenario = SCENARIOS[block.__name__ if self.scenario == FIRST else self.scenario]
        for _ in range(3):
            block(self.lock)
            self.rival.acquire().release()
        groups = (each.group for each in (self.backend, self.other, self.one))
        before = Afterwards(*groups, within=self.within)
        gc.freeze()  # what is there so far is not looked at when the others are collected
        for number in itertools.count(1):
            if self.scenario == FIRST:
                self.backend.group.close()  # as if the nodes had closed idle connections
            if self._enough(most) or not self._point(scenario, number):
                break
        gc.unfreeze()
        self.said["problems"] = before.problems(self.backend)
        return self.said

    def _point(self, scenario: Callable[[Lock], object], number: int) -> bool:
        """Raise at this point; whether there was one."""
        injector, kept = Injector(number), None
        rival = self.rival.acquire() if self.scenario == outvoting.__name__ else None
        injector.start()
        try:
            scenario(self.lock)
        except Interruption as error:
            kept = error if self.scenario in KEPT else None
        except Exception as error:  # noqa: BLE001 - this is what it looks for
            self._note(error, injector.at)
        finally:
            injector.stop()
            if rival is not None:
                rival.release()
        if injector.at:
            self.said["points"] += 1
            if self.scenario.endswith(by_stack.__name__):
                gc.collect()  # the stack's own frame keeps the error, which keeps the frame
            torn = self._torn(injector.at)
            if self.scenario in transactions.SCENARIOS:
                found = transactions.left(torn=bool(torn))
                self.said["left"] += [f"{injector.at}: {each}" for each in found]
            try:
                for lease in torn:
                    lease.release()
                self.free.acquire().release()
            except (LockTaken, NodesUnavailable) as error:
                self.said["left"].append(f"{injector.at}: {error}")
        del kept
        return bool(injector.at)

    def _torn(self, at: str) -> list[Lease]:
        """The leases of torn blocks after an interruption there; see that they may be."""
        leases = in_blocks()
        for lease in leases:
            self.said["torn"] += 1
            if at.partition(":")[0] not in ENDS or " " in at:
                self.said["left"].append(f"{at}: the lease of a torn block")
            if lease.renew_at < math.inf:
                self.said["left"].append(f"{at}: the lease of a torn block is renewed")
        return leases

    def _enough(self, most: int) -> bool:
        return len(self.said["left"]) + len(self.said["strange"]) >= most

    def _note(self, error: BaseException, at: str) -> None:
        self.said["strange"].append(f"{at}: {error!r}")

    async def _tasks(self, most: int, before: Afterwards) -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(self._complain)
        scenario = TASKS[self.scenario]
        for _ in range(3):
            await scenario(self.lock)
        for number in itertools.count(1):
            if self._enough(most) or not await self._apoint(scenario, number):
                break
        self.said["problems"] = await before.aproblems(self.backend)

    async def _apoint(self, scenario: Callable[[Lock], Awaitable[None]], number: int) -> bool:
        injector = Injector(number)
        task = asyncio.ensure_future(scenario(self.lock))
        injector.start()
        await asyncio.wait([task])
        injector.stop()
        raised = task.exception()
        if raised is not None and not isinstance(raised, Interruption):
            self._note(raised, injector.at)
        kept = raised if self.scenario in KEPT else None
        del raised, task
        if injector.at:
            self.said["points"] += 1
            torn = self._torn(injector.at)
            try:
                for lease in torn:
                    await lease.arelease()
                await (await self.free.aacquire()).arelease()
                if self.scenario == arenewed.__name__:
                    await arenewed(self.lock, until=lambda: True)
            except TimeoutError as error:
                self._note(error, injector.at)
            except (LockTaken, NodesUnavailable) as error:
                self.said["left"].append(f"{injector.at}: {error}")
        del kept
        return bool(injector.at)

    def _complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not isinstance(context.get("exception"), Interruption):
            self.said["strange"].append(str(context))


def main() -> None:
    """Print what became of it."""
    scenario, urls, variant = [*sys.argv[1:], "", ""][:3]
    logging.disable(logging.CRITICAL)
    swallowed: list[str] = []
    sys.unraisablehook = lambda what: swallowed.append(f"{what.object!r}: {what.exc_value!r}")
    break_(variant)
    gc.disable()  # it would collect at other points each time
    start = time.monotonic()
    said = Storm(scenario, urls, variant).rage(most=1)
    said["swallowed"] = swallowed
    said["seconds"] = time.monotonic() - start
    print(json.dumps(said), flush=True)
    sys.stdout.flush()
    import os

    os._exit(0)  # a broken variant has threads that hang


if __name__ == "__main__":
    main()

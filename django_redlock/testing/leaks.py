"""Find the locks that a test leaves behind, and free them.

A ``Watch`` listens to the events of this process, so it knows each lease that was acquired during
a test, and where. At the end it looks at those that were not released. It finds only what this
process has acquired, on whatever nodes: other processes may use the same nodes meanwhile.
"""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self
from unittest import TestCase, TestResult

from django_redlock import events
from django_redlock.backend import Backend
from django_redlock.core import hold
from django_redlock.core.protocol import Answer, Grant
from django_redlock.core.reasons import printable
from django_redlock.core.slots import shown
from django_redlock.events import Event, EventKind
from django_redlock.inspection import survey
from django_redlock.interruption import drain
from django_redlock.leases.lease import Lease
from django_redlock.nodes.memory import MemoryNodes

if TYPE_CHECKING:
    Mixed = TestCase
else:
    Mixed = object

KINDS: Final = (EventKind.ACQUIRED, EventKind.RELEASED, EventKind.LOST, EventKind.GIVEN)
OURS: Final = str(Path(__file__).parents[1])  # the package
# What calls a block or a decorated function in the caller's name.
BETWEEN: Final = ("contextlib.py", "functools.py", "unittest/case.py", "unittest/async_case.py")


class Acquired(NamedTuple):
    """A lease that was acquired, as far as it is known when it is forgotten.

    Attributes:
        lease: a weak reference to it: what keeps it alive is the program's affair.
        backend, grant: what frees its names.
        where: the caller's file, row and function.
        thread: the name of the thread.
    """

    lease: weakref.ref[Lease]
    backend: Backend
    grant: Grant
    where: str
    thread: str

    def line(self, why: str, holder: str) -> str:
        """Return what is said of a lock that was left behind."""
        target = self.grant.target
        slot = shown(target.slot.number if target.slot else None)
        names = " and ".join(f"{name!r}{slot}" for name in target.names)
        held = f", held by {printable(holder)}" if holder else ""
        thread = "" if self.thread == threading.main_thread().name else f" by {self.thread}"
        return f"{names} of {self.backend.alias!r}{held}, {why}; acquired{thread} at {self.where}"


class Watch:
    """Notes which locks are acquired and released, from its beginning to its end."""

    def __init__(self) -> None:
        self._acquired: dict[str, Acquired] = {}  # by nonce
        self._given: set[str] = set()
        self._before: dict[str, set[str]] = {}

    def __enter__(self) -> Self:
        self._before = {url: set(node.keys) for url, node in _memory().items()}
        _watches.append(self)
        events.subscribe(self._hear, KINDS)
        return self

    def __exit__(self, *_: object) -> None:
        events.unsubscribe(self._hear, KINDS)
        if self in _watches:
            _watches.remove(self)

    def _hear(self, event: Event) -> None:
        lease: Any = event.lease
        if event.kind is EventKind.ACQUIRED:
            self.add(lease)
        elif event.kind is EventKind.GIVEN:
            self._given.add(lease.grant.nonce)
        else:
            self._acquired.pop(lease.grant.nonce, None)

    def add(self, lease: Lease) -> None:
        """Note a lease, and who acquires it."""
        where, thread = _caller(sys._getframe(1)), threading.current_thread().name  # noqa: SLF001 - the whole stack would be slow
        acquired = Acquired(weakref.ref(lease), lease.backend, lease.grant, where, thread)
        self._acquired[lease.grant.nonce] = acquired

    def check(self) -> None:
        """Free what was left behind, also of names that are kept and of queued tasks.

        Raises:
            AssertionError: there are locks that were left behind; the text lists them.
        """
        if text := self.report():
            raise AssertionError(text)

    def report(self) -> str:
        """Free what was left behind; return the text that lists the locks among it, or ""."""
        left = self.free()
        if not left:
            return ""
        what = "a lock" if len(left) == 1 else f"{len(left)} locks"
        return f"this test left {what} behind:" + "".join(f"\n  {each}" for each in left)

    def free(self) -> list[str]:
        """Free what was left behind; return a line for each lock among it."""
        if self._acquired:
            gc.collect()  # the end of a generator's block may be to come
        left = []
        for nonce, acquired in drain(self._acquired.popitem):
            found = _free(acquired, given=nonce in self._given)
            if found:
                left.append(found)
        for url, node in _memory().items():
            before = self._before.get(url, set())
            for key in [key for key in tuple(node.keys) if key not in before]:
                node.keys.pop(key, None)
        return left[::-1]


_watches: Final[list[Watch]] = []  # those in force


def note(lease: Lease) -> None:
    """Let the watches know of a lease of which no event tells."""
    for watch in tuple(_watches):
        watch.add(lease)


def _free(acquired: Acquired, *, given: bool) -> str:
    """Free the names of a lease if they are still taken; return "" if they are not."""
    lease, backend, grant = acquired.lease(), acquired.backend, acquired.grant
    held = lease is not None and lease.held
    if lease is not None and not (held or given):
        return ""  # released, or lost
    holder = _holder(backend, grant)
    if lease is not None and held:
        why = "its block interrupted before the end" if lease.torn else "not released"
        lease.release()
        return acquired.line(why, holder)
    votes = backend.run(hold.release(backend.policy, grant))
    if sum(vote.answer is Answer.YES for vote in votes) < backend.policy.majority:
        return ""
    why = "given away and not adopted" if given else "forgotten without a release"
    return acquired.line(why, holder)


def _holder(backend: Backend, grant: Grant) -> str:
    """Return the owner label that the nodes have, or "" if they do not reply."""
    found = survey(backend, grant.target.entries[:1]).locks
    return found[0].holder if found else ""


def _memory() -> dict[str, Any]:
    return dict(MemoryNodes._by_name)  # noqa: SLF001 - for tests


def _caller(frame: FrameType | None) -> str:
    """Return the place in the program that acquires: outside of this package and of helpers."""
    while frame is not None and frame.f_back is not None:
        file = frame.f_code.co_filename
        if not (file.startswith(OURS) or file.endswith(BETWEEN)):
            break
        frame = frame.f_back
    if frame is None:
        return "an unknown place"
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"


class LeavesNoLocks(Mixed):
    """A mixin for test cases: a test that leaves a lock behind fails, and the lock is freed.

    Write it first: ``class ReportTests(LeavesNoLocks, TestCase)``. It looks when ``tearDown`` and
    all clean-up functions of the test have run, at the locks that were acquired since ``setUp``
    began, on all aliases.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        order = cls.mro()
        if TestCase in order and order.index(TestCase) < order.index(LeavesNoLocks):
            # TestCase.run calls no other, so nothing would be checked.
            raise TypeError(
                f"{cls.__qualname__} would check nothing: write LeavesNoLocks first, as in "
                f"class {cls.__name__}(LeavesNoLocks, TestCase)"
            )

    def run(self, result: TestResult | None = None) -> TestResult | None:
        """Run the test."""
        watch = Watch()
        self.addCleanup(watch.check)  # the first one that is added runs last
        with watch:
            return super().run(result)

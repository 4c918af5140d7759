"""What must be true after a storm, however it raged: nothing is locked, watched leases are kept.

``Afterwards`` is made before the storm, and ``problems`` or ``aproblems`` is asked after it:

* every lock of the package can be taken by another thread;
* the watchdog renews a new lease, and tells its holder when it is lost;
* descriptors and threads are as many as before.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any
from unittest.mock import patch

import django_redlock.leases.lease
from django_redlock.backend import Backend, Group
from django_redlock.core import hold
from django_redlock.interruption import ThreadWakeup
from django_redlock.leases.lease import Lease
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.node import Node
from tests.support.loops import in_links, open_files, threads

LOCKS = (type(threading.Lock()), type(threading.RLock()))
PURE = (threading.Condition, threading.Event, threading.Semaphore)
TTL = 20.0  # of the lease that is renewed and lost; no stall of the machine ends it …
RENEWALS = 200  # … and it is renewed every 0.1 s


class Afterwards:
    """Remembers how many descriptors and threads there were.

    Args:
        groups: whose idle connections do not count: they serve others. Nor does the last one that
            was opened to each node, which the node keeps to tell of it.
        within: seconds in which all must be well.
    """

    def __init__(self, *groups: Group, within: float = 60.0) -> None:
        self.within = within
        nodes = [node for group in groups for node in getattr(group, "nodes", ())]
        self._nodes = [node for node in nodes if isinstance(node, Node)]
        self._files, self._threads = self._count_files(), threads()

    def problems(self, backend: Backend) -> list[str]:
        """What is not well, where threads take locks of this alias; of the loops, too."""
        with patch.object(django_redlock.leases.lease, "RENEWALS", RENEWALS):
            found = [*locked(), *self._watched(backend)]
            if not found:
                found += asyncio.run(self._awatched(backend))
        return found or self.left()

    async def aproblems(self, backend: Backend) -> list[str]:
        """The same in the event loop that saw the storm; ask ``left`` when it has ended."""
        with patch.object(django_redlock.leases.lease, "RENEWALS", RENEWALS):
            found = [*locked(), *(await self._awatched(backend))]
            if not found:
                found += await asyncio.to_thread(self._watched, backend)
        return found

    # -- the watchdog ---------------------------------------------------------------------------

    def _watched(self, backend: Backend) -> list[str]:
        """Whether the thread renews a new lease, and tells of its loss."""
        told: list[Lease] = []
        lease: Lease | None = None

        def take() -> None:
            nonlocal lease
            lease = watched(backend, told)("afterwards", wait=self.within / 2).acquire()

        thread = threading.Thread(target=take, daemon=True)
        thread.start()  # a thread of its own: it may hang
        thread.join(self.within)
        if lease is None:
            return ["no lease could be taken"]
        taken, before = lease, lease.grant.deadline
        if not self._soon(lambda: taken.grant.deadline > before):
            return ["the watchdog's thread renews nothing"]
        backend.run(hold.release(backend.policy, lease.grant))  # by force
        if not self._soon(lambda: told == [lease]):
            return ["the watchdog's thread tells of no loss"]
        return []

    async def _awatched(self, backend: Backend) -> list[str]:
        """Whether it does for a lease of a task, too."""
        told: list[Lease] = []
        lock = watched(backend, told)("afterwards", wait=self.within / 2)
        lease = await asyncio.wait_for(lock.aacquire(), self.within)
        before = lease.grant.deadline
        if not await self._asoon(lambda: lease.grant.deadline > before):
            return ["the watchdog's thread renews nothing of a task"]
        await backend.arun(hold.release(backend.policy, lease.grant))  # by force
        if not await self._asoon(lambda: told == [lease]):
            return ["the watchdog's thread tells a task of no loss"]
        return []

    def _soon(self, condition: Callable[[], object]) -> bool:
        end = time.monotonic() + self.within
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(0.005)
        return True

    async def _asoon(self, condition: Callable[[], object]) -> bool:
        end = time.monotonic() + self.within
        while not condition():
            if time.monotonic() > end:
                return False
            await asyncio.sleep(0.005)
        return True

    # -- what is left ---------------------------------------------------------------------------

    def left(self) -> list[str]:
        """Of which there are more than before."""
        gc.collect()
        found = []
        if not self._soon(lambda: self._count_files() <= self._files):
            found.append(f"{self._count_files() - self._files} more descriptors")
        if not self._soon(lambda: threads() <= self._threads):
            found.append(f"{threads() - self._threads} more threads")
        return found

    def _count_files(self) -> int:
        idle = {each for node in self._nodes for each in (*node._free, *in_links(node), node._last)}
        return open_files() - sum(
            connection is not None and not connection.fault for connection in idle
        )


def watched(backend: Backend, told: list[Lease]) -> LockTemplate:
    """What makes locks that are renewed, and whose loss is noted."""
    template = LockTemplate(lambda _: backend)
    return template.using(None, ttl=TTL, renew=True, on_lost=told.append)


# -- locks ----------------------------------------------------------------------------------------


def locked() -> list[str]:
    """The locks of the package that another thread cannot take."""
    found: list[str] = []

    def look() -> None:
        for name, lock in _locks():
            # Others may be working, each for a moment.
            if lock.acquire(timeout=5):
                lock.release()
            else:
                found.append(f"{name} is locked")

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return sorted(set(found))


def _locks() -> Iterator[tuple[str, Any]]:
    """Every lock that a module or an object of the package has, and what it is called."""
    for each in gc.get_objects():
        kind = type(each)
        if not str(kind.__module__).startswith("django_redlock") or kind is ThreadWakeup:
            continue  # one is locked until it wakes a thread
        slots: Iterable[str] = getattr(type(each), "__slots__", ())
        values = {name: getattr(each, name, None) for name in slots}
        values.update(getattr(each, "__dict__", {}))
        yield from _named(type(each).__name__, values)
    for name, module in tuple(sys.modules.items()):
        if name.startswith("django_redlock") and isinstance(module, ModuleType):
            yield from _named(name, vars(module))


def _named(owner: str, values: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in tuple(values.items()):
        if isinstance(value, LOCKS):
            yield f"{owner}.{name}", value
        elif isinstance(value, PURE):
            inner: Any = getattr(value, "_cond", value)
            yield f"{owner}.{name}", inner._lock

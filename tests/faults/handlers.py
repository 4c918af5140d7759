"""A process whose signal handler locks at every call of what a lock does; run by tests.

Arguments: the weather of the nodes, their URLs, and, for broken variants that the tests must catch,
a variant's name. Prints one JSON line: at how many points the handler ran, what was raised, what
stayed taken, which connections were out of step, and what was not well at the end.

The handler takes a lock, prolongs it and releases it, prolongs and releases a lease that it has
kept since its last run, and takes another one. It uses the nodes, connections and locks of the code
that it interrupts, and lets that go on.
"""

from __future__ import annotations

import gc
import itertools
import json
import logging
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any
from urllib.parse import urlsplit

import redis

from django_redlock import NodesUnavailable, events
from django_redlock.backend import Backend
from django_redlock.core.commands import Release
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Command
from django_redlock.leases.lease import Lease
from django_redlock.locks.lock import Lock
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.connection import Connection, load, nobody
from django_redlock.nodes.faults import no_answer
from django_redlock.nodes.group import NodeGroup
from django_redlock.nodes.memory import MemoryNode, MemoryNodes
from django_redlock.nodes.node import Node, Undo, UndoQueue
from tests.support.loops import faults_noted, group_of, out_of_step
from tests.support.proxy import Proxy
from tests.support.sets import sets_of
from tests.support.waiting import eventually

from .afterwards import Afterwards
from .injected import Injector

TTL = 60.0
NODE_TIMEOUT = 5.0
BY_PROXY = {"owed", "owing"}
SPARE = 4  # connections to each node
LAST = 2  # the place of the node that is behind the proxy


class Handler(Injector):
    """Does something at the point of this number, and lets the code go on."""

    def __init__(self, number: int, errand: Callable[[], object]) -> None:
        super().__init__(number)
        self._errand = errand

    def _count(self, frame: Any, how: str) -> None:
        self._left -= 1
        if self._left == 0:
            self.stop()
            self.at = f"{frame.f_code.co_qualname}:{frame.f_lineno}{how}"
            self._errand()


def at_each_point(
    act: Callable[[], object], errand: Callable[[], object], prepare: Callable[[], object] = bool
) -> int:
    """Run the errand, as a signal handler does, at each point of an act; return their number."""
    for number in itertools.count(1):
        if sys.version_info >= (3, 12):  # tracers hear of instructions from the second call on
            prepare()
            _run(Handler(0, errand), act)
        prepare()
        if not _run(Handler(number, errand), act).at:
            return number - 1
    raise AssertionError


def _run(handler: Handler, act: Callable[[], object]) -> Handler:
    handler.start()
    try:
        act()
    finally:
        handler.stop()
    return handler


class Closed(Afterwards):
    """Counts when no connection is open: those by the proxy have descriptors and a thread here."""

    def __init__(self, group: NodeGroup, *, within: float) -> None:
        super().__init__(within=within)
        self._group = group

    def left(self) -> list[str]:
        """Of which there are more than before."""
        self._group.close()
        return super().left()


class Storm:
    """The acts of a program, each with the handler at each of its points."""

    def __init__(self, urls: list[str], proxy: Proxy) -> None:
        self.proxy = proxy
        self._clients = [redis.Redis.from_url(url) for url in urls]
        for each in self._clients:
            each.ping()  # their descriptors are there before the storm
        self.group: NodeGroup = group_of(urls, NODE_TIMEOUT)
        in_memory = Backend("default", MemoryNodes([MemoryNode()]), Policy(size=1))
        LockTemplate(lambda _: in_memory)("watchdog").acquire().release()  # starts its thread
        self._before = Closed(self.group, within=20.0)
        self.backend = Backend("default", self.group, Policy(size=3), ttl=TTL)
        self.redlock = LockTemplate(lambda _: self.backend)
        self.lock: Lock = self.redlock("shared")
        self.inner: Lock = self.redlock("inner")
        self.kept = self.redlock("kept").acquire()
        self.late: Lease | None = None  # to the grant of which the last node has not replied
        self.raised: list[str] = []
        self.said: dict[str, Any] = {"points": 0, "strange": [], "left": []}

    # -- what the handler does ------------------------------------------------------------------

    def errand(self) -> None:
        """Lock, extend and release."""
        try:
            late, self.late = self.late, None
            if late is not None:
                late.release()
            with self.inner as lease, self._hanging():
                lease.extend()
            with self._hanging():
                self.kept.extend()
            self.kept.release()
            self.kept = self.redlock("kept").acquire()
        except Exception as error:  # noqa: BLE001 - this is what it looks for
            votes = [*map(str, getattr(error, "votes", ()))]
            self.raised.append(f"in the handler: {error!r} {votes}")

    def _hanging(self) -> AbstractContextManager[object]:
        """Where a node hangs, a lease that stands on two of three may not be prolonged."""
        return suppress(NodesUnavailable) if self.proxy.held else nullcontext()

    # -- what the program does ------------------------------------------------------------------

    @contextmanager
    def calm(self) -> Iterator[Callable[[], object]]:
        """All is well: requests go by sets, an extension by each connection."""

        def act() -> None:
            with self.lock as lease:
                lease.extend()
                lease.ensure()

        yield act

    @contextmanager
    def watched(self) -> Iterator[Callable[[], object]]:
        """Somebody watches the nodes, so each request goes by each connection."""
        events.watch_nodes(_ignore)
        with self.calm() as act:
            yield act
        events.unwatch_nodes(_ignore)

    @contextmanager
    def wounded(self) -> Iterator[Callable[[], object]]:
        """The first node has lost the lease, and the one that the handler extends: both heal."""
        with self.lock as lease:
            keys = [key for each in (lease, self.kept) for key in each.grant.target.keys]
            # An extension that overtakes the grant to another node would find two without the keys.
            eventually(lambda: self._all_have(keys, lease), every=0.1)
            self._clients[0].delete(*keys)
            yield lease.extend

    def _all_have(self, keys: list[str], lease: Lease) -> bool:
        """Whether each node has the leases; one that was being connected gets them now."""
        if all(each.exists(*keys) == len(keys) for each in self._clients):
            return True
        lease.extend()
        self.kept.extend()
        return False

    @contextmanager
    def undoing(self) -> Iterator[Callable[[], object]]:
        """Each node has something to undo, which goes before the next request."""
        with self.lock as lease:
            self._one_by_one()
            target = Policy(size=1).target(["n"])
            for node in self.group.nodes:
                for number in range(2):
                    undo = Release(f"{number:032x}", bool, target, lasts=TTL)
                    node.undos.add(Undo(undo, time.monotonic()))
            yield lease.extend

    @contextmanager
    def stalled(self) -> Iterator[Callable[[], object]]:
        """A connection to the last node was stalled, and its reply has come."""
        node = self.group.nodes[LAST]
        with self.lock as lease:
            self._one_by_one()
            owing = node._free.pop()
            owing.send(load(Command.LOOK, nobody))
            node._stalled.append(owing)
            node.down_reason = no_answer(9.0)
            select.select([owing.fileno], [], [], NODE_TIMEOUT)
            yield lease.extend

    @contextmanager
    def owed(self) -> Iterator[Callable[[], object]]:
        """A connection owes the reply to a grant that the handler undoes, and others use it."""
        with self.lock as lease:
            self._calm_down()
            self._one_by_one()
            self.proxy.holding = 1
            self.late = self.redlock("late").acquire()
            sets_of(self.group).close()

            def act() -> None:
                with suppress(NodesUnavailable):  # it may stand on two nodes, of which one hangs
                    lease.extend()

            yield act
            self.proxy.let_go()

    @contextmanager
    def owing(self) -> Iterator[Callable[[], object]]:
        """A set owes the reply to a grant that is undone."""
        self._calm_down()
        while sets_of(self.group)._free:
            sets_of(self.group).dissolve(sets_of(self.group)._free.pop())
        self.proxy.holding = 1
        lease = self.lock.acquire()

        def act() -> None:
            lease.release()
            with self.lock:
                pass

        yield act
        self.proxy.let_go()

    def _one_by_one(self) -> None:
        """End the sets, and have more connections than a request and the handler need."""
        sets_of(self.group).close()
        for node in self.group.nodes:
            while len(node._free) < SPARE:
                connection = node._connect(bool)
                assert connection is not None
                node._welcome(connection)
                node._free.append(connection)

    def _calm_down(self) -> None:
        """Wait until the last node has replied to everything."""
        eventually(lambda: not self.proxy.held)
        node = self.group.nodes[LAST]

        def all_is_read() -> bool:
            node.settle(time.monotonic())
            return not any(each.owed for each in (*node._free, *node._stalled))

        eventually(all_is_read)

    # -- running --------------------------------------------------------------------------------

    def rage(self, weather: str) -> dict[str, Any]:
        """Run the handler at every point, until something is wrong."""
        prepared: Callable[[], Any] = getattr(self, weather)
        for _ in range(2):
            self._point(prepared, 0)
            self.errand()
        self.said["points"] = 0
        with faults_noted(self.group) as faults:
            for number in itertools.count(1):
                if not self._point(prepared, number) or self.said["strange"] or self.said["left"]:
                    break
            self.said["out_of_step"] = out_of_step(faults)
        self.kept.release()
        self.said["problems"] = self._before.problems(self.backend)
        return self.said

    def _point(self, prepared: Callable[[], Any], number: int) -> bool:
        handler = Handler(number, self.errand)
        try:
            with prepared() as act:
                handler.start()
                try:
                    act()
                finally:
                    handler.stop()
        except Exception as error:  # noqa: BLE001 - this is what it looks for
            self.raised.append(repr(error))
        self.proxy.let_go()
        self.said["strange"] += [f"{handler.at}: {each}" for each in self.raised]
        self.raised.clear()
        free = sets_of(self.group)._free
        if len(free) > len(set(free)):
            self.said["strange"].append(f"{handler.at}: a set is there twice")
        if handler.at:
            self.said["points"] += 1
            for name in ("shared", "inner", *(["late"] if self.late is None else [])):
                lease = self.redlock(name, wait=NODE_TIMEOUT).try_acquire()
                if lease is None:
                    self.said["left"].append(f"{handler.at}: {name}")
                else:
                    lease.release()
        return bool(handler.at)


def _ignore(_: object) -> None:
    pass


# -- broken variants ------------------------------------------------------------------------------


def read_then_remove(pool: Node, now: float) -> None:
    """Remove a connection from the list after it was read, when a handler may have it."""
    for connection in tuple(pool._stalled):
        connection.read()
        if connection.fault or not connection.owed:
            pool._stalled.remove(connection)
            pool._free.append(connection)
            pool.down_reason = None


def iter_then_next(queue: UndoQueue) -> Undo | None:
    """Make the iterator in one call, and use it in the next."""
    with queue._lock:
        return next(iter(queue.kept.values()), None)


def note_in_two_steps(connection: Connection, owed: Any, packed: bytes, size: int) -> bool:
    """Note what is owed in one call, and what is to be sent in the next."""
    if connection.fault or connection.in_set:
        return False
    connection.owed.extend(owed)
    connection._unsent.append(packed)
    connection.unsent += len(packed)
    connection.backlog += size
    return True


VARIANTS: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "read-then-remove": (Node, "_read_stalled", read_then_remove),
    "iter-then-next": (UndoQueue, "_oldest", iter_then_next),
    "two-steps": (Connection, "_note", note_in_two_steps),
}


def main() -> None:
    """Print what became of it."""
    weather, urls, variant = [*sys.argv[1:], ""][:3]
    logging.disable(logging.CRITICAL)
    if variant:
        kind, name, broken = VARIANTS[variant]
        file = str(sys.modules[kind.__module__].__file__)  # else it would have no points
        broken.__code__ = broken.__code__.replace(co_filename=file)
        setattr(kind, name, broken)
    gc.disable()
    *direct, last = urls.split(",")
    with Proxy(int(urlsplit(last).port or 0)) as proxy:
        storm = Storm([*direct, proxy.url if weather in BY_PROXY else last], proxy)
        said = storm.rage(weather)
        print(json.dumps(said), flush=True)
        os._exit(0)  # a broken variant has threads that hang


if __name__ == "__main__":
    main()

"""A lock that is asked for in the middle of another one's request, and who may lock all the same.

A signal handler and a finalizer run between any two steps of the thread's own code. While the
thread asks the nodes they get no lock, and a release is sent by another thread. Receivers of
signals, listeners and log handlers are called outside of these steps.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import pytest

from django_redlock import events, signals
from django_redlock.backend import Backend
from django_redlock.core.commands import Release
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Request, Vote
from django_redlock.leases.lease import Lease
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes import node
from django_redlock.nodes.memory import MemoryNode, MemoryNodes
from django_redlock.testing import EmbeddedNodes
from tests.support.loops import group_of, keys_on, template, unguarded
from tests.support.waiting import eventually

HERE = threading.get_ident


class Steps(MemoryNodes):
    """Nodes that run an errand in the middle of the steps of a lock.

    Attributes:
        errand: is run once, when a step reads the clock ("step") or asks the nodes ("request").
        sent: the threads that sent a release, and its nonce.
    """

    def __init__(self) -> None:
        super().__init__([MemoryNode() for _ in range(3)])
        self.errand: dict[str, Callable[[], object]] = {}
        self.sent: list[tuple[int, str]] = []
        backend = Backend("default", self, Policy(size=3, clock=self.clock), renew=False)
        self.redlock = LockTemplate(lambda _: backend)

    def clock(self) -> float:
        """Tell the time."""
        self.errand.pop("step", int)()
        return time.monotonic()

    def ask(self, request: Request) -> list[Vote]:
        """Put a request to the nodes, for a thread or a task."""
        self.errand.pop("request", int)()
        if isinstance(request, Release):
            self.sent.append((HERE(), request.nonce))
        return super().ask(request)

    def lock(self, where: str, errand: Callable[[], object], *, task: bool = False) -> None:
        """Take and release a lock, with this errand in the middle of it."""

        async def work() -> None:
            async with self.redlock("outer"):
                pass

        self.errand[where] = errand
        if task:
            asyncio.run(work())
        else:
            with self.redlock("outer"):
                pass
        assert not self.errand


def by_handler(errand: Callable[[], object]) -> None:
    """A signal handler does it."""
    before = signal.signal(signal.SIGALRM, lambda *_: errand())
    try:
        signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)


def by_finalizer(errand: Callable[[], object]) -> None:
    """The ``__del__`` of an object does it that is forgotten."""
    type("Thing", (), {"__del__": lambda _: errand()})()


wheres = pytest.mark.parametrize("where", ["step", "request"])
ways = pytest.mark.parametrize("way", [by_handler, by_finalizer])


@ways
@pytest.mark.parametrize("how", ["acquire", "try_acquire", "__enter__"])
def test_a_lock_is_refused_there(way, how):
    """By an error that says what to do; the lock in whose steps it came is taken and released."""
    steps, errors = Steps(), list[str]()

    def errand() -> None:
        try:
            getattr(steps.redlock("inner"), how)()
        except RuntimeError as error:
            errors.append(str(error))

    steps.lock("request", lambda: way(errand))
    assert len(errors) == 1
    assert "signal handler" in errors[0]
    assert not any(node.keys for node in steps.nodes)


@ways
def test_a_lock_is_taken_between_two_requests(way):
    """Nothing is half done there."""
    steps, taken = Steps(), list[bool]()

    def errand() -> None:
        with steps.redlock("inner") as lease:
            taken.append(lease.held)

    steps.lock("step", lambda: way(errand))
    assert taken == [True]
    assert not any(node.keys for node in steps.nodes)


@ways
@pytest.mark.parametrize("task", [False, True], ids=["thread", "task"])
def test_a_release_there_is_sent_by_a_thread(way, task):
    """The lease ends at once."""
    steps, held = Steps(), list[bool]()
    lease = steps.redlock("inner").acquire()

    def errand() -> None:
        lease.release()
        held.append(lease.held)

    steps.lock("request", lambda: way(errand), task=task)
    assert held == [False]
    eventually(lambda: not any(node.keys for node in steps.nodes))
    assert HERE() not in {thread for thread, nonce in steps.sent if nonce == lease.grant.nonce}


@wheres
def test_another_thread_locks_meanwhile(where):
    """The steps of this one are no reason to refuse it."""
    steps, taken = Steps(), list[int]()

    def work() -> None:
        with steps.redlock("inner") as lease:
            taken.append(lease.fence)

    def errand() -> None:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    steps.lock(where, errand)
    assert len(taken) == 1


# -- callbacks run outside of the steps -----------------------------------------------------------


@contextmanager
def receiver(sent: Any, call: Callable[[], object]) -> Iterator[None]:
    """Call this when the signal is sent."""

    def receive(**_: object) -> None:
        call()

    sent.connect(receive)
    try:
        yield
    finally:
        sent.disconnect(receive)


@contextmanager
def listener(kind: events.EventKind, call: Callable[[], object]) -> Iterator[None]:
    """Call this at each event of a kind."""

    def listen(_: object) -> None:
        call()

    events.subscribe(listen, [kind])
    try:
        yield
    finally:
        events.unsubscribe(listen, [kind])


@contextmanager
def watcher(call: Callable[[], object]) -> Iterator[None]:
    """Call this when a node replies."""

    def watch(_: object) -> None:
        call()

    events.watch_nodes(watch)
    try:
        yield
    finally:
        events.unwatch_nodes(watch)


@contextmanager
def log_handler(words: str, call: Callable[[], object]) -> Iterator[None]:
    """Call this when a line with these words is logged."""

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if words in record.getMessage():
                call()

    logger, handler = logging.getLogger("django_redlock"), Handler()
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


SIGNALS = ["lock_acquired", "lock_released", "lock_refused", "lease_lost"]
KINDS = [events.EventKind[each] for each in ("ACQUIRED", "RELEASED", "REFUSED", "LOST")]
CALLED: dict[str, Callable[[Any], AbstractContextManager[None]]] = {
    **{each: partial(receiver, getattr(signals, each)) for each in SIGNALS},
    **{f"{kind}": partial(listener, kind) for kind in KINDS},
    "a reply": watcher,
    "a line of a lease": partial(log_handler, "lock lost"),
    "a line of a node": partial(log_handler, "too many releases"),
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[EmbeddedNodes]:
    """Three nodes without the guard."""
    with unguarded(3) as nodes:
        yield nodes


@pytest.mark.parametrize("called", CALLED)
def test_who_is_told_may_lock(called, nodes, monkeypatch):
    """Receivers, listeners and log handlers take another lock, and release it."""
    monkeypatch.setattr(node, "MOST", 0)  # undos that are kept for a node
    group = group_of(nodes.urls, 20)
    redlock, taken, busy = template(group), list[Lease](), list[int]()

    def call() -> None:
        if not busy:  # by what it does itself
            busy.append(1)
            with redlock(f"{called}: inner", wait=20) as lease:
                taken.append(lease)
            busy.clear()

    def is_told() -> list[Lease]:
        """Let everything happen to locks."""
        with redlock(f"{called}: outer", wait=20):
            assert redlock(f"{called}: outer").try_acquire() is None
        lost = redlock(f"{called}: lost", wait=20).acquire()
        for each in nodes[:2]:
            with each.client() as client:
                client.delete(f"redlock:lock:{called}: lost")
        lost.release()
        return taken

    held = redlock(called).acquire()
    eventually(lambda: all(f"redlock:lock:{called}" in keys for keys in keys_on(nodes)))
    with CALLED[called](call):
        if called == "a line of a node":
            nodes.kill(2)
            try:
                held.release()
            finally:
                nodes.restart(2)
                nodes.settings(RESTART_GUARD=False)
        held.release()
        eventually(is_told)
    eventually(lambda: not taken[0].held)
    group.close()

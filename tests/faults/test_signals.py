"""What a signal handler that raises leaves of a lock: a storm, and chosen moments.

The contract: in the body, or while a node is waited for, the name is freed before the exception
goes on. In the instants in which a block begins or ends, the lease is renewed no more and its ttl
frees the name. What a cancellation leaves of a task is in ``test_async_cancel``.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import pytest

from dev.soak import verdict
from dev.soak.faults.signals import (
    Interruption,
    Line,
    careless_run,
    cut,
    judge,
    played,
)
from django_redlock import events
from django_redlock.backend import Backend
from django_redlock.core.policy import Policy
from django_redlock.events import EventKind
from django_redlock.leases import lease as leases
from django_redlock.locks.lock import Lock
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.group import NodeGroup
from django_redlock.testing import EmbeddedNodes
from tests.support.loops import faults_noted, group_of, keys_on, out_of_step, unguarded
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

LONG = 600.0  # of nodes, none of which is late
TTL = 60.0  # no key expires before it is missed
SEND = socket.socket.send


# -- the storm ------------------------------------------------------------------------------------


def history(*events: str) -> list[Line]:
    """Lines of these words: when, who, what and a fence."""
    lines = [(*event.split(), "0")[:4] for event in events]
    return [Line(float(at), who, what, int(fence)) for at, who, what, fence in lines]


WELL = history("0 rival begins 1", "1 rival ends", "2 a begins 2", "3 a hit", "3 a ends", "3 a out")


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ((), None),
        (("4 a refused", "4.01 a refused", "5 rival begins 3"), None),
        (("4 a begins 3", "4.1 rival begins 4"), "two believed at a time"),
        (("4 a begins 2",), "a fence came twice"),
        (("4 a refused", "12 a refused", "13 a begins 3"), "a name outlived its ttl"),
        (("4 a refused", "5 a begins 3", "5 a hit", "5 a ends", "5 a out", "6 a refused"), ...),
        (("4 a two_are_locked",), "two_are_locked"),
    ],
)
def test_a_history_is_judged(lines, problem):
    """By its order, and by refusals of a name that nobody believes to have."""
    found = judge([*WELL, *history(*lines)], plays=1)["problems"]
    assert found == {None: [], ...: ["names stayed taken too often"]}.get(problem, [problem])


def test_a_second_process_that_seldom_has_it_makes_the_storm_inconclusive():
    """A busy machine lets it: nothing was wrong, and little was played."""
    found = judge([each for each in WELL if each.who != "rival"], plays=1)
    assert found["problems"] == []
    assert verdict.missing(*played(found, 1)) == "0 of 1 rival's leases"


def test_a_process_that_hangs_is_noticed():
    """Its history is too short."""
    assert judge(WELL, plays=2)["problems"] == ["it hung"]


# -- chosen moments -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedNodes]:
    """Three nodes without the guard."""
    with unguarded(3) as nodes:
        yield nodes


class Play:
    """Locks of this process by way of proxies, and what others find.

    Attributes:
        left: how often a socket still takes all that the main thread writes, before one takes a
            ``share`` of it and the thread is interrupted.
    """

    left, share = sys.maxsize, 1.0

    def __init__(self, nodes: EmbeddedNodes, proxies: list[Proxy]) -> None:
        self.nodes, self.proxies = nodes, proxies
        self.group, self.others = (
            group_of([each.url for each in proxies], LONG),
            group_of(nodes.urls),
        )
        self.redlock, self.elsewhere = self._locks(self.group), self._locks(self.others)

    @staticmethod
    def _locks(group: NodeGroup) -> LockTemplate:
        backend = Backend("default", group, Policy(size=3, max_ttl=TTL), ttl=TTL)
        return LockTemplate(lambda _: backend)

    def send(self, taker: socket.socket, data: bytes, *more: Any) -> int:
        """What sockets do in place of ``send``."""
        strikes = False
        if threading.current_thread() is threading.main_thread():
            strikes, self.left = self.left == 0, self.left - 1
        taken = data[: int(self.share * len(data))] if strikes else data
        sent = SEND(taker, taken, *more) if taken else 0
        if strikes:
            raise Interruption
        return sent

    def is_free(self) -> bool:
        """Whether another process can have the name, at once."""
        lease = self.elsewhere("name").try_acquire()
        if lease is not None:
            lease.release()
        return lease is not None

    def works(self) -> None:
        """See that nothing is left locked or out of step, in this thread or another.

        Before that, a reply to what was written and not noted yet may close its connection.
        """

        def work() -> None:
            with self.redlock("name", wait=20):
                done.append(1)

        done: list[int] = []
        thread = threading.Thread(target=work, daemon=True)
        with faults_noted(self.group) as faults:
            thread.start()
            thread.join(30)
            work()
        assert (len(done), out_of_step(faults)) == (2, [])


@pytest.fixture
def at(servers: EmbeddedNodes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    """Nodes that hold nothing, with connections to them."""
    with ExitStack() as stack:
        found = Play(servers, [stack.enter_context(Proxy(node.port)) for node in servers])

        def send(taker: socket.socket, *args: Any) -> int:
            return found.send(taker, *args)

        # First, for connections keep what they send by.
        monkeypatch.setattr(socket.socket, "send", send)
        with found.redlock("warm"):
            pass
        eventually(lambda: keys_on(servers) == [[]] * 3)
        yield found
        found.group.close()
        found.others.close()
    for node in servers:
        with node.client() as client:
            client.flushdb()


@contextmanager
def in_a_write(play: Play, share: float, number: int) -> Iterator[None]:
    """The sockets of so many nodes take all, that of the next one this share of it."""
    play.share, play.left = share, number
    yield
    assert play.left < 0, "nothing was written"


@contextmanager
def in_a_wait(play: Play) -> Iterator[None]:
    """A real signal comes while the requests to all nodes are on their way."""
    struck = threading.Event()

    def handler(*_: object) -> None:
        if not struck.is_set():
            struck.set()
            for proxy in play.proxies:
                proxy.let_go()
            raise Interruption

    def strike() -> None:
        eventually(lambda: all(proxy.held for proxy in play.proxies))
        while not struck.wait(0.01):  # one that comes right before ``poll`` waits for its end
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    for proxy in play.proxies:
        proxy.holding = 1
    before, thread = signal.signal(signal.SIGALRM, handler), threading.Thread(target=strike)
    thread.start()
    try:
        yield
    finally:
        thread.join()
        signal.signal(signal.SIGALRM, before)


MOMENTS: dict[str, Callable[[Play], Any]] = {
    "before the first write": partial(in_a_write, share=0, number=0),
    "in a write": partial(in_a_write, share=0.5, number=0),
    "in a later write": partial(in_a_write, share=0.5, number=1),
    "after a write": partial(in_a_write, share=1, number=0),
    "before the replies": in_a_wait,
}
moments = pytest.mark.parametrize("moment", MOMENTS)


@moments
@pytest.mark.parametrize("way", ["block", "acquire"])
def test_while_it_is_asked_for(at, moment, way):
    """It is free before the exception goes on; what is left of it is undone."""
    lock = at.redlock("name")
    with MOMENTS[moment](at), pytest.raises(Interruption):
        lock.acquire() if way == "acquire" else lock.__enter__()
    assert at.is_free()
    eventually(lambda: keys_on(at.nodes) == [[]] * 3)
    at.works()


def test_steps_that_learn_of_no_interruption_are_noticed(at, monkeypatch):
    """The nodes have granted the name to nobody."""
    with monkeypatch.context() as patch:
        patch.setattr(Backend, "run", careless_run)
        with in_a_wait(at), pytest.raises(Interruption):
            at.redlock("name").acquire()
    eventually(lambda: keys_on(at.nodes) == [["redlock:lock:name"]] * 3)
    assert not at.is_free()


@moments
@pytest.mark.parametrize("way", ["block", "acquire"])
def test_while_it_is_released(at, moment, way):
    """The same: it is sent again."""
    with suppress(Interruption), ExitStack() as stack:
        if way == "acquire":
            lease = at.redlock("name").acquire()
            stack.enter_context(MOMENTS[moment](at))
            lease.release()
        with at.redlock("name"):
            stack.enter_context(MOMENTS[moment](at))
    assert at.is_free()
    eventually(lambda: keys_on(at.nodes) == [[]] * 3)
    at.works()


def test_in_the_body(at):
    """It is released before the exception goes on."""

    def strike(*_: object) -> None:
        raise Interruption

    before = signal.signal(signal.SIGALRM, strike)
    try:
        with pytest.raises(Interruption), at.redlock("name"):
            signal.raise_signal(signal.SIGALRM)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert at.is_free()
    at.works()


def told(at: Play, lock: Lock) -> None:
    """The exception comes after the grant, before the body."""

    def strike(_: object) -> None:
        raise KeyboardInterrupt

    events.subscribe(strike, [EventKind.ACQUIRED])
    try:
        with pytest.raises(KeyboardInterrupt), lock:
            pytest.fail("the body ran")
    finally:
        events.unsubscribe(strike)


def torn(at: Play, lock: Lock) -> None:
    """It comes before the end begins: what was to end the block is dropped, as Python does."""

    def block() -> None:
        end = lock.__exit__  # Python looks it up before it enters
        lock.__enter__()
        try:
            raise Interruption
        finally:
            del end

    with pytest.raises(Interruption):
        block()


def ends(at: Play, name: str) -> list[int]:
    """When the name ends on each node that has it, by the node's clock."""
    found = []
    for node in at.nodes:
        with node.client() as client:
            found.append(client.pexpiretime(f"redlock:lock:{name}"))
    return found


@pytest.mark.parametrize(
    ("moment", "renewed"),
    [(told, False), (torn, False), (torn, True)],
    ids=["told", "torn", "broken"],
)
def test_in_the_instants_between(at, moment, renewed, monkeypatch):
    """It is free, or renewed no more: its end stays where it was while others are renewed."""
    monkeypatch.setattr(leases, "RENEWALS", 600)  # every 0.1 s
    if renewed:  # a broken variant
        monkeypatch.setattr(leases.Lease, "torn", False)
    moment(at, at.redlock("name"))
    before = ends(at, "name")
    with at.redlock("other") as other:
        deadlines = set[float]()

        def is_renewed() -> bool:
            deadlines.add(other.grant.deadline)
            return len(deadlines) > 3

        eventually(is_renewed)
    stayed = all(after in (then, -2) for then, after in zip(before, ends(at, "name"), strict=True))
    assert stayed is not renewed
    assert max(before) > 0 or at.is_free()


# -- the end of the process -----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["", "careless"], ids=["well", "broken"])
def test_a_process_that_ends_while_a_majority_hangs_leaves_nothing(variant):
    """Its undo stands behind its grant in the kernels of the nodes, which go on later."""
    with unguarded(3) as nodes:
        spawn = multiprocessing.get_context("spawn")
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=cut, args=(list(nodes.urls), theirs, variant))
        process.start()
        assert ours.recv() == "ready"
        nodes.pause(0)
        nodes.pause(1)
        ours.send("go")
        with nodes[2].client() as client:
            eventually(lambda: client.exists("redlock:lock:name"), every=0)
        os.kill(process.pid or 0, signal.SIGALRM)
        process.join(60)
        assert process.exitcode == 1
        nodes.resume(0)
        nodes.resume(1)
        if variant:
            eventually(lambda: keys_on(nodes)[:2] == [["redlock:lock:name"]] * 2)
        else:
            eventually(lambda: keys_on(nodes) == [[]] * 3)

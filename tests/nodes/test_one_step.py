"""What is looked at and changed, where a signal handler changes it at any point in between.

Python runs handlers also where a loop jumps back: between the look of a ``while`` and its body,
from the second time on.
"""

from __future__ import annotations

import gc
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from types import CodeType
from typing import Any

import pytest
from django.test import override_settings

from django_redlock import conf, interruption, redlock
from django_redlock.core.commands import Unmark
from django_redlock.core.protocol import Command
from django_redlock.interruption import SafeFinalizer, forgotten
from django_redlock.leases.lease import Lease
from django_redlock.nodes.connection import Connection, close_as_silent, load
from django_redlock.nodes.faults import CLOSED
from django_redlock.nodes.group import NodeGroup
from django_redlock.nodes.memory import MemoryNode
from django_redlock.nodes.node import Node, Undo, UndoQueue, _size
from tests.faults.handlers import at_each_point
from tests.support.loops import group_of, unguarded
from tests.support.sets import LONG

BOTH = pytest.mark.parametrize("broken", [False, True], ids=["well", "broken"])
pytestmark = pytest.mark.alone  # a trace function is its process's


@pytest.fixture(scope="module")
def group() -> Iterator[NodeGroup]:
    """One real node."""
    with unguarded(1) as nodes:
        made = group_of(nodes.urls, LONG)
        yield made
        made.close()


@pytest.fixture
def memory_nodes() -> Iterator[None]:
    """Three nodes in memory."""
    urls = [f"memory://{uuid.uuid4().hex}" for _ in range(3)]
    with override_settings(REDLOCK={"default": {"NODES": urls}}):
        yield


@pytest.fixture
def node(group: NodeGroup) -> Node:
    """Its node."""
    return group.nodes[0]


def opened(node: Node) -> Connection:
    """A connection that nobody has."""
    connection = node._connect(bool)
    assert connection is not None
    return connection


def put(broken: Callable[..., object], owner: Any, name: str, patch: pytest.MonkeyPatch) -> None:
    """Put a broken variant in the place of a function of the package, where handlers run."""
    ours: CodeType = getattr(owner, name).__code__
    broken.__code__ = broken.__code__.replace(co_filename=ours.co_filename)
    patch.setattr(owner, name, broken)


def raises(broken: bool, act: Callable[[], object]) -> None:
    """Nothing is raised but by a broken variant."""
    try:
        act()
    except IndexError:
        assert broken
    else:
        assert not broken


def look_then_pop(pool: Node, now: float) -> None:
    """Look whether a connection is there, and jump back before it is taken."""
    while pool._free and not pool._stalled:
        pool._free.pop()


@pytest.mark.slow
@BOTH
def test_a_handler_takes_the_connection_that_was_seen(node, broken, monkeypatch):
    """The first one is from before the end of the guard, and the handler needs the second."""
    guarded, now = (opened(node), opened(node)), time.monotonic()
    if broken:
        put(look_then_pop, Node, "_take", monkeypatch)

    def prepare() -> None:
        for each in guarded:
            each.fault, each.guarded = None, True
        node._free[:] = guarded

    raises(broken, lambda: at_each_point(lambda: node._take(now), node._free.clear, prepare))
    node._free.clear()


def look_then_close(node: Node, connection: Connection) -> None:
    """Look whether one is stalled, and jump back before it is taken."""
    while node._stalled:
        close_as_silent(node._stalled.pop())


@pytest.mark.alone
@pytest.mark.slow
@BOTH
def test_a_handler_reads_the_stalled_connections_of_a_node_that_is_back(node, broken, monkeypatch):
    """Both find that their sockets are dead."""
    closed, new = (opened(node), opened(node)), opened(node)
    for each in closed:
        each.close(CLOSED)
    if broken:
        put(look_then_close, Node, "_welcome", monkeypatch)

    def read() -> None:
        node._read_stalled(time.monotonic())

    raises(
        broken,
        lambda: at_each_point(
            lambda: node._welcome(new), read, lambda: node._stalled.extend(closed)
        ),
    )
    node._stalled.clear()
    new.close(CLOSED)


def look_then_popleft(connection: Connection, fault: Any) -> None:
    """Look whether a reply is owed, and jump back before it is taken."""
    while connection.owed:
        connection.owed.popleft()


@pytest.mark.alone
@pytest.mark.slow
@BOTH
def test_a_handler_closes_a_connection_that_is_being_closed(node, broken, monkeypatch):
    """Each request without a reply gets its vote once."""
    close, heard, owing = Connection.close, list[int](), list[Connection]()
    if broken:
        put(look_then_popleft, Connection, "close", monkeypatch)

    def prepare() -> None:
        heard.clear()
        owing[:] = [opened(node)]
        for _ in range(3):
            owing[0].send(load(Command.LOOK, lambda place, _: heard.append(place)))

    def act() -> None:
        owing[0].close(CLOSED)
        assert len(heard) == (0 if broken else 3)

    raises(broken, lambda: at_each_point(act, lambda: owing[0].close(CLOSED), prepare))
    close(owing[0], CLOSED)


def look_then_first(_: object = None) -> None:
    """Look whether one is gone, and jump back before it is taken."""
    while forgotten:
        forgotten[0].do()
        forgotten.popleft()


@pytest.mark.slow
@BOTH
def test_a_handler_does_the_jobs_of_what_is_gone(broken, monkeypatch):
    """Each is done, by one of the two."""
    done: list[int] = []
    if broken:
        put(look_then_first, interruption, "settle", monkeypatch)

    def prepare() -> None:
        done.clear()
        for number in range(3):
            thing = type("Thing", (), {})()
            finalizer = SafeFinalizer(thing, partial(done.append, number))
            forgotten.append(finalizer)
            kept.append((thing, finalizer))

    def act() -> None:
        interruption.settle()
        assert set(done) == {0, 1, 2}

    kept: list[object] = []
    gc.disable()  # what it forgets has its own call of settle, which would do these jobs before
    try:
        raises(broken, lambda: at_each_point(act, interruption.settle, prepare))
    finally:
        gc.enable()
    forgotten.clear()


def look_then_pop_first(node: MemoryNode, queue: str, wakeup: str, px: int) -> None:
    """Look whether a waiter is there, and jump back before it is taken."""
    blocked = node.blocked.get(queue, [])
    while blocked:
        if blocked.pop(0)(wakeup):
            return


@pytest.mark.alone
@pytest.mark.slow
@BOTH
def test_a_handler_wakes_the_waiters_of_a_node_in_memory(broken, monkeypatch):
    """They are gone, so that the wake-up is for none of them."""
    memory = MemoryNode()
    if broken:
        put(look_then_pop_first, MemoryNode, "_push", monkeypatch)
    waiters = memory.blocked["queue"] = []
    raises(
        broken,
        lambda: at_each_point(
            lambda: memory._push("queue", "wakeup", 1000),
            waiters.clear,
            lambda: waiters.extend([lambda _: False] * 3),
        ),
    )


# -- what is counted and noted --------------------------------------------------------------------


def size_last(queue: UndoQueue, undo: Undo) -> None:
    """Read the sum in one step, and change it after a call."""
    if queue.kept.pop(undo.what, None) is not None:
        queue._bytes -= _size(undo)


@pytest.mark.alone
@pytest.mark.slow
@BOTH
def test_a_handler_keeps_an_undo_while_another_is_carried_out(node, broken, monkeypatch):
    """The sum of their sizes is right."""
    if broken:
        put(size_last, UndoQueue, "_remove", monkeypatch)
    undos = [
        Undo(Unmark(f"{number:032x}", bool, "marks", "key", lasts=60.0), 0.0) for number in range(3)
    ]
    queue, sizes = UndoQueue(node), list[bool]()

    def prepare() -> None:
        queue.kept.clear()
        queue._bytes = 0
        queue.add(undos[0])

    def act() -> None:
        queue._remove(queue.kept[undos[0].what])
        sizes.append(queue._bytes == sum(map(_size, queue.kept.values())))

    assert at_each_point(act, lambda: queue.add(undos[1]), prepare) > 0
    assert all(sizes) is not broken


def extended_at_once(lease: Lease, outcome: Any) -> None:
    """Read the grant in one step, and write it after a call."""
    lease.grant = lease.grant._replace(deadline=max(outcome.deadline, lease.grant.deadline))


def touched_at_once(lease: Lease, places: frozenset[int]) -> None:
    """Read the grant in one step, and write it after a call."""
    lease.grant = lease.grant._replace(touched=lease.grant.touched | places)


@pytest.mark.slow
@BOTH
@pytest.mark.usefixtures("memory_nodes")
def test_a_handler_extends_and_heals_a_lease_that_is_extended_and_healed(broken, monkeypatch):
    """No deadline and no node that may have its keys is forgotten."""
    lease: Lease = redlock("name", renew=False).acquire()
    before = lease.grant
    if broken:
        put(extended_at_once, Lease, "extended", monkeypatch)
        put(touched_at_once, Lease, "touch", monkeypatch)
    later = before._replace(deadline=before.deadline + 5)
    latest = before._replace(deadline=before.deadline + 9)
    kept: list[bool] = []

    def prepare() -> None:
        lease.grant = before
        interrupted.clear()

    def both(outcome: Any, place: int) -> None:
        lease.extended(outcome)
        lease.touch(frozenset({place}))

    def act() -> None:
        both(later, 7)
        grant = lease.grant
        kept.append(grant.deadline in {later.deadline, latest.deadline} and 7 in grant.touched)
        if interrupted:
            kept.append(grant.deadline == latest.deadline and 8 in grant.touched)

    def errand() -> None:
        interrupted.append(1)
        both(latest, 8)

    interrupted: list[int] = []
    assert at_each_point(act, errand, prepare) > 0
    assert all(kept) is not broken
    lease.grant = before
    lease.release()


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.usefixtures("memory_nodes")
def test_a_handler_is_the_first_to_use_an_alias():
    """A process has one backend for each alias, and so one local queue of waiters."""
    made: list[object] = []

    def errand() -> None:
        made.append(conf.backend("default"))

    def act() -> None:
        made.append(conf.backend("default"))
        assert len(set(map(id, made))) == 1

    def prepare() -> None:
        conf.forget()
        made.clear()

    assert at_each_point(act, errand, prepare) > 0

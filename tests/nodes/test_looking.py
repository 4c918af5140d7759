"""A node is judged by what has come when somebody looks, not by when this thread ran.

A thread that waits for the interpreter reads nothing and writes nothing. The clock of these tests
goes on only where a poll or a write says so, and a poll says what the kernel said while the thread
was away.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from django_redlock.core.protocol import Answer, Command, Vote
from django_redlock.nodes import background as background_module
from django_redlock.nodes import connection as connection_module
from django_redlock.nodes import link as link_module
from django_redlock.nodes import node as node_module
from django_redlock.nodes.connection import Connection, PlainCommand, nobody, packed
from django_redlock.nodes.exchange import Exchange
from django_redlock.nodes.group import NodeGroup
from django_redlock.nodes.link import Link
from django_redlock.nodes.node import ConnectAttempt
from django_redlock.testing import EmbeddedNodes
from tests.support.links import asking, connected, generally, grant
from tests.support.loops import group_of, loop_connections, soon, template
from tests.support.wire import Heard

TIMEOUT = 0.05  # seconds, of a clock that stands still
SLICE = TIMEOUT / 8  # by which a thread wakes up late without noticing


class Clock:
    """The time of the package's drivers and connections."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        fake = SimpleNamespace(monotonic=lambda: self.now)
        for module in (background_module, link_module, connection_module, node_module):
            monkeypatch.setattr(module, "time", fake)
        monkeypatch.setattr(Exchange, "clock", staticmethod(fake.monotonic))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """That clock, which stands still."""
    return Clock(monkeypatch)


@pytest.fixture(autouse=True)
def free(three: EmbeddedNodes) -> None:
    """The name is free on each node."""
    for node in three:
        with closing(node.client()) as client:
            client.flushdb()


class Poll:
    """A poll of real connections.

    Args:
        waits: what becomes of each wait in turn, called with its seconds: it returns whether to say
            what the kernel says then.
        looked: called when a look without a wait has found nothing.
    """

    def __init__(
        self, waits: Iterator[Callable[[float], bool]], looked: Callable[[], object]
    ) -> None:
        self._poll = select.poll()
        self.register, self.unregister = self._poll.register, self._poll.unregister
        self.modify = self._poll.modify
        self._waits, self._looked = waits, looked

    def poll(self, milliseconds: float) -> list[tuple[int, int]]:
        """Say what has come."""
        if milliseconds > 0:
            return self._poll.poll(20_000) if next(self._waits)(milliseconds / 1000) else []
        found = self._poll.poll(0)
        if not found:
            self._looked()
        return found

    def wait_for_reply(self) -> None:
        """Wait until there is something to read."""
        assert self._poll.poll(20_000)


@contextmanager
def one(three: EmbeddedNodes) -> Iterator[NodeGroup]:
    """A group of one node, connected."""
    with closing(group_of(three.urls[:1], TIMEOUT)) as group:
        (node,) = group.nodes
        connection = node._connect(bool)
        assert connection is not None
        node._welcome(connection)
        node._keep(connection)
        yield group


def asks(group: NodeGroup, *waits: Callable[[Poll, float], bool]) -> Vote:
    """The vote of the node, asked for a lock over a new link; each wait ends in this way."""
    link, ends = Link(0, group.nodes, TIMEOUT), iter(waits)
    poll: Any = Poll(iter([lambda seconds: next(ends)(poll, seconds)] * len(waits)), bool)
    link._poll = poll
    with generally():
        (vote,) = link.carry(asking(group, grant()))
    link.dissolve()
    return vote


# -- a poll that returns late ---------------------------------------------------------------------


def test_a_reply_that_comes_while_the_thread_wakes_up_is_a_vote(three, clock):
    """The kernel said that nothing has come; all is read before the node is given up."""

    def wakes_up(poll: Poll, seconds: float) -> bool:
        clock.now += seconds + SLICE
        poll.wait_for_reply()
        return False

    with one(three) as group:
        assert asks(group, wakes_up).answer is Answer.YES


def test_after_a_late_poll_with_nothing_the_node_has_its_timeout_again(three, clock):
    """A wait that ended three timeouts late says nothing of the node; the next one does."""
    waited: list[float] = []

    def is_late(_: Poll, seconds: float) -> bool:
        clock.now += seconds + 3 * TIMEOUT
        waited.append(seconds)
        return False

    def hears(_: Poll, seconds: float) -> bool:
        waited.append(seconds)
        return True

    with one(three) as group:
        vote = asks(group, is_late, hears)
    assert vote.answer is Answer.YES
    assert waited == pytest.approx([TIMEOUT, TIMEOUT])


def test_who_cannot_send_gives_up_after_a_node_timeout(three, clock):
    """A node that takes nothing is silent, though its socket, as of TLS, is ready to send."""
    waits: list[float] = []

    def is_ready(_: Poll, seconds: float) -> bool:
        waits.append(seconds)
        clock.now += TIMEOUT / 4
        return True

    def send(_: bytes) -> int:
        raise BlockingIOError

    with one(three) as group:
        (connection,) = group.nodes[0]._free
        connection.socket = SimpleNamespace(send=send, recv=connection.socket.recv)  # type: ignore[assignment]
        assert asks(group, *[is_ready] * 100).answer is Answer.UNKNOWN
    assert len(waits) == 4


@pytest.mark.parametrize("by", ["thread", "task"])
def test_a_node_is_asked_again_after_the_process_stood_still(three, clock, by):
    """The silence of a node that nobody watched is counted anew, once; then it is silent."""

    async def main(group: NodeGroup) -> list[bool]:
        loop, (node,), asked = asyncio.get_running_loop(), group.nodes, []
        (own,) = group._loops._connections.of(loop).by_index
        node._free[0].send(PlainCommand(Command.BLOCK, b"", packed("BLPOP", "none", 0), nobody))
        for passed in (0.0, 10 * TIMEOUT, TIMEOUT / 2, TIMEOUT * 0.6):
            clock.now += passed
            if by == "task":
                connection = own.usable(clock.now, loop)
            elif (connection := node.take(clock.now)) is not None:
                node.give(connection, clock.now)
            asked.append(connection is not None and not node.down)
        return asked

    with one(three) as group:
        assert asyncio.run(main(group)) == [True, True, True, False]
        assert group.nodes[0].down_reason  # so no other caller waits for it


# -- giving a connection back ---------------------------------------------------------------------


def test_a_thread_that_stops_after_its_last_look_calls_no_node_silent(three, clock):
    """Silence counts up to the look: what came after it was not looked for."""

    def stops() -> None:
        clock.now += 2 * TIMEOUT

    with closing(group_of(three.urls, TIMEOUT)) as group:
        link, asked = connected(group), asking(group, grant())
        three.pause(2)
        try:
            link._write(asked)
            for place in (0, 1):
                while asked.votes[place] is None:
                    link.connections[place].read()
            poll: Any = Poll(iter(()), stops)
            for connection in link.connections.values():
                poll.register(connection.fileno, select.POLLIN)
            link._poll = poll
            link._end(asked)
            assert not group.nodes[2].down_reason
        finally:
            three.resume(2)


# -- writing in the usual way ---------------------------------------------------------------------


def test_silence_counts_from_the_last_write(three, clock):
    """Each write may give up the interpreter, and get it back much later."""

    def slowly(send: Callable[[bytes], int]) -> Callable[[bytes], int]:
        def sending(data: bytes) -> int:
            clock.now += TIMEOUT
            return send(data)

        return sending

    with closing(group_of(three.urls, TIMEOUT)) as group:
        lent = connected(group)
        places, ends = lent._in_order(0)
        slow = [(place, each, slowly(send), epoch) for place, each, send, epoch in ends]
        lent._orders[0] = places, slow
        lent._write_to_all(asking(group, grant()))
        assert [each.silent_for(clock.now) for each in lent.connections.values()] == [0.0] * 3


# -- a new connection beside a silent one ---------------------------------------------------------


def asked(connection: Connection, votes: list[Vote]) -> None:
    """Ask for a lock; the reply is there when this returns."""
    connection.send(Heard(grant(), lambda _, vote: votes.append(vote)))
    poll = select.poll()
    poll.register(connection.fileno, select.POLLIN)
    assert poll.poll(20_000)


def test_a_late_connection_is_read_before_it_is_closed_for_a_new_one(three):
    """Its reply has come: it is as good as the new one."""
    votes: list[Vote] = []
    with one(three) as group:
        (node,) = group.nodes
        (old,) = node._free
        node._free.clear()
        asked(old, votes)
        node._stalled.append(old)
        new = node._connect(bool)
        assert new is not None
        node._welcome(new)
        new.close(new.fault or node.unconnected)
        assert [vote.answer for vote in votes] == [Answer.YES]
        assert old in node._free
        assert not old.fault


def test_a_loop_reads_a_late_connection_before_it_closes_it_for_a_new_one(three):
    """As threads do: it keeps the one whose reply has come."""

    async def main(group: NodeGroup) -> None:
        async with template(group)("warm"):
            pass
        loop, (own,) = asyncio.get_running_loop(), loop_connections(group)
        await soon(lambda: own.connection is not None and not own.connection.owed)
        before = own.connection
        own.silent = True
        asked(before, [])
        attempt = ConnectAttempt(None)
        connection = group.nodes[0]._connect(bool)
        assert connection is not None
        attempt.bring(connection)
        own._opened(loop, attempt)
        assert own.connection is before
        assert not before.fault

    with closing(group_of(three.urls[:1], 20.0)) as group:
        asyncio.run(main(group))

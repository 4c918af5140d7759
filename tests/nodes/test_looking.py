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

from django_redlock.core.protocol import Answer, Vote
from django_redlock.nodes import background as background_module
from django_redlock.nodes import connection as connection_module
from django_redlock.nodes import link as link_module
from django_redlock.nodes import node as node_module
from django_redlock.nodes.background import ListeningTime
from django_redlock.nodes.connection import Connection
from django_redlock.nodes.exchange import Exchange
from django_redlock.nodes.group import NodeGroup
from django_redlock.nodes.link import Link
from django_redlock.nodes.node import ConnectAttempt
from django_redlock.testing import EmbeddedNodes
from tests.simulation.mutants import Patch, with_edits
from tests.support.links import asking, connected, generally, grant
from tests.support.loops import group_of, loop_connections, soon, template
from tests.support.replays import note_broken
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


def vote_that_comes_while_the_thread_wakes_up(three: EmbeddedNodes, clock: Clock) -> Vote:
    """The kernel says that nothing has come; when the thread goes on, the reply is there."""

    def wakes_up(poll: Poll, seconds: float) -> bool:
        clock.now += seconds + SLICE
        poll.wait_for_reply()
        return False

    with one(three) as group:
        return asks(group, wakes_up)


def test_a_reply_that_comes_while_the_thread_wakes_up_is_a_vote(three, clock):
    """Everything that can be read is read before the node is given up."""
    assert vote_that_comes_while_the_thread_wakes_up(three, clock).answer is Answer.YES


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


def test_who_gives_up_after_a_late_poll_loses_the_vote(three, clock, monkeypatch):
    """Broken: the check above can fail."""
    note_broken("waited_for")
    monkeypatch.setattr(ListeningTime, "waited_for", lambda *_: None)

    def is_late(_: Poll, seconds: float) -> bool:
        clock.now += seconds + 3 * TIMEOUT
        return False

    with one(three) as group:
        three.pause(0)
        try:
            vote = asks(group, is_late)
        finally:
            three.resume(0)
    assert vote.answer is Answer.UNKNOWN


def waits_of_who_cannot_send(three: EmbeddedNodes, clock: Clock) -> int:
    """How often a thread waits where a socket, as of TLS, is ready to send and takes nothing."""
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
    return len(waits)


def test_who_cannot_send_gives_up_after_a_node_timeout(three, clock):
    """A node that takes nothing is silent, too."""
    assert waits_of_who_cannot_send(three, clock) == 4


def test_silence_that_begins_with_the_sending_waits_for_long(three, clock, monkeypatch):
    """Broken: the check above can fail."""
    note_broken("silent_for")
    monkeypatch.setattr(Connection, "silent_for", lambda *_: 0.0)
    assert waits_of_who_cannot_send(three, clock) > 4


# -- giving a connection back ---------------------------------------------------------------------


def is_down_after_a_pause(three: EmbeddedNodes, clock: Clock) -> bool:
    """Whether a node is called silent by a thread that stops after its last look."""

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
            return bool(group.nodes[2].down_reason)
        finally:
            three.resume(2)


def test_a_thread_that_stops_after_its_last_look_calls_no_node_silent(three, clock):
    """Silence counts up to the look: what came after it was not looked for."""
    assert not is_down_after_a_pause(three, clock)


def test_who_reads_the_clock_after_the_look_calls_it_silent(three, clock):
    """Broken: the check above can fail."""

    def reads_the_clock(part: Callable[..., None]) -> Callable[..., None]:
        return lambda link, index, _: part(link, index, clock.now)

    with with_edits(Patch(Link, "_part_if_silent", reads_the_clock)):
        assert is_down_after_a_pause(three, clock)


# -- writing in the usual way ---------------------------------------------------------------------


def silent_after_slow_writes(three: EmbeddedNodes, clock: Clock) -> list[float]:
    """For how long each node seems to have been silent when a slow thread has written to all."""

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
        return [each.silent_for(clock.now) for each in lent.connections.values()]


def test_silence_counts_from_the_last_write(three, clock):
    """Each write may give up the interpreter, and get it back much later."""
    assert silent_after_slow_writes(three, clock) == [0.0] * 3


# -- a new connection beside a silent one ---------------------------------------------------------


def asked(connection: Connection, votes: list[Vote]) -> None:
    """Ask for a lock; the reply is there when this returns."""
    connection.send(Heard(grant(), lambda _, vote: votes.append(vote)))
    poll = select.poll()
    poll.register(connection.fileno, select.POLLIN)
    assert poll.poll(20_000)


def late_one(three: EmbeddedNodes) -> tuple[list[Vote], bool]:
    """The vote on a late connection when there is a new one, and whether it is still open."""
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
        return votes, old in node._free and not old.fault


def test_a_late_connection_is_read_before_it_is_closed_for_a_new_one(three):
    """Its reply has come: it is as good as the new one."""
    (vote,), is_open = late_one(three)
    assert (vote.answer, is_open) == (Answer.YES, True)


def late_one_of_a_loop(three: EmbeddedNodes) -> bool:
    """Whether a loop keeps a late connection whose reply has come, when it gets a new one."""

    async def main(group: NodeGroup) -> bool:
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
        return own.connection is before and not before.fault

    with closing(group_of(three.urls[:1], 20.0)) as group:
        return asyncio.run(main(group))


def test_a_loop_reads_a_late_connection_before_it_closes_it_for_a_new_one(three):
    """As threads do."""
    assert late_one_of_a_loop(three)

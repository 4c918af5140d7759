"""The requests of one tick as one list: the same votes as one by one, and nothing left behind."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from django_redlock import events
from django_redlock.core import hold
from django_redlock.core.acquire import attempt
from django_redlock.core.commands import freed
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Answer, Request, Vote
from django_redlock.nodes import exchange as exchange_module
from django_redlock.nodes import loops
from django_redlock.nodes.connection import Connection, SentAgain, parts
from django_redlock.nodes.exchange import Exchange, Verdict
from django_redlock.nodes.group import NodeGroup
from django_redlock.nodes.loops import Looks, LoopConnection, LoopConnections
from django_redlock.testing import EmbeddedNodes
from tests.support.loops import (
    connect,
    group_of,
    keys_on,
    loop_connections,
    soon,
    template,
    unguarded,
)

SIZE = 5
LONG = 60.0  # seconds
POLICY = Policy(size=SIZE)
TARGET = POLICY.target(["name"])
ENDED = b""


@pytest.fixture
def three() -> Iterator[EmbeddedNodes]:
    """Three nodes to ill-treat, without the guard."""
    with unguarded(3) as nodes:
        yield nodes


# -- one reply, two ways --------------------------------------------------------------------------


def grant() -> Request:
    """A request of an attempt."""
    request = next(attempt(POLICY, TARGET, label="me", ttl=30))
    assert isinstance(request, Request)
    return request


def release() -> Request:
    """A request that undoes."""
    return hold.undo(POLICY, TARGET, POLICY.nonce(), POLICY.everyone, reserve=50)


def replies(nonce: str) -> list[bytes]:
    """What a node may send, right or wrong."""

    def said(*items: bytes) -> bytes:
        return b"*%d\r\n$32\r\n%b\r\n%b" % (len(items) + 1, nonce.encode(), b"".join(items))

    granted, freed = b"$7\r\nGRANTED\r\n", b"$5\r\nFREED\r\n"
    held = b"$4\r\nHELD\r\n:500\r\n$2\r\nit\r\n$16\r\n" + b"a" * 16 + b"\r\n:0\r\n"
    return [
        *[said(granted, b"$16\r\n0000000000000007\r\n")] * 6,
        *[said(freed, b":0\r\n")] * 6,
        said(granted, b"$16\r\n0000000000000008\r\n"),
        said(granted, b"$1\r\n7\r\n"),
        said(granted, b":7\r\n"),
        said(granted),
        said(freed, b":1\r\n"),
        said(freed, b":9\r\n"),
        said(b"$4\r\nGONE\r\n", b":0\r\n"),
        said(b"$4\r\nGONE\r\n"),
        said(held),
        said(b"$5\r\nEMPTY\r\n"),
        said(b":1\r\n"),
        said(granted, b"$16\r\n0000000000000007\r\n").replace(nonce[:8].encode(), b"f" * 8),
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"-OOM command not allowed\r\n",
        b"$-1\r\n",
        b":0\r\n",
        b"+OK\r\n",
        b"what?\r\n",
        ENDED,
    ]


class Side:
    """One request over five connections, and what became of it."""

    def __init__(self, request: Request, send: Callable[[Connection, Exchange], object]):
        self.verdicts: list[Verdict] = []
        self.undone: list[tuple[str, int]] = []

        def note(what: str, place: int) -> Callable[[object], None]:
            return lambda _: self.undone.append((what, place))

        nodes: Any = [
            SimpleNamespace(
                label=f"n{place}",
                not_waited_for=Vote(f"n{place}", Answer.UNKNOWN),
                agreed=freed(f"n{place}", 0),
                undo_later=note("kept", place),
            )
            for place in range(SIZE)
        ]
        future: Any = SimpleNamespace(done=lambda: False)
        self.round = Exchange(nodes, request, 1.0, future, clock=lambda: 100.0)
        self.round.follow = lambda _, verdict: self.verdicts.append(verdict)
        self.peers, self.connections = [], []
        for place in range(SIZE):
            ours, peer = socket.socketpair()
            self.peers.append(peer)
            made: Any = SimpleNamespace(_sock=ours, disconnect=ours.close)
            facts: Any = None
            self.connections.append(
                Connection(
                    made,
                    f"n{place}",
                    facts,
                    index=place,
                    client=0,
                    epoch=b"e" * place,
                    round_trip=0,
                    guard_left=0,
                )
            )
        self.round.unheard.update(enumerate(self.connections))
        for connection in self.connections:
            send(connection, self.round)
        self.sent = [peer.recv(65536) for peer in self.peers]

    def hear(self, place: int, reply: bytes) -> tuple[Any, ...]:
        """Let a node reply, and tell what is known afterwards."""
        if reply == ENDED:
            self.peers[place].close()
        else:
            self.peers[place].send(reply)
        connection, one = self.connections[place], self.round
        connection.read()
        return (
            [*one.votes],
            sorted(one.unheard),
            one.verdict(),
            [*self.verdicts],
            [*self.undone],
            connection.fault,
            connection.backlog,
        )

    def close(self) -> None:
        """Close all sockets."""
        for each in (*self.peers, *(connection.socket for connection in self.connections)):
            each.close()


def parsed(connection: Connection, one: Exchange) -> None:
    """Send so that each reply is parsed."""
    assert connection.send(SentAgain(one, one.packed, one.since))


def compared(connection: Connection, one: Exchange) -> None:
    """Send as a batch does: the usual reply is known by its bytes."""
    assert connection.send_all([one], parts([one]), len(one.packed))


def test_a_reply_is_the_same_vote_in_a_batch_and_alone():
    """Whatever five nodes reply in whatever order: votes, verdicts, undoing and faults."""
    chance = random.Random(7)
    told = set()
    for _ in range(300):
        request = chance.choice([grant, release])()
        with closing(Side(request, parsed)) as one, closing(Side(request, compared)) as many:
            assert one.sent == many.sent
            said = replies(request.nonce)
            usual = said[0] if request.command == "grant" else said[6]
            for place in chance.sample(range(SIZE), SIZE):
                reply = usual if chance.random() < 0.6 else chance.choice(said)
                heard = one.hear(place, reply)
                assert many.hear(place, reply) == heard
                told.add(reply.replace(request.nonce.encode(), b"nonce"))
    assert len(told) > 15  # every kind has come


def test_after_the_first_reply_to_a_grant_the_others_are_compared():
    """Its number is read at its place: parsing each costs a tick of many tasks its speed."""
    request = grant()
    usual = replies(request.nonce)[0]
    with closing(Side(request, compared)) as one:
        one.hear(0, usual)
        assert (one.round.number, one.round.usual) == (7, usual)


# -- what may not go by a batch -------------------------------------------------------------------


def requests_of(group: NodeGroup, request: Request) -> bool:
    """Whether a request joined a batch."""
    connections = group._loops._connections.of(asyncio.get_running_loop())
    before = connections.batch
    group.aask(request).cancel()
    return connections.batch is not before


OUT_OF_THE_ORDINARY = {
    "guarded": lambda c, n: setattr(c, "guarded", True),
    "faulty": lambda c, n: setattr(c, "fault", "lost"),
    "a duplicate": lambda c, n: setattr(n, "duplicate_of", "other"),
    "to undo first": lambda c, n: n.undos.kept.update(x=1),
}


@pytest.mark.parametrize("what", OUT_OF_THE_ORDINARY)
def test_a_node_out_of_the_ordinary_is_not_well(what):
    """Each is a case of the general way, which knows what to do about it."""
    connection = SimpleNamespace(fault=None, guarded=False, owed=())
    node: Any = SimpleNamespace(duplicate_of="", undos=SimpleNamespace(kept={}))
    nothing: Any = None
    one = LoopConnection(nothing, node, 0, 1.0, nothing)
    every: Any = SimpleNamespace(by_index=[one], timeout=1.0)

    def well() -> bool:
        return LoopConnections.are_well(every, 0.0)

    assert not well()  # not connected
    one.connection = connection  # type: ignore[assignment]
    assert well()
    OUT_OF_THE_ORDINARY[what](connection, node)
    assert not well()


def test_watchers_of_nodes_are_told_one_by_one(three):
    """Who watches is told how long each node took, so no request joins a batch meanwhile."""
    redlock = template(group := group_of(three.urls, 5))
    told: list[object] = []

    async def main() -> bool:
        await connect(redlock, group)
        assert requests_of(group, release_of(group))
        await asyncio.sleep(0)
        events.watch_nodes(told.append)
        try:
            return requests_of(group, release_of(group))
        finally:
            events.unwatch_nodes(told.append)

    assert not asyncio.run(main())


def release_of(group: NodeGroup, nonce: str = "", to: frozenset[int] | None = None) -> Request:
    """A release of a name on the nodes of a group."""
    policy = Policy(size=len(group.nodes))
    everyone = policy.everyone
    target = policy.target(["name"])
    return hold.undo(policy, target, nonce or policy.nonce(), everyone if to is None else to)


def grant_of(group: NodeGroup) -> Request:
    """A grant of a name on the nodes of a group."""
    policy = Policy(size=len(group.nodes))
    request = next(attempt(policy, policy.target(["name"]), label="me", ttl=30))
    assert isinstance(request, Request)
    return request


def test_nothing_overtakes_a_batch(three):
    """What takes the general way in the same tick is in the streams behind it."""

    async def main() -> list[list[str]]:
        await connect(template(group := group_of(three.urls, 5)), group)
        request = grant_of(group)
        granted = group.aask(request)
        part = group.aask(release_of(group, request.nonce, frozenset({0, 1})))
        await asyncio.gather(granted, part)
        await soon(lambda: keys_on(three)[2])
        left = keys_on(three)
        await group.aask(release_of(group, request.nonce))
        return left

    assert asyncio.run(main())[:2] == [[], []]


def test_a_loop_that_shuts_down_sends_what_it_has(three, monkeypatch):
    """A release in the last tick of a loop is carried out."""
    redlock = template(group := group_of(three.urls, 5))

    async def main() -> None:
        await connect(redlock, group)
        request = grant_of(group)
        await group.aask(request)
        await soon(lambda: all(keys_on(three)))
        loop = asyncio.get_running_loop()
        # Called when nothing else runs any more.
        monkeypatch.setattr(loop, "call_soon", nothing)
        group.aask(release_of(group, request.nonce))
        monkeypatch.undo()

    def nothing(*_: object, **__: object) -> None:
        """A callback for which there is no tick."""

    asyncio.run(main())
    assert keys_on(three) == [[]] * 3


@pytest.mark.slow
@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_interruption_while_a_batch_leaves(three, at, monkeypatch):
    """Each release is carried out on all nodes, whichever was being written to."""
    redlock = template(group := group_of(three.urls, 20))
    send_all: Any = Connection.send_all
    # A release waits for each node that was asked.
    monkeypatch.setattr(exchange_module, "LEAST_LINGER", 3600.0)

    async def main() -> list[list[Vote]]:
        await connect(redlock, group)
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        request = grant_of(group)
        await group.aask(request)
        await soon(lambda: all(keys_on(three)))
        left, labels = [at], {node.label for node in group.nodes}

        def interrupted(self: Connection, *args: Any) -> bool:
            ours = self.label in labels  # else a thread of another test undoes something
            left[0] -= ours
            if ours and left[0] == -1:
                raise ZeroDivisionError
            return bool(send_all(self, *args))

        monkeypatch.setattr(Connection, "send_all", interrupted)
        votes = await asyncio.gather(
            *(group.aask(release_of(group, request.nonce)) for _ in range(3))
        )
        await soon(lambda: not any(keys_on(three)))
        return votes

    for votes in asyncio.run(main()):
        assert sorted(vote.answer is Answer.UNKNOWN for vote in votes) == [False, False, True]
        assert all(vote.sent for vote in votes)
    group.close()


def test_a_batch_that_is_taken_apart_keeps_its_order(three, monkeypatch):
    """A grant and what undoes it, in a tick at whose end a node is not well any more."""

    async def main() -> None:
        await connect(template(group := group_of(three.urls, 5)), group)
        well = [True]
        monkeypatch.setattr(LoopConnections, "are_well", lambda *_: well.pop() if well else False)
        request = grant_of(group)
        granted = group.aask(request)
        await asyncio.gather(granted, group.aask(release_of(group, request.nonce)))
        monkeypatch.undo()

    asyncio.run(main())
    assert keys_on(three) == [[]] * 3


def test_an_undo_leaves_though_its_task_is_cancelled_again(three, monkeypatch):
    """A second cancellation, and trouble of a node, in the tick in which the undo was begun."""
    redlock = template(group := group_of(three.urls, 5))

    async def main() -> list[list[str]]:
        await connect(redlock, group)
        well = [True] * 3  # for the grant and at the end of its tick, and for the undo
        monkeypatch.setattr(LoopConnections, "are_well", lambda *_: bool(well and well.pop()))
        task = asyncio.ensure_future(redlock("name").aacquire())
        while len(well) > 1:  # noqa: ASYNC110 - each tick counts
            await asyncio.sleep(0)
        task.cancel()
        asyncio.get_running_loop().call_soon(task.cancel)  # right behind the task's clean-up
        await asyncio.wait([task])
        monkeypatch.undo()
        await group.aask(release_of(group))  # its replies come last
        return keys_on(three)

    assert asyncio.run(main()) == [[]] * 3


def test_a_batch_whose_tick_was_lost_leaves_with_its_timer(three, monkeypatch):
    """An interruption of the loop itself may lose the callback that sends the batch."""
    redlock = template(group := group_of(three.urls, 1.0))

    async def main() -> list[Vote]:
        await connect(redlock, group)
        loop = asyncio.get_running_loop()
        with monkeypatch.context() as patch:
            patch.setattr(loop, "call_soon", lambda *_, **__: None)
            asked = group.aask(release_of(group))
        return await asked

    votes = asyncio.run(main())
    assert sum(vote.answer is not Answer.UNKNOWN for vote in votes) >= 2


def test_a_flush_that_was_lost_is_asked_for_again():
    """One brings all of a tick; without another one all that follows would wait for the timer."""
    every: Any = SimpleNamespace(_flushing=False, _flushes=0.0, _flush=None)
    loop = Mock()
    for since, asked in (100, 1), (100 + loops.STALE / 2, 1), (100 + 2 * loops.STALE, 2):
        LoopConnections.flush_soon(every, since, loop)
        assert loop.call_soon.call_count == asked


# -- looks ----------------------------------------------------------------------------------------


class Alarms:
    """The timers of a loop, by when they are due; the time is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.due: dict[Mock, float] = {}
        monkeypatch.setattr("time.monotonic", lambda: self.now)

    def call_later(self, seconds: float, call: Callable[[Alarms], object], loop: Alarms) -> Mock:
        """Note a timer; as the loop does, forget the one that is cancelled."""
        timer = Mock(call=partial(call, loop))
        timer.cancel = partial(self.due.pop, timer, None)
        self.due[timer] = self.now + seconds
        return timer

    def pass_by(self, seconds: float) -> None:
        """Call what is due meanwhile, in order."""
        end = self.now + seconds
        while due := sorted((when, id(each), each) for each, when in self.due.items()):
            when, _, timer = due[0]
            if when > end:
                break
            self.now = max(self.now, when)
            del self.due[timer]
            timer.call()
        self.now = end


@pytest.fixture
def alarms(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A loop of which only the timers are there."""
    return Alarms(monkeypatch)


class Looked:
    """A batch that notes when it is looked at, and is over then."""

    def __init__(self, looks: Looks, errors: int = 0) -> None:
        self.at: list[tuple[float, float]] = []
        self._looks, self._errors = looks, errors

    def look_again(self, when: float, now: float) -> None:
        """Note it."""
        self.at.append((when, now))
        if len(self.at) <= self._errors:
            raise KeyboardInterrupt
        self._looks.open.pop(self, None)  # type: ignore[call-overload]


def test_each_batch_is_looked_at_when_it_is_due(alarms):
    """Whatever the order in which they were set; one that is over is looked at no more."""
    looks = Looks()
    batches: list[Any] = [Looked(looks) for _ in range(4)]
    for index, when in (0, 103.0), (1, 101.0), (0, 100.5), (2, 102.0), (3, 104.0):
        looks.set(batches[index], when, alarms)
        assert len(alarms.due) == 2  # for all of them: see ``Looks``
    del looks.open[batches[2]]
    alarms.pass_by(3)
    assert len(alarms.due) == 2
    alarms.pass_by(3)
    assert [batch.at for batch in batches] == [[(100.5, 100.5)], [(101, 101)], [], [(104, 104)]]
    assert (looks.open, alarms.due) == ({}, {})


def test_a_batch_that_is_over_is_looked_at_no_more(three):
    """Else the loop would look at it again and again, and never rest."""
    redlock = template(group := group_of(three.urls, LONG))

    async def main() -> object:
        await connect(redlock, group)
        async with redlock("batched"), redlock("alone", limit=2):
            pass
        looks = loop_connections(group)[0].group.looks
        await soon(lambda: not looks.open)
        return looks.open

    assert asyncio.run(main()) == {}


def test_a_look_that_is_interrupted_comes_once_more(alarms):
    """And so do those behind it: what waits for a silent node must not hang."""
    looks = Looks()
    batches: list[Any] = [Looked(looks, errors=1), Looked(looks)]
    for batch in batches:
        looks.set(batch, 101.0, alarms)
    with pytest.raises(KeyboardInterrupt):
        alarms.pass_by(2)
    alarms.pass_by(2)
    assert [len(batch.at) for batch in batches] == [2, 1]
    assert (looks.open, alarms.due) == ({}, {})


def test_a_look_whose_timer_was_lost_comes_a_second_later(alarms):
    """An interruption of the loop itself may lose a timer that it has just taken out."""
    looks = Looks()
    batch: Any = Looked(looks)
    looks.set(batch, 101.0, alarms)
    del alarms.due[min(alarms.due, key=alarms.due.__getitem__)]
    alarms.pass_by(5)
    assert batch.at == [(101.0, 101.0 + loops.LATE)]

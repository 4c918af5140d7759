"""A server says that it is not the one that is wanted: the next connection asks the address again.

Behind an address with failover the connections to the old master stay open. It is a replica then,
and says so to every request that changes something, for as long as it lives.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace

import pytest

from django_redlock.core.commands import Acquire, Release, Survey
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Answer, Command, Request, Vote
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes import connection as connection_module
from django_redlock.nodes import node as node_module
from django_redlock.nodes.address import from_url
from django_redlock.nodes.connection import Connection, PlainCommand, packed
from django_redlock.nodes.faults import CLOSED
from django_redlock.nodes.handshake import open_connection
from tests.support.loops import connects, group_of, template
from tests.support.waiting import eventually
from tests.support.wire import Heard

from .odd_node import Oddity, OddNode

TARGET = Policy(size=1).target(["name"])
NONCE = "0123456789abcdef" * 2
LONG = 600.0  # seconds: nothing here lasts for so long
READONLY = "READONLY You can't write against a read only replica."
AWAY = {
    "READONLY": READONLY,
    "READONLY of Redis 6": "ERR Error running script (call to f_d8d5a5f64a37482180c2bff3c849841803"
    f"502e9f): @user_script:1: @user_script: 1: -{READONLY}",
    "MOVED": "MOVED 3999 127.0.0.1:6381",
    "CLUSTERDOWN": "CLUSTERDOWN The cluster is down",
    "MASTERDOWN": "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is 'no'.",
}
HERE = {
    "an error": "ERR boom",
    "OOM": "OOM command not allowed when used memory > 'maxmemory'.",
    "MISCONF": "MISCONF Redis is configured to save RDB snapshots",
    "NOREPLICAS": "NOREPLICAS Not enough good replicas to write.",
    "BUSY": "BUSY Redis is busy running a script.",
    "NOPERM": "NOPERM this user has no permissions",
    "a word that begins so": "READONLYISH x",
}
LOADING = "LOADING server is loading the dataset in memory"
GRANT = Acquire(NONCE, bool, TARGET, 1, 1, 1, "")
RELEASE = Release(NONCE, bool, TARGET)
SURVEY = Survey(NONCE, bool, TARGET.held, TARGET.waits, "redlock:lock:", 0, ("name",))


@contextmanager
def saying(text: str) -> Iterator[OddNode]:
    """A node that says this to every request after its handshake."""
    data = f"-{text}\r\n".encode()
    with OddNode(Oddity(text, lambda *_: [data], ends=False)) as node:
        yield node


@contextmanager
def opened(node: OddNode) -> Iterator[Connection]:
    """A connection to it."""
    address = from_url(node.url)
    connection = open_connection(
        address, index=0, fences="fences", guard=0, skew=5, earlier=None, timeout=20
    )
    yield connection
    connection.close(CLOSED)


def ask(connection: Connection, *requests: Request) -> tuple[list[Heard], list[Vote]]:
    """Ask these at once; read until each has its vote."""
    votes: list[Vote] = []
    asked = [Heard(each, lambda _, vote: votes.append(vote)) for each in requests]
    for each in asked:
        assert connection.put(each)
    connection.flush()
    poll = select.poll()
    poll.register(connection.fileno, select.POLLIN)
    while len(votes) < len(asked):
        assert poll.poll(20_000)
        connection.read()
    return asked, votes


# -- which replies --------------------------------------------------------------------------------


@pytest.mark.parametrize("text", AWAY.values(), ids=AWAY)
@pytest.mark.parametrize("request_", [GRANT, RELEASE], ids=["grant", "release"])
def test_a_reply_that_turns_away_ends_the_connection(text, request_):
    """The vote tells the reason as ever; an undo is kept for the next connection."""
    with saying(text) as node, opened(node) as connection:
        (asked,), (vote,) = ask(connection, request_)
        assert vote.answer is Answer.UNKNOWN
        assert connection.fault == vote.reason
        if "READONLY" in text:
            assert vote.reason == because(ReasonCode.READ_ONLY)
        assert asked.kept == ([0] if request_ is RELEASE else [])
        eventually(lambda: node.open == 0)


@pytest.mark.parametrize("text", HERE.values(), ids=HERE)
def test_another_error_ends_no_connection(text):
    """The server is the one that is wanted, and is not well."""
    with saying(text) as node, opened(node) as connection:
        for request in GRANT, RELEASE:
            ask(connection, request)
        assert connection.fault is None


@pytest.mark.parametrize("text", AWAY.values(), ids=AWAY)
def test_who_only_looks_ends_no_connection(text):
    """A replica tells people what it stores."""
    with saying(text) as node, opened(node) as connection:
        ask(connection, SURVEY)
        assert connection.fault is None


def test_a_waiter_that_is_turned_away_ends_its_connection():
    """BLPOP takes a wake-up out of its list."""
    with saying(READONLY) as node, opened(node) as connection:
        votes: list[Vote] = []
        data = packed("BLPOP", "queue", 1)
        connection.send(PlainCommand(Command.BLOCK, b"queue", data, lambda _, v: votes.append(v)))

        def heard() -> bool:
            connection.read()
            return bool(votes)

        eventually(heard)
        assert connection.fault == because(ReasonCode.READ_ONLY)


def test_loading_that_lasts_ends_the_connection(monkeypatch):
    """A master has soon loaded its data; a replica that loads its new master's may take hours."""
    clock = SimpleNamespace(now=100.0)
    with saying(LOADING) as node, opened(node) as connection:
        fake = SimpleNamespace(monotonic=lambda: clock.now)
        monkeypatch.setattr(connection_module, "time", fake)
        for passed in (0.0, 0.5, 0.4):
            clock.now += passed
            ask(connection, GRANT)
            assert connection.fault is None
        clock.now += 0.2
        ask(connection, SURVEY)
        assert connection.fault is None
        ask(connection, GRANT)
        assert connection.fault == because(ReasonCode.LOADING)


def test_a_burst_ends_the_connection_once():
    """Fifty requests in one pipe, each of which is turned away; each undo among them is kept."""
    with saying(READONLY) as node, opened(node) as connection:
        ended: list[bool] = []
        disconnect = connection._connection.disconnect

        def noted() -> None:
            ended.append(True)
            disconnect()

        connection._connection.disconnect = noted  # type: ignore[method-assign]
        asked, votes = ask(connection, *[GRANT, RELEASE] * 25)
        assert [each.kept for each in asked] == [[], [0]] * 25
        assert {vote.code for vote in votes} == {ReasonCode.READ_ONLY}
        assert (len(votes), len(ended)) == (50, 1)


# -- how often a node is connected to again -------------------------------------------------------


def test_the_back_off_grows(monkeypatch):
    """As of a node that cannot be reached; anew when it has been well for a while."""
    clock = SimpleNamespace(now=100.0)
    with saying(READONLY) as odd, closing(group_of([odd.url])) as group:
        fake = SimpleNamespace(monotonic=lambda: clock.now)
        for module in (node_module, connection_module):
            monkeypatch.setattr(module, "time", fake)
        (node,) = group.nodes

        def pause() -> float:
            """Be turned away once more; the seconds until the node is tried again."""
            connection = node.connection(at_least=-LONG, last=True)
            assert connection is not None
            ask(connection, GRANT)
            assert node.state(clock.now).reason == because(ReasonCode.READ_ONLY)
            return float(round(node._retry_at - clock.now, 6))

        paused = []
        for _ in range(8):
            paused.append(pause())
            assert node.connection(at_least=-LONG, last=False) is None
            assert node._retry_at == clock.now + paused[-1]  # it counted that once
            clock.now += paused[-1]
        assert paused == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
        clock.now += 60
        assert pause() == 0.05


def test_an_older_connection_says_nothing_of_the_address():
    """It is closed; the node is not down, for a newer one may lead to the new master."""
    with saying(READONLY) as odd, closing(group_of([odd.url])) as group:
        (node,) = group.nodes
        older = node.connection(at_least=-LONG, last=True)
        newer = node.connection(at_least=-LONG, last=True)
        assert older is not None
        assert newer is not None
        ask(older, GRANT)
        assert older.fault
        assert node.state(time.monotonic()).voting
        node.give(newer, time.monotonic())
        assert node.take(time.monotonic()) is newer
        ask(newer, GRANT)
        assert not node.state(time.monotonic()).voting


def by_threads(redlock: LockTemplate) -> Vote:
    """The first node's vote on a lock."""
    with redlock("name") as lease:
        return lease.grant.votes[0]


def by_tasks(redlock: LockTemplate) -> Vote:
    """The same, in an event loop that has its own connections."""

    async def main() -> Vote:
        async with redlock("name") as lease:
            return lease.grant.votes[0]

    return asyncio.run(main())


@pytest.mark.parametrize("take", [by_threads, by_tasks])
def test_a_replica_is_not_connected_to_at_every_request(three, monkeypatch, take):
    """Forty locks are told what it said, over one connection."""
    for name in ("LEAST_BACKOFF", "MOST_BACKOFF"):
        monkeypatch.setattr(node_module, name, LONG)
    with saying(READONLY) as odd:
        urls = [odd.url, *three.urls[:2]]
        with closing(group_of(urls, 20.0)) as group, connects(group) as counts:
            redlock = template(group)
            eventually(lambda: take(redlock).code == ReasonCode.READ_ONLY)
            assert {take(redlock).code for _ in range(40)} == {ReasonCode.READ_ONLY}
            assert counts[0] == 1

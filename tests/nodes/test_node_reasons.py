"""How a node comes to give no vote: each reason is met, most of them on real nodes."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from django_redlock import NodesUnavailable
from django_redlock.core.commands import Acquire
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Answer, BlockOnNode, Command, Vote, Waiter
from django_redlock.core.reasons import Reason, ReasonCode, because
from django_redlock.nodes import admission, replies
from django_redlock.nodes import node as node_module
from django_redlock.nodes.admission import ServerInfo
from django_redlock.nodes.connection import Connection, PlainCommand, packed
from django_redlock.nodes.faults import CLOSED
from django_redlock.nodes.group import NodeGroup
from django_redlock.nodes.queue import BlockedConnection
from django_redlock.testing import EmbeddedNodes
from tests.support.links import connected
from tests.support.loops import group_of, idle, loop_connections, soon, template, unguarded
from tests.support.waiting import eventually

from .odd_node import ODDITIES, OddNode
from .test_odd_answers import LONG, opened

FACTS = ServerInfo("run", "valkey", 1000.0, "master", promoted=False, cluster=False)


@pytest.fixture(scope="module")
def nodes() -> Iterator[EmbeddedNodes]:
    """Three nodes, without the guard."""
    with unguarded(3) as nodes:
        yield nodes


@pytest.fixture
def group(nodes, request: pytest.FixtureRequest) -> Iterator[NodeGroup]:
    """A process's view of them, connected; no node has to be quick, unless a test says so."""
    with closing(group_of(nodes.urls, getattr(request, "param", LONG))) as group:
        template(group)("warm").acquire(wait=LONG).release()
        eventually(lambda: all(state.voting for state in group.states()))
        yield group


def codes(error: NodesUnavailable) -> list[str]:
    """What the votes say."""
    return [vote.code for vote in error.votes]


def unavailable(group: NodeGroup) -> list[str]:
    """Why no lock is to be had."""
    with pytest.raises(NodesUnavailable) as caught:
        template(group)("name").acquire()
    return codes(caught.value)


# -- out of reach ---------------------------------------------------------------------------------


def test_nobody_was_there_yet():
    """Before the first question."""
    (state,) = group_of(["redis://127.0.0.1:1/0"]).states()
    assert (state.code, state.why) == (ReasonCode.NEVER_REACHED, "never reached")
    assert not state.voting


def test_a_node_that_was_connected_meanwhile_is_not_suspected(group):
    """It was given up as silent, and its connection came just then."""
    node = group.nodes[0]
    attempt = node.open(time.monotonic(), urgent=True)
    assert attempt.done.wait(LONG)
    node.suspect(attempt)
    assert not node.down_reason
    node.forgo(attempt)


def test_nobody_listens(tmp_path):
    """A closed port, and a path without a socket."""
    urls = ["redis://127.0.0.1:1/0", f"unix://{tmp_path}/none"]
    with closing(group_of(urls, 5)) as group:
        expected = [ReasonCode.CONNECTION_REFUSED, ReasonCode.NO_SUCH_SOCKET]
        assert unavailable(group) == expected


@pytest.mark.parametrize(("longest", "gives_up"), [(LONG, False), (0.3, True)])
def test_what_listens_says_nothing(nodes, monkeypatch, longest, gives_up):
    """Who needs no third vote waits for 0.3 s; the connection fails when it was silent so long."""
    monkeypatch.setattr(node_module, "OPEN_TIMEOUT", longest)
    listener = socket.create_server(("127.0.0.1", 0))
    silent = f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
    with closing(group_of([*nodes.urls[:2], silent], 0.3)) as group, listener:
        lease = template(group)("name").acquire(wait=LONG)
        if gives_up:
            eventually(lambda: group.states()[2].code == ReasonCode.CONNECT_TIMEOUT)
        else:
            assert lease.grant.votes[2].code == ReasonCode.CONNECTING
            assert group.states()[2].code == ReasonCode.CONNECTING  # no later request waits for it
        assert group.nodes[2].down is gives_up
        lease.release()


def test_no_thread_can_connect(nodes, monkeypatch):
    """Of a task that cannot even begin to connect."""

    async def take() -> list[str]:
        with pytest.raises(NodesUnavailable) as caught:
            await template(unmet)("name").aacquire()
        return codes(caught.value)

    with closing(group_of(nodes.urls)) as unmet:
        for node in unmet.nodes:
            monkeypatch.setattr(node.threads, "offer", lambda *_, **__: False)
        assert asyncio.run(take()) == [ReasonCode.NO_THREAD] * 3


# -- no vote --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("facts", "code"),
    [
        (FACTS._replace(cluster=True), ReasonCode.CLUSTER),
        (FACTS._replace(role="slave"), ReasonCode.REPLICA),
        (FACTS._replace(promoted=True), ReasonCode.PROMOTED),
    ],
)
def test_what_never_votes(facts, code):
    """What it says of itself bars it."""
    assert admission.objection(facts, failover=False) == because(code)
    assert admission.objection(FACTS, failover=False) is None


def test_what_votes_with_failover():
    """A promoted replica whose data have an id; a replica and a cluster node never."""
    told = FACTS._replace(promoted=True, replid="0" * 40)
    assert admission.objection(told, failover=True) is None
    for facts in (
        told._replace(replid=""),
        told._replace(role="slave"),
        told._replace(cluster=True),
    ):
        assert admission.objection(facts, failover=True) is not None
    said = str(admission.objection(told, failover=False, only_node_of="shop"))
    assert said.endswith("set 'FAILOVER': True in REDLOCK['shop'])")


def test_the_guard_says_what_to_set_for_a_single_node():
    """Its code is the same; only the sentence is longer."""
    several, single = admission.guarded(3.21), admission.guarded(3.21, "jobs")
    assert {several.code, single.code} == {ReasonCode.RESTART_GUARD}
    sentence = (
        "restart guard: new here, or started, emptied or promoted a short while ago, 3.2 s left"
    )
    assert str(several) == sentence
    assert str(single) == (
        f"{sentence} (if this single node's locks only save work, set 'RESTART_GUARD': False in "
        "REDLOCK['jobs'])"
    )


def test_a_node_that_is_listed_twice(nodes):
    """By another database, which is the same server."""
    urls = [nodes.urls[0], nodes.urls[0].replace("/0", "/1")]
    with closing(group_of(urls, 5)) as group:
        eventually(lambda: unavailable(group) == ["", ReasonCode.DUPLICATE])
        assert group.states()[1].code == ReasonCode.DUPLICATE


def test_a_node_that_was_emptied():
    """It says so to a process that knew it before."""
    request = Acquire("0" * 32, bool, Policy(size=3).target(["a"]), 0, 0, 0, "")
    vote = replies.vote(request, "a", b"0" * 32, [b"0" * 32, b"EMPTY"])
    assert vote == Vote("a", Answer.UNKNOWN, reason=because(ReasonCode.EMPTIED), sent=False)


# -- odd answers ----------------------------------------------------------------------------------


def test_a_connection_that_is_reset():
    """The system says why."""
    with OddNode(next(each for each in ODDITIES if each.name == "a number")) as node:
        connection = opened(node.url)
        node.reset()

        def fault() -> Reason | None:
            connection.read()
            reason: Reason | None = connection.fault
            return reason

        assert eventually(fault) == because(
            ReasonCode.CONNECTION_LOST, text="Connection reset by peer"
        )


# -- no answer ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("group", [0.5], ids=["node timeout"], indirect=True)
def test_a_node_that_stands_still(nodes, group):
    """Its vote is missing, and it is known to be silent."""
    nodes.pause(2)
    try:
        nodes.pause(1)
        votes = unavailable(group)
        assert votes[1:] == [ReasonCode.NO_ANSWER] * 2
        assert group.states()[1].code == ReasonCode.NO_ANSWER
        assert group.states()[1].why.startswith("no answer for ")
    finally:
        nodes.resume(1)
        nodes.resume(2)


def test_a_node_that_a_majority_does_not_wait_for(nodes, group):
    """Its vote says that nobody waited."""
    nodes.pause(2)
    try:
        lease = template(group)("other").acquire()
        assert lease.grant.votes[2].code == ReasonCode.NOT_WAITED_FOR
        lease.release()
    finally:
        nodes.resume(2)


def test_a_connection_with_a_backlog(group):
    """It takes no more, and the node may answer as it will."""
    for node in group.nodes[:2]:
        idle(node)[-1].backlog = 1 << 30
    assert unavailable(group)[:2] == [ReasonCode.BACKLOG] * 2


# -- ended by us ----------------------------------------------------------------------------------


def taken(group: NodeGroup) -> Connection:
    """An idle connection, checked out."""
    connection = group._threads.take(group.nodes[0], time.monotonic())
    assert connection is not None
    return connection


def owing(connection: Connection, heard: list[Vote]) -> None:
    """Have the node owe an answer over a connection, for as long as that is open."""
    data = packed("BLPOP", "reasons:nothing", "0")
    hear = lambda _, vote: heard.append(vote)  # noqa: E731
    assert connection.send(PlainCommand(Command.BLOCK, b"", data, hear))


def test_why_a_connection_was_ended(group, monkeypatch):
    """It says so to a process that inherits it, and to a caller that awaits a reply."""
    node, now = group.nodes[0], time.monotonic()
    left, full, surplus = (opened(_url(group)) for _ in range(3))
    heard: list[Vote] = []
    owing(left, heard)
    node._free.append(left)
    group.close()
    assert left.fault == heard[0].reason == because(ReasonCode.CLOSED)

    full.unsent = 1
    monkeypatch.setattr(full, "flush", lambda: False)
    node.give(full, now)
    assert full.fault == because(ReasonCode.TAKES_NO_MORE)

    monkeypatch.setattr(node_module, "SPARE", 0)
    node.give(surplus, now)
    assert surplus.fault == because(ReasonCode.SURPLUS)


def _url(group: NodeGroup) -> str:
    return f"redis://{group.nodes[0].label}"


def test_a_guard_that_is_over(group):
    """The node is looked at again, over a new connection: from an idle one, and from a link."""
    connection = taken(group)
    connection.guarded, connection.votes_from = True, time.monotonic()
    group.nodes[0].give(connection, time.monotonic())
    group.nodes[0]._free[:] = [connection]
    assert group.nodes[0].take(time.monotonic()) is None
    link = connected(group)
    of_link = link.drop(1)
    of_link.guarded, of_link.votes_from = True, time.monotonic()
    link.have(1, of_link)
    link.settle()
    assert connection.fault == of_link.fault == because(ReasonCode.GUARD_OVER)


def test_a_guard_that_is_nearly_over(group, monkeypatch):
    """A node has no vote in the last moments of its guard either."""
    monkeypatch.setattr(admission, "guard_left", lambda *_: 0.5)
    connection = opened(_url(group))
    connection.close(CLOSED)
    assert connection.guarded
    assert connection.votes_from == connection.opened + 0.5


def test_a_queue_that_was_left(group):
    """Its connection stands in it still, and is closed."""
    connection = taken(group)
    effect = BlockOnNode(Waiter("reasons:queue"), 0, LONG, LONG)
    blocked = BlockedConnection(
        group.nodes[0], connection, effect, lambda *_: False, group._threads
    )
    blocked.end()
    assert blocked.vote == Vote(
        connection.label, Answer.UNKNOWN, reason=because(ReasonCode.LEFT_QUEUE)
    )


def test_a_loop_that_ends(nodes, group):
    """Who waits for an answer of its connection is told."""
    heard: list[Vote] = []

    async def leave() -> None:
        await template(group)("loop").aacquire()
        (own, *_) = loop_connections(group)
        await soon(lambda: not own.connection.owed)
        owing(own.connection, heard)

    asyncio.run(leave())
    assert [vote.reason for vote in heard] == [because(ReasonCode.LOOP_ENDS)]

"""A link: the usual way gives the votes that the general way gives, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from django_redlock import events
from django_redlock.core.commands import Extend, Extension
from django_redlock.core.hold import undo
from django_redlock.core.protocol import Answer, Command, Vote
from django_redlock.core.quorum import all_heard, kept_or_not, with_majority
from django_redlock.core.reasons import ReasonCode
from django_redlock.leases.lease import Lease
from django_redlock.nodes.connection import BACKLOG, SentAgain, undoing_until
from django_redlock.nodes.exchange import Exchange
from django_redlock.nodes.faults import CLOSED
from django_redlock.nodes.link import LARGEST, Link
from django_redlock.testing import EmbeddedNodes
from tests.nodes.odd_node import ODDITIES, QUIET, OddNode
from tests.support.links import (
    LONG,
    NONCE,
    TARGET,
    Held,
    asking,
    connected,
    generally,
    grant,
    links_of,
    overdue,
    release,
    settled,
    threads_of,
)
from tests.support.loops import group_of, idle, keys_on, template
from tests.support.waiting import eventually

EXTENSION = Extend(NONCE, with_majority(kept_or_not, 2), [Extension(NONCE, TARGET, 9000)])
SAMPLE = {  # of what is odd
    "html",
    "an error",
    "a map by a list",
    "somebody else's",
    "granted 0",
    "granted and more",
    "held by other types",
    "freed without a number",
    "gone for 99 who wait",
    "the end",
    "half of an answer and the end",
    "nothing at all",
}


def told(votes: list[Vote]) -> list[tuple[Any, ...]]:
    """What votes say, but for the time that is left of a key."""
    return [
        (
            vote.answer,
            vote.fence > 0,
            vote.woken,
            vote.left and 1,
            vote.holder,
            vote.owner,
            vote.code,
            vote.sent,
        )
        for vote in votes
    ]


# -- the same votes -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "oddity",
    [each for each in ODDITIES if each.name in SAMPLE],
    ids=lambda oddity: oddity.name,
)
@pytest.mark.parametrize("request_", [grant(), release()], ids=["grant", "release"])
def test_an_odd_reply_has_the_vote_that_it_has_in_the_general_way(oddity, request_, three):
    """Whatever one node says, the votes are the same."""
    timeout = 0.3 if oddity.name in QUIET else LONG
    votes = []
    for way in nullcontext, generally:
        with OddNode(oddity) as odd, way():
            group = group_of([odd.url, *three.urls[1:]], timeout)
            connected(group)
            request = replace(request_, decided=lambda votes: None not in votes)
            votes.append(told(group.ask(request)))
            group.ask(release())
            group.close(0)  # the odd node carries out nothing
    assert votes[0][1:] == votes[1][1:]
    assert votes[0][0][:-2] == votes[1][0][:-2]


@pytest.mark.parametrize("way", [nullcontext, generally], ids=["usual", "general"])
def test_nodes_are_written_to_in_the_order_of_the_request(three, way):
    """Whichever was connected first: those who want one name meet at the same node."""
    group = group_of(three.urls, LONG)
    asked: list[int] = []
    link, send = connected(group), socket.socket.send
    for index in (2, 0, 1):
        link.have(index, link.drop(index))

    def noting(own: socket.socket, data: bytes) -> int:
        asked.extend(i for i, each in link.connections.items() if each.fileno == own.fileno())
        return send(own, data)

    with way(), patch.object(socket.socket, "send", noting):
        group.ask(replace(grant(), first=1))
    assert asked == [1, 2, 0]
    group.ask(release())


def freed_with_a_waiter(
    three: EmbeddedNodes, *, way: Any = nullcontext, gone: bool
) -> tuple[list[tuple[Answer, int]], bool]:
    """Release a name for which somebody waits; answers, numbers, and whether the way was usual.

    Args:
        gone: whether a node has lost the key.
    """
    group = group_of(three.urls, LONG)
    general: list[Exchange] = []
    for request in (grant(), replace(grant("f" * 32), waits=1500)):
        group.ask(replace(request, decided=all_heard))
    connected(group)
    if gone:
        with closing(three[2].client()) as client:
            client.delete(TARGET.keys[0])
    listen = Link._listen

    def noting(link: Link, asked: Exchange) -> None:
        general.append(asked)
        listen(link, asked)

    with (
        patch("django_redlock.nodes.exchange.LEAST_LINGER", LONG),  # each node is waited for
        patch("django_redlock.nodes.link.LEAST_LINGER", LONG),
        patch.object(Link, "_listen", noting),
        way(),
    ):
        votes = group.ask(release())
    group.close()
    with closing(three[0].client()) as client:
        assert client.lrange(TARGET.queues[0], 0, -1) == [NONCE.encode()]
    for node in three:
        with closing(node.client()) as client:
            client.delete(TARGET.queues[0], TARGET.waits, *TARGET.keys)
    return [(vote.answer, vote.woken) for vote in votes], not general


WOKEN = [(Answer.YES, 1)] * 3


@pytest.mark.parametrize("gone", [False, True])
def test_a_release_that_wakes_a_waiter_has_the_same_votes_either_way(three, gone):
    """Where a node has lost the key, the general way goes on with what the others have told."""
    votes = [*WOKEN[:2], (Answer.NO, 1)] if gone else WOKEN
    assert freed_with_a_waiter(three, way=generally, gone=gone) == (votes, False)
    assert freed_with_a_waiter(three, gone=gone) == (votes, not gone)


# -- late replies ---------------------------------------------------------------------------------


def at_once(held: Held) -> None:
    """The thread releases."""
    held.lease.release()


def nested(held: Held) -> None:
    """Other locks have used the link meanwhile."""
    for _ in range(3):
        with held.redlock("inner"):
            pass
    held.lease.release()


def to_some(held: Held) -> None:
    """Undos that ask the node where the grant is on its way, and then the others."""
    policy, grant = held.lease.backend.policy, held.lease.grant
    held.lease.disown()
    for places in ({2}, {0, 1}):
        held.group.ask(undo(policy, grant.target, grant.nonce, frozenset(places)))


def watched(held: Held) -> None:
    """A release while somebody watches the nodes."""
    events.watch_nodes(held.noted.append)
    try:
        held.lease.release()
    finally:
        events.unwatch_nodes(held.noted.append)


WAYS = (at_once, nested, to_some, watched)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_release_goes_behind_its_grant(held, way):
    """An undo that overtakes its grant would leave the name taken on that node for its ttl."""
    way(held)
    assert held.all_free()


@pytest.mark.parametrize("command", [Command.GRANT, Command.RELEASE, Command.EXTEND])
def test_a_release_that_overtakes_its_grant_is_sent_once_more(held, command, monkeypatch):
    """Another call has the link of the grant, whose reply comes late, when nobody asks any more."""
    threads = threads_of(held.group)
    looks: list[object] = []
    pause = threads.threads.pause
    monkeypatch.setattr(threads.threads, "pause", lambda _: looks.append(pause(0.01)))
    link = threads.owing.popitem()[1]
    held.lease.release()
    threads._put_back(link, command)
    eventually(held.overtaken)
    eventually(lambda: len(looks) >= 3)
    held.proxy.let_go()
    eventually(lambda: keys_on(held.nodes) == [[]] * 3)


def test_the_reply_to_an_undo_that_is_sent_again_is_of_interest(held):
    """As that to the first: somebody reads for it."""
    (link,) = threads_of(held.group).owing.values()
    undone = asking(held.group, release())
    link.connections[2].owed.append(SentAgain(undone, b"", undone.start))
    assert link.is_undoing
    assert undoing_until(link.connections[2].owed) == undone.start + 60.0
    link.connections[2].owed.pop()
    held.lease.release()
    assert held.all_free()


def test_an_undo_to_a_node_that_hangs_goes_into_its_kernel(held):
    """The node carries it out behind the grant, even if this process has gone by then."""
    overdue(held.group, 2, 0.05)
    (link,) = threads_of(held.group).owing.values()
    eventually(lambda: settled(link) and 2 not in link.connections)
    held.lease.release()
    (silent,) = held.group.nodes[2]._stalled
    assert [each.command for each in silent.owed] == ["grant", "release"]
    overdue(held.group, 2, LONG)
    held.proxy.let_go()
    eventually(lambda: keys_on(held.nodes) == [[]] * 3)


@pytest.mark.parametrize("asked", [grant(), EXTENSION], ids=["grant", "extension"])
def test_a_node_that_owes_too_much_is_not_asked_nor_waited_for(three, asked):
    """The others are asked in the usual way."""
    with closing(group_of(three.urls, LONG)) as group:
        link, exchange = connected(group), asking(group, asked)
        link.connections[2].backlog = BACKLOG
        votes = link.carry(exchange)
        assert (votes[2].code, exchange.prompt) == (ReasonCode.BACKLOG, (0, 1))
        assert not link.connections[2].owed
        group.ask(replace(release(), decided=all_heard))


def test_a_connection_that_does_not_take_a_request_is_dropped(three):
    """Nobody waits for it, nor uses it again."""
    with closing(group_of(three.urls, LONG)) as group:
        link = connected(group)

        def refuse(_: bytes) -> int:
            raise ConnectionResetError

        indexes, ends = link._in_order(0)
        index, connection, _, epoch = ends[2]
        link._orders[0] = indexes, [*ends[:2], (index, connection, refuse, epoch)]
        votes = link.carry(asking(group, grant()))
        assert [vote.answer for vote in votes[:2]] == [Answer.YES] * 2
        assert [*link.connections] == [0, 1]
        group.ask(replace(release(), decided=all_heard))


def test_a_link_without_a_majority_waits_for_nodes_to_be_connected(three):
    """In the general way; the usual one tries a node only when its back-off is over."""
    group = group_of(three.urls, LONG)
    link = connected(group)
    for place in (1, 2):
        link.drop(place).close(CLOSED)
        group.nodes[place].down_reason, group.nodes[place]._retry_at = CLOSED, math.inf
    assert not link._is_usual(asking(group, grant()))
    assert [vote.answer for vote in group.ask(grant())].count(Answer.YES) >= 2
    group.ask(replace(release(), decided=all_heard))
    group.close()


def test_a_connection_that_ends_while_it_owes_a_reply_is_not_read_again_and_again(
    held, monkeypatch
):
    """The release is kept for the next connection, and the thread does not spin meanwhile."""
    slept: list[tuple[int, ...]] = []
    poll_of = Link._poll_of

    def noting(link: Link, places: tuple[int, ...]) -> Any:
        slept.append(places)
        return poll_of(link, places)

    monkeypatch.setattr(Link, "_poll_of", noting)
    monkeypatch.setattr(Link, "settle", lambda _: None)  # it ends after that look
    monkeypatch.setattr("django_redlock.nodes.link.LEAST_LINGER", 0.2)
    held.proxy.cut()
    held.lease.release()
    assert len(slept) <= 10
    held.proxy.heal()
    held.proxy.let_go()
    eventually(lambda: keys_on(held.nodes) == [[]] * 3)


def test_a_reply_in_the_usual_way_tells_that_the_node_lives(three):
    """The guard of a node that restarts counts from its last reply at the earliest."""
    group = group_of(three.urls, LONG)
    lent = connected(group)
    redlock, connections, before = template(group), [*lent.connections.values()], time.monotonic()

    def all_live() -> bool:
        with redlock("alive"):
            pass
        return all(each.answered >= before for each in connections)

    eventually(all_live)
    group.close()


# -- which call has a link, and where its connections go ------------------------------------------


def stands_on(lease: Any) -> int:
    """How many nodes granted a lease."""
    return sum(vote.answer is Answer.YES for vote in lease.grant.votes)


def end_connections(nodes: EmbeddedNodes, lent: Link) -> None:
    """Have the nodes end all connections."""
    for node in nodes:
        node.client().execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    eventually(lambda: len(lent._poll.poll(0)) == len(lent.connections))


def test_a_connection_that_was_closed_costs_no_vote(three):
    """New connections are opened, and all nodes vote."""
    group = group_of(three.urls, LONG)
    end_connections(three, connected(group))
    with template(group)("closed") as lease:
        assert sum(vote.code == "" for vote in lease.grant.votes) >= 2
        assert all(vote.code in ("", "not_waited_for") for vote in lease.grant.votes)
    group.close()


def test_a_node_that_hangs_is_left_out_until_it_is_back(three):
    """Its vote is missing, at no cost; when it answers again, it votes."""
    group = group_of(three.urls, LONG)
    redlock = template(group)
    with redlock("before"):
        pass
    overdue(group, 2, 0.3)
    three.pause(2)
    try:

        def left_out() -> bool:
            with redlock("meanwhile"):
                pass
            return any(link.connections.keys() == {0, 1} for link in links_of(group))

        eventually(left_out)
        for number in range(50):
            with redlock(f"meanwhile:{number}") as lease:
                # A look at it that lasts too long may have said the same of it since.
                assert lease.grant.votes[2].code in ("no_answer", "connect_timeout")
                assert not lease.grant.votes[2].sent
        assert left_out()
    finally:
        three.resume(2)

    def votes_again() -> bool:
        with redlock("after") as lease:
            return stands_on(lease) == 3

    eventually(votes_again)
    eventually(lambda: keys_on(three) == [[]] * 3)
    group.close()


def test_an_event_loop_takes_the_connections_of_a_link(three):
    """Threads and loops share the process's connections: neither opens more while some are idle."""
    group = group_of(three.urls, LONG)
    redlock, ids = template(group), []
    ids.append({each.client for each in connected(group).connections.values()})

    async def main() -> None:
        async with redlock("loop"):
            pass

    asyncio.run(main())
    ids.append({connection.client for node in group.nodes for connection in idle(node)})
    assert ids[0] == ids[1]
    group.close()


@pytest.mark.parametrize(
    "hinder",
    [
        lambda group: group.nodes[1].undos.kept.update(x=None),
        lambda group: setattr(group.nodes[1], "duplicate_of", "another"),
    ],
    ids=["undo", "duplicate"],
)
def test_what_the_general_way_must_see_to_goes_that_way(three, hinder):
    """An undo that a node has not carried out goes first; and a server has one vote."""
    group = group_of(three.urls, LONG)
    link = connected(group)
    assert link._is_usual(asking(group, grant()))
    long = asking(group, replace(grant(), label="x" * LARGEST))
    assert not link._is_usual(long)  # a socket may not take it at once
    hinder(group)
    assert not link._is_usual(asking(group, grant()))
    group.nodes[1].undos.kept.clear()
    group.close()


def test_what_a_node_that_is_down_has_not_undone_costs_the_others_nothing(three):
    """Its releases wait for it, and requests to the others go the usual way."""
    group = group_of(three.urls, LONG)
    link = connected(group)
    link.drop(2).close(CLOSED)
    group.nodes[2].down_reason = CLOSED
    group.nodes[2].undos.kept.update(x=None)  # type: ignore[call-overload]
    group.nodes[2]._retry_at = math.inf
    assert link._is_usual(asking(group, grant()))
    group.nodes[2].undos.kept.clear()
    group.close()


def test_a_new_connection_may_have_the_number_of_one_that_was_closed(three):
    """It is closed while a request is written, and dropped at the end."""
    group = group_of(three.urls, LONG)
    link = connected(group)
    old = link.connections[0]
    link.drop(1)
    old.close(CLOSED)
    opened = [group.nodes[1]._connect(bool) for _ in range(8)]
    (new,) = [each for each in opened if each is not None and each.fileno == old.fileno]
    link.have(1, new)
    link.drop(0)
    assert link._indexes[new.fileno] == 1
    with template(group)("number") as lease:
        assert lease.fence > 0
    group.close()


def test_a_vote_that_is_short_is_waited_for_until_one_more_node_is_connected(three, monkeypatch):
    """As patiently as for a majority: one node has an error, and another connects slowly."""
    group = group_of(three.urls, LONG)
    link, asked = connected(group), asking(group, grant())
    asked.votes[:] = [Vote("a", Answer.YES, fence=1), Vote("b", Answer.UNKNOWN), None]
    late, urgent = link.drop(2), list[bool]()
    link._attempts[2] = group.nodes[2].open(time.monotonic(), urgent=True)  # type: ignore[assignment]

    def wait(link: Link, _: Exchange, is_urgent: Callable[[], bool]) -> None:
        urgent.append(is_urgent())
        link.have(2, late)
        urgent.append(is_urgent())

    monkeypatch.setattr(Link, "_wait_for_connections", wait)
    assert link._more(asked)
    assert urgent == [True, False]
    group.close()


def test_a_waiter_leaves_the_link_whole(three):
    """It blocks on a connection of its own; when it is woken it asks over the link."""
    holders, waiters = group_of(three.urls, LONG), group_of(three.urls, LONG)
    redlock = template(waiters)
    lease = template(holders)("wanted").acquire()
    connected(waiters)
    taken: list[Lease] = []
    thread = threading.Thread(target=lambda: taken.append(redlock("wanted").acquire(wait=LONG)))
    (link,) = links_of(waiters)
    thread.start()
    eventually(lambda: any(each.client().info("clients")["blocked_clients"] for each in three))
    lease.release()
    thread.join()
    assert len(link.connections) == 3
    taken[0].release()
    eventually(lambda: keys_on(three) == [[]] * 3)
    for group in (holders, waiters):
        group.close()

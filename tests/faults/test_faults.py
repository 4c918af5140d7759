"""What may happen to real nodes and to the way there, and what must not come of it."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import select
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from typing import Any

import pytest
import redis
from django.test import override_settings

from django_redlock import LeaseLost, LockTaken, NodesUnavailable, conf, redlock
from django_redlock.core.policy import boottime
from django_redlock.core.reasons import ReasonCode
from django_redlock.leases.lease import Lease
from django_redlock.locks.lock import Lock
from django_redlock.testing.embedded import EmbeddedNode, EmbeddedNodes
from tests.support.loops import ENDED, connect, idle, owing, shows
from tests.support.proxy import Fault, Proxy
from tests.support.waiting import eventually, waiting_for_silent_nodes

SECRET = "s3cr3t"
KEY = "redlock:lock:name"
GUARDED = {"MAX_TTL": 1, "CLOCK_SKEW": 0.1, "RESTART_GUARD": True}  # a guard of 2.1 seconds
PATIENCE = 20.0  # seconds: what this machine may take for something
NODE_TIMEOUT = 600.0  # seconds: who waits for a node that says nothing returns in no test's time
MAX_TTL = 60  # seconds: a key that goes in a test goes because somebody took it back


@contextmanager
def in_force(nodes: list[Any], **options: Any) -> Iterator[None]:
    """Make these the nodes of the default alias."""
    alias = {"NODES": nodes, "MAX_TTL": MAX_TTL, "TTL": MAX_TTL, "RESTART_GUARD": False}
    with override_settings(REDLOCK={"default": alias | {"NODE_TIMEOUT": NODE_TIMEOUT} | options}):
        yield


@contextmanager
def laboratory(count: int, **options: Any) -> Iterator[EmbeddedNodes]:
    """Nodes of one's own to ill-treat, ready to vote under the default alias."""
    with EmbeddedNodes(count) as nodes:
        alias = {"MAX_TTL": MAX_TTL, "RESTART_GUARD": False, "NODE_TIMEOUT": NODE_TIMEOUT} | options
        with override_settings(REDLOCK={"default": nodes.settings(**alias)}):
            yield nodes


@contextmanager
def asking(node: EmbeddedNode, **options: Any) -> Iterator[redis.Redis]:
    """A client of one node, for a moment."""
    options = {"socket_timeout": PATIENCE} | options
    with closing(node.client(decode_responses=True, **options)) as client:
        yield client


def has_key(node: EmbeddedNode, key: str = KEY) -> bool:
    """Whether the node stores the key."""
    with asking(node) as client:
        return bool(client.exists(key))


def holders(nodes: EmbeddedNodes, key: str = KEY) -> list[int]:
    """On which of the nodes that can be asked the key is."""
    return [
        index
        for index, node in enumerate(nodes)
        if node.is_running and not node.is_paused and has_key(node, key)
    ]


def leave_nothing(nodes: EmbeddedNodes) -> None:
    """See that the lock's key goes from all nodes that can be asked, long before its time is up."""
    eventually(lambda: holders(nodes) == [], within=MAX_TTL / 3, what="no key left")


def known_nodes() -> Any:
    """The nodes of the default alias, as this process knows them."""
    group: Any = conf.backend("default").group
    return group.nodes


def silent_after(index: int, seconds: float) -> None:
    """Let a node be known to hang when it has been silent for so long, whatever others may take."""
    known_nodes()[index].timeout = seconds


def unavailable(name: str = "name") -> NodesUnavailable:
    """The error of an attempt that cannot have a majority."""
    with pytest.raises(NodesUnavailable) as error:
        redlock(name, renew=False).acquire()
    return error.value


def why(index: int = 0) -> str:
    """Why this node had no part in an attempt; with two nodes each one is needed."""
    return unavailable().votes[index].why


def complaint() -> str:
    """Why the first node had no part in an attempt now, or "" if the attempt succeeded."""
    try:
        redlock("name", renew=False).acquire().release()
    except NodesUnavailable as error:
        return error.votes[0].why
    return ""


def warm(alias: str = "default") -> None:
    """Open a connection to every node."""

    def connected() -> bool:
        with suppress(NodesUnavailable), redlock.using(alias)("warm", renew=False):
            pass
        return all(state.uptime is not None for state in conf.backend(alias).group.states())

    eventually(connected)


# -- nodes that are gone ----------------------------------------------------------------------


@pytest.mark.parametrize("dead", [1, 2])
def test_a_dead_minority_is_not_noticed(dead):
    """One or two of five nodes killed: no error, no wait, no key left."""
    with laboratory(5) as nodes:
        warm()
        for index in range(dead):
            nodes.kill(index)
        with redlock("name") as lease:
            assert len(holders(nodes)) == 5 - dead
            lease.extend()
            assert redlock("name").try_acquire() is None
        assert holders(nodes) == []
        for _ in range(20):
            with redlock("name", renew=False):
                pass
        assert holders(nodes) == []


def test_a_dead_majority_is_told_for_each_node():
    """Three of five nodes dead: NodesUnavailable without a wait, each node named, no key left."""
    with laboratory(5) as nodes:
        warm()
        for index in range(3):
            nodes.kill(index)
        for _ in range(3):
            error = unavailable()
            assert all(f"127.0.0.1:{nodes[index].port}/0" in str(error) for index in range(3))
            assert all(vote.why for vote in error.votes[:3])
            leave_nothing(nodes)
        with pytest.raises(NodesUnavailable):
            redlock("name").try_acquire()


@pytest.mark.slow
def test_nodes_that_die_while_a_lease_is_held():
    """A holder notices no dead minority; without a majority it is unknown, then lost."""
    with laboratory(5) as nodes:
        with redlock("name", ttl=15, renew=False) as lease:
            nodes.kill(0)
            nodes.kill(1)
            lease.extend()
            nodes.kill(2)
            with pytest.raises(NodesUnavailable):
                lease.extend()
            lease.ensure()
            assert (lease.lost, lease.expire(), lease.lost) == (False, True, True)
            with pytest.raises(LeaseLost):
                lease.extend()
        leave_nothing(nodes)


def test_a_dead_node_that_comes_back_serves_again():
    """A node that was down is tried again in the background of later calls."""
    with laboratory(3) as nodes:
        warm()
        nodes.kill(0)
        with redlock("name"):
            pass
        nodes.restart(0)
        nodes.settings(RESTART_GUARD=False)

        def serves() -> bool:
            with redlock("name"):
                return holders(nodes) == [0, 1, 2]

        eventually(serves, every=0.05)


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_how_many_nodes_may_fail(count):
    """Of N nodes N - (N // 2 + 1) may fail; one more, and nobody can say."""
    with laboratory(count) as nodes:
        spare = count - (count // 2 + 1)
        with redlock("name"):
            assert len(holders(nodes)) == count
        for index in range(spare):
            nodes.kill(index)
        with redlock("name"):
            assert len(holders(nodes)) == count - spare
        nodes.kill(spare)
        unavailable()
        leave_nothing(nodes)


# -- nodes that hang --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("asynchronous", [False, True], ids=["thread", "task"])
def test_a_hung_minority_costs_nothing(asynchronous):
    """With two of five nodes hung no lock waits for them; what they were sent is undone."""

    def by_a_thread() -> None:
        warm()
        nodes.pause(3)
        nodes.pause(4)
        for _ in range(60):
            with redlock("name", renew=False):
                pass

    async def by_a_task() -> None:
        group: Any = conf.backend("default").group
        await connect(redlock, group)
        nodes.pause(3)
        nodes.pause(4)
        for _ in range(60):
            async with redlock("name", renew=False):
                pass

    with laboratory(5) as nodes:
        asyncio.run(by_a_task()) if asynchronous else by_a_thread()
        assert holders(nodes) == []
        nodes.resume(3)
        nodes.resume(4)
        leave_nothing(nodes)


def test_a_full_backlog_has_room_for_undoing():
    """What a hung node was sent before its backlog was full is undone when it wakes up."""
    with laboratory(3, NODE_TIMEOUT=60) as nodes:  # never overdue: only the backlog stops us
        warm()
        nodes.pause(0)
        leases = [redlock(f"name:{turn}", renew=False).acquire() for turn in range(80)]
        for lease in leases:
            lease.release()
        nodes.resume(0)
        with asking(nodes[0]) as client:
            eventually(lambda: client.keys("redlock:lock:*") == [], within=MAX_TTL / 3)


@pytest.mark.slow
def test_a_hung_majority_is_told_in_time():
    """With three of five nodes hung a grant and its undoing wait for them, soon none does."""
    with laboratory(5, NODE_TIMEOUT=0.3) as nodes:
        warm()
        for index in range(3):
            nodes.pause(index)
        with waiting_for_silent_nodes(conf.backend("default").group, requests=4):
            for _ in range(4):
                error = unavailable()
                assert "no answer" in error.votes[0].why
        leave_nothing(nodes)
        for index in range(3):
            nodes.resume(index)
        leave_nothing(nodes)
        eventually(lambda: attempt("name"))


@pytest.mark.slow
def test_on_lost_is_told_when_no_packet_moves():
    """With every node hung the holder is told at its own deadline."""
    told = threading.Event()
    with laboratory(3, NODE_TIMEOUT=0.1) as nodes:
        warm()
        lock = redlock("name", ttl=0.5, renew=True, on_lost=lambda _: told.set())
        lease = eventually(lambda: attempted(lock))
        for index in range(3):
            nodes.pause(index)
        assert told.wait(60)
        assert lease.lost
        lease.release()
        for index in range(3):
            nodes.resume(index)
        leave_nothing(nodes)


def is_silent() -> bool:
    """Whether the first node is known to hang, after one more lock."""
    redlock("other", renew=False).acquire().release()
    return "no answer" in conf.backend("default").group.states()[0].why


def wakes_up_clean(node: EmbeddedNode) -> None:
    """See that the lock's key goes, long before its time is up, and does not come back."""
    with asking(node) as client:
        eventually(lambda: not client.exists(KEY), within=MAX_TTL / 3)
        for _ in range(10):
            redlock("other", renew=False).acquire().release()
            assert not client.exists(KEY)
        eventually(lambda: not client.exists("redlock:lock:other"), within=MAX_TTL / 3)


@pytest.mark.parametrize("moment", ["held", "acquiring", "refused"])
@pytest.mark.parametrize("traffic", [0, pytest.param(30, marks=pytest.mark.slow)])
def test_a_frozen_node_that_resumes_keeps_no_zombie(moment, traffic):
    """When a frozen node goes on, what it was asked meanwhile is undone, and stays so."""
    with laboratory(3) as nodes:
        warm()
        silent_after(0, 0.1)
        if moment == "refused":
            for node in nodes[1:]:
                with asking(node) as client:
                    client.set(KEY, "foreign", px=60_000)
        if moment != "held":
            nodes.pause(0)
        lease = redlock("name", ttl=MAX_TTL, renew=False).try_acquire()
        if moment == "held":
            nodes.pause(0)
        assert (lease is None) == (moment == "refused")
        if lease is not None:
            lease.release()
        for _ in range(traffic):
            redlock("other", renew=False).acquire().release()
        if traffic:
            eventually(is_silent)
        nodes.resume(0)
        wakes_up_clean(nodes[0])


def test_answers_that_come_too_late_grant_nothing():
    """A majority that says yes after the ttl is no grant, and its keys are taken back."""
    with laboratory(3) as nodes:
        warm()
        eventually(lambda: owing(known_nodes()) == [0, 0, 0])
        for index in range(3):
            nodes.pause(index)

        def go_on() -> None:
            """Let the nodes answer when the ttl has passed since they were asked."""
            eventually(lambda: all(connection.owed for connection in connections))
            over = boottime() + 0.25
            eventually(lambda: boottime() > over)
            for index in range(3):
                nodes.resume(index)

        connections = [connection for node in known_nodes() for connection in idle(node)]
        later = threading.Thread(target=go_on)
        later.start()
        with pytest.raises(NodesUnavailable, match="late"):
            redlock("name", ttl=0.2).acquire()
        later.join()
        assert holders(nodes) == []


# -- the way to the nodes ---------------------------------------------------------------------


@contextmanager
def behind_proxies(count: int, proxied: int, **options: Any) -> Iterator[Any]:
    """Nodes, the first of them behind proxies, all connections open."""
    with laboratory(count) as nodes, ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(node.port)) for node in nodes[:proxied]]
        urls = [proxy.url for proxy in proxies] + nodes.urls[proxied:]
        with in_force(urls, **options):
            warm()
            # Late replies must not be taken for those to be spoiled.
            eventually(lambda: owing(known_nodes()) == [0] * count)
            yield nodes, proxies
            conf.forget()


def arrived(fault: Fault) -> None:
    """Wait until what became of a reply, and of its connection, is there to be read."""
    ends = fault in (Fault.RESET, Fault.CLOSE, Fault.TRUNCATE)
    if fault is not Fault.SILENCE:
        eventually(lambda: shows(known_nodes()[0], ENDED if ends else select.POLLIN))


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("times", [1, 3])
def test_a_spoiled_reply_of_a_minority(fault, times):
    """A reply lost, reset, cut or garbled is no vote and no error; its key goes."""
    # A handshake without end is waited for.
    patience = 1 if fault is Fault.ENDLESS else NODE_TIMEOUT
    with behind_proxies(3, 1, NODE_TIMEOUT=patience) as (nodes, proxies):
        proxies[0].inflict(fault, times)
        lease = redlock("name", renew=False).acquire()
        lease.ensure()
        assert {1, 2} <= set(holders(nodes))
        eventually(lambda: proxies[0].inflicted)
        arrived(fault)
        lease.release()
        assert {1, 2}.isdisjoint(holders(nodes))
        proxies[0].heal()
        if times == 1 and fault is not Fault.ENDLESS:  # which leaves no way for a release
            leave_nothing(nodes)
        with redlock("name", wait=5):
            pass


@pytest.mark.parametrize("fault", [Fault.RESET, Fault.CLOSE, Fault.TRUNCATE, Fault.GARBAGE])
def test_a_release_takes_no_connection_that_has_ended(fault):
    """A late reply, whole or cut, whose connection ended leaves no key behind."""
    with behind_proxies(3, 1) as (nodes, proxies):
        proxies[0].delay = PATIENCE
        proxies[0].inflict(fault, 1)
        lease = redlock("name", renew=False).acquire()
        proxies[0].delay = 0.0
        eventually(lambda: proxies[0].inflicted)
        arrived(fault)
        lease.release()
        leave_nothing(nodes)


@pytest.mark.parametrize("fault", Fault)
def test_a_spoiled_reply_of_a_majority(fault):
    """Spoiled yeses are not counted, though both nodes said yes; all keys go."""
    patience = 1 if fault is Fault.SILENCE else NODE_TIMEOUT  # only silence is waited for
    with behind_proxies(3, 2, NODE_TIMEOUT=patience) as (nodes, proxies):
        for proxy in proxies:
            proxy.inflict(fault, 1)
        error = unavailable()
        eventually(lambda: [proxy.inflicted for proxy in proxies] == [1, 1])
        assert all(vote.why for vote in error.votes[:2])
        if fault is not Fault.ENDLESS:
            leave_nothing(nodes)

        def works() -> bool:
            with suppress(NodesUnavailable), redlock("other", renew=False):
                return True
            return False

        eventually(works, every=0.05)


@pytest.mark.slow
def test_lost_replies_leave_no_key():
    """When no reply comes back at all, every request still went out, and so did its undoing."""
    with behind_proxies(3, 3, NODE_TIMEOUT=0.2) as (nodes, proxies):
        for proxy in proxies:
            proxy.inflict(Fault.SILENCE)
        for _ in range(3):
            unavailable()
        leave_nothing(nodes)


def test_a_late_reply_serves_the_next_question():
    """No lock fails for a node that is slow, and no late answer is taken for another's."""
    with behind_proxies(3, 1) as (nodes, proxies):
        proxies[0].delay = 0.1
        fences = []
        for number in range(40):
            with redlock(f"name:{number % 3}", renew=False) as lease:
                fences.append(lease.fence)
        assert fences == sorted(set(fences))
        proxies[0].delay = 0.0
        keys = [f"redlock:lock:name:{number}" for number in range(3)]
        eventually(lambda: not any(holders(nodes, key) for key in keys), within=MAX_TTL / 3)


def hang_up(node: EmbeddedNode) -> None:
    """Let the node close its connections, this question's apart."""
    with asking(node) as client:
        client.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")


def test_a_connection_that_was_closed_while_idle_costs_no_vote():
    """A node that closed an idle connection still has its vote in the next attempt."""
    with laboratory(2) as nodes:
        warm()
        for _ in range(3):
            for node in nodes:
                hang_up(node)
            eventually(lambda: all(map(shows, known_nodes())))
            with redlock("name", renew=False):
                assert holders(nodes) == [0, 1]
        assert holders(nodes) == []


# -- nodes that lost their data ---------------------------------------------------------------


@pytest.mark.slow
def test_a_node_that_restarted_empty_has_no_vote_until_the_guard_is_over():
    """A restarted node grants nothing while somebody may still believe."""
    with laboratory(3, **GUARDED) as nodes:
        warm()
        with redlock("name", ttl=1, wait=PATIENCE, renew=False) as lease:
            nodes.restart(1)
            nodes.kill(2)
            restarted = time.monotonic()
            assert has_key(nodes[0]) or lease.lost
            error = unavailable("other")
            assert "restart guard" in error.votes[1].why
            assert "s left" in str(error)
            assert lease.fence
        got = eventually(lambda: attempt("name"), every=0.02)
        assert time.monotonic() - restarted > 2
        assert got.fence > lease.fence
        got.release()


@pytest.mark.slow
def test_all_nodes_restarted_empty_grant_nothing_before_the_guard_is_over():
    """While a lease of an earlier life may be believed in, nobody gets its name."""
    with laboratory(3, **GUARDED) as nodes:
        lease = redlock("name", ttl=1, wait=PATIENCE, renew=False).acquire()
        for index in range(3):
            nodes.restart(index)
        while lease.remaining() > 0:
            assert attempt("name") is None
        got = eventually(lambda: attempt("name"), every=0.02)
        assert got.fence > lease.fence
        got.release()


def attempt(name: str) -> Any:
    """A lease, or None when it is not to be had, for whatever reason."""
    return attempted(redlock(name, renew=False))


def attempted(lock: Lock) -> Any:
    """The same with another lock."""
    with suppress(NodesUnavailable):
        return lock.try_acquire()
    return None


@pytest.mark.slow
def test_an_emptied_node_has_no_vote_until_the_guard_is_over():
    """FLUSHALL takes a node's vote for as long as a restart does."""
    with laboratory(2, **GUARDED) as nodes:
        warm()
        with asking(nodes[0]) as client:
            client.flushall()
        emptied = time.monotonic()
        found = why()
        assert "lost its data" in found
        assert "restart guard" in found
        lease = eventually(lambda: attempt("name"), every=0.02)
        assert time.monotonic() - emptied > 2
        lease.release()


@pytest.mark.slow
def test_an_emptied_node_is_found_out_through_an_open_connection():
    """A majority emptied under a holder does not grant its name to a second one."""
    with laboratory(3, **GUARDED) as nodes:
        with redlock("name", ttl=1, wait=PATIENCE, renew=False) as lease:
            for node in nodes:
                with asking(node) as client:
                    client.flushall()
            while lease.remaining() > 0:
                assert attempt("name") is None
        assert holders(nodes) == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_single_node_under_the_guard_says_for_how_long_and_what_to_set(asynchronous):
    """The error names the seconds left and the setting; with that set, the lock is to be had."""

    async def refused() -> str:
        with pytest.raises(NodesUnavailable) as caught:
            await redlock("name").aacquire()
        return str(caught.value)

    with laboratory(1) as nodes:
        with in_force(nodes.urls, RESTART_GUARD=True):
            error = asyncio.run(refused()) if asynchronous else str(unavailable("name"))
        left = re.search(
            r"restart guard: new here, or started, emptied or promoted a short while ago, "
            r"(\S+) s left",
            error,
        )
        assert left is not None
        assert 0 < float(left[1]) < 71 + PATIENCE  # counted from before it was connected
        assert "set 'RESTART_GUARD': False in REDLOCK['default']" in error
        with in_force(nodes.urls, RESTART_GUARD=False), redlock("name"):
            pass


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_wait_that_the_guard_outlasts_ends_at_once(asynchronous):
    """A caller does not wait for nodes that cannot vote before the wait is over."""

    def wait(seconds: float) -> None:
        lock = redlock("name", wait=seconds)
        asyncio.run(lock.aacquire()) if asynchronous else lock.acquire()

    # The guard lasts for an hour, and the wait would outlast the time that a test has.
    with laboratory(3) as nodes, in_force(nodes.urls, RESTART_GUARD=True, MAX_TTL=3600):
        unavailable("name")  # connected: the nodes have said how old they are
        with pytest.raises(NodesUnavailable, match="restart guard"):
            wait(3000)


# -- nodes that are not what they should be ---------------------------------------------------


def replicate(node: EmbeddedNode, master: EmbeddedNode) -> None:
    """Make ``node`` a replica and wait until it has its master's data."""
    with asking(node) as client:
        client.execute_command("CONFIG", "SET", "repl-diskless-sync-delay", 0)
        client.replicaof(master.host, master.port)
        eventually(lambda: client.info("replication")["master_link_status"] == "up", every=0.02)


@pytest.mark.slow
def test_a_replica_has_no_vote():
    """A node that is a replica when it is reached has no vote, and it is said why."""
    with laboratory(2) as nodes:
        with asking(nodes[1]) as client:
            client.config_set("repl-diskless-sync-delay", 0)
        replicate(nodes[0], nodes[1])
        assert "replica" in why()
        assert not has_key(nodes[1])


def test_a_node_that_became_a_replica_has_no_vote():
    """READONLY, from a node that was a master when it was reached, is no vote."""
    with laboratory(2) as nodes:
        warm()
        with asking(nodes[0]) as client:
            client.replicaof("127.0.0.1", 1)
        assert "replica" in why()
        assert "replica" in why()
        assert holders(nodes) == []


@pytest.mark.slow
def test_a_promoted_replica_has_no_vote():
    """A replica that was promoted may lack what its master had granted."""
    with laboratory(2) as nodes:
        with asking(nodes[1]) as client:
            client.config_set("repl-diskless-sync-delay", 0)
        replicate(nodes[0], nodes[1])
        with asking(nodes[0]) as client:
            client.replicaof("NO", "ONE")
        assert "promoted" in why()


@pytest.mark.slow
def test_a_node_that_was_a_replica_for_a_while_has_no_vote():
    """A node whose data were replaced while a connection lay idle has no vote on it."""
    with laboratory(3) as nodes:
        warm()
        with asking(nodes[2]) as client:
            client.config_set("repl-diskless-sync-delay", 0)
            client.set(KEY, "foreign")
        with redlock("name", renew=False) as lease:
            assert holders(nodes) == [0, 1, 2]
            with asking(nodes[2]) as client:
                client.delete(KEY)
            assert holders(nodes) == [0, 1]
            replicate(nodes[0], nodes[2])
            with asking(nodes[0]) as client:
                client.replicaof("NO", "ONE")
            assert holders(nodes) == [1]
            second = redlock("name", renew=False).try_acquire()
            lease.ensure()
            assert second is None, "two holders"


def test_a_cluster_node_has_no_vote():
    """A node in cluster mode moves keys: no vote, and it is said why."""
    with (
        EmbeddedNodes(1, config={"cluster-enabled": "yes"}) as clustered,
        laboratory(1) as nodes,
        in_force([*clustered.urls, *nodes.urls]),
    ):
        assert "cluster" in why()
        assert holders(nodes) == []


def test_a_server_listed_under_two_addresses_counts_once():
    """A server reached by two names has one run_id and one vote, and it is said which two."""
    with laboratory(2) as nodes:
        duplicate_of = f"redis://localhost:{nodes[0].port}/0"
        with in_force([nodes.urls[0], duplicate_of]):
            assert f"same server as 127.0.0.1:{nodes[0].port}/0" in why(1)
            assert "same server" in why(1)
            assert holders(nodes) == []
        with in_force([nodes.urls[0], duplicate_of, nodes.urls[1]]), redlock("name"):
            assert holders(nodes) == [0, 1]


# -- rights -----------------------------------------------------------------------------------


def shown(error: BaseException, caplog: pytest.LogCaptureFixture) -> str:
    """All that somebody may get to see of an error and its node."""
    votes = getattr(error, "votes", ())
    states = conf.backend("default").group.states()
    return f"{error} {error!r} {votes!r} {states!r} {caplog.text} {error.__cause__!r}"


@pytest.mark.parametrize(
    ("user", "password", "pattern"),
    [
        (None, "wrong-s3cr3t", "password"),
        ("nobody", "wrong-s3cr3t", "password"),
        (None, None, "(?i)NOAUTH|authentication required|password"),
        ("weak", SECRET, "(?i)NOPERM|permission|right"),
    ],
)
def test_a_node_that_refuses_us(user, password, pattern, caplog):
    """WRONGPASS, NOAUTH and NOPERM are no vote, told without the password."""
    caplog.set_level(logging.DEBUG)
    with laboratory(2) as nodes:
        with asking(nodes[0]) as client:
            client.execute_command("ACL", "SETUSER", "weak", "on", f">{SECRET}", "~*", "+info")
            client.config_set("requirepass", SECRET)
        node = {"URL": nodes.urls[0], "USERNAME": user, "PASSWORD": password}
        with in_force([node, nodes.urls[1]]):
            for _ in range(2):
                error = unavailable()
                assert error.votes[0].why
                eventually(lambda: re.search(pattern, why()), every=0.02)
                assert "s3cr3t" not in shown(error, caplog)
            assert not has_key(nodes[1])


def test_rights_taken_away_later_are_no_vote():
    """NOPERM on an open connection is no vote and says what to look up."""
    with laboratory(2) as nodes:
        with asking(nodes[0]) as client:
            client.execute_command("ACL", "SETUSER", "us", "on", f">{SECRET}", "~*", "+@all")
        node = {"URL": nodes.urls[0], "USERNAME": "us", "PASSWORD": SECRET}
        with in_force([node, nodes.urls[1]]):
            warm()
            with asking(nodes[0]) as client:
                client.execute_command("ACL", "SETUSER", "us", "-set", "-evalsha")
            assert "NOPERM" in why()
            assert holders(nodes) == []


# -- nodes in trouble -------------------------------------------------------------------------


def test_a_node_out_of_memory_has_no_vote():
    """OOM is no vote, leaves no key, and is said in one line by every version."""
    with laboratory(2) as nodes:
        warm()
        with asking(nodes[0]) as client:
            client.config_set("maxmemory", 1)
            assert why() == ReasonCode.OUT_OF_MEMORY.sentence
            assert holders(nodes) == []
            client.config_set("maxmemory", 0)
        with redlock("name"):
            pass


def test_release_works_out_of_memory():
    """A node out of memory still gives back what it granted before."""
    with laboratory(2) as nodes:
        lease = redlock("name", renew=False).acquire()
        with asking(nodes[0]) as client:
            client.config_set("maxmemory", 1)
            lease.release()
            assert holders(nodes) == []
            assert not lease.lost


def test_a_node_that_runs_an_endless_script_has_no_vote():
    """BUSY is no vote; when the script was killed nothing of ours is left, and it votes."""
    with laboratory(2) as nodes:
        warm()
        with asking(nodes[0]) as client:
            client.config_set("lua-time-limit", 10)  # the name that every version knows
            endless = threading.Thread(target=run_endless_script, args=(nodes[0],))
            endless.start()
            try:
                # Not before: a release that meets the script leaves its key, as the next test says.
                eventually(lambda: is_busy(client))
                assert "BUSY" in complaint()
            finally:
                client.script_kill()
                endless.join()
        leave_nothing(nodes)
        lease = eventually(lambda: attempt("name"), every=0.02)
        lease.release()


def run_endless_script(node: EmbeddedNode) -> None:
    """Be somebody else's application."""
    with asking(node) as client, suppress(redis.RedisError):
        client.eval("while true do end", 0)


def is_busy(client: redis.Redis) -> bool:
    """Whether the node refuses commands because of a script."""
    try:
        client.ping()
    except redis.ResponseError:
        return True
    return False


@pytest.mark.parametrize(
    ("setting", "value", "healthy", "pattern"),
    [
        ("min-replicas-to-write", 1, 0, "NOREPLICAS: has too few"),
        ("maxclients", 1, 1000, "clients"),
    ],
)
def test_a_node_that_refuses_writes_or_clients_has_no_vote(setting, value, healthy, pattern):
    """NOREPLICAS and a full node are no vote, and it is said why."""
    with laboratory(2) as nodes, asking(nodes[0]) as client:
        client.config_set(setting, value)
        eventually(lambda: pattern in complaint(), every=0.02)
        client.config_set(setting, healthy)
        lease = eventually(lambda: attempt("name"), every=0.02)
        lease.release()
        assert holders(nodes) == []


@pytest.mark.parametrize("command", [("LPUSH", KEY, "x"), ("HSET", KEY, "a", "b")])
def test_a_key_of_another_type_under_the_locks_name(command):
    """WRONGTYPE is no vote; the reason says what to do, and the stranger's key stays."""
    with laboratory(2) as nodes, asking(nodes[0]) as client:
        client.execute_command(*command)
        assert "WRONGTYPE" in why()
        assert "delete or rename" in why()
        assert holders(nodes) == [0]
        with redlock("other", renew=False):
            pass
        unavailable("name")


def test_a_release_needs_no_index():
    """Where the note of who waits is somebody else's key, a release frees all the same."""
    with laboratory(3) as nodes:
        with redlock("name", renew=False):
            for node in nodes:
                with asking(node) as client:
                    client.execute_command("DEL", "redlock:waits")
                    client.execute_command("SET", "redlock:waits", "x")
        assert holders(nodes) == []


def test_flushing_scripts_costs_no_lease():
    """Who forgot the scripts is asked again; who was not waited for, at the next question."""
    with laboratory(3) as nodes:
        for _ in range(3):
            with redlock("name", renew=False) as lease:
                for node in nodes:
                    with asking(node) as client:
                        client.script_flush()
                lease.extend()

            def freed() -> bool:
                with redlock("other"):
                    pass
                return holders(nodes) == []

            eventually(freed)


# -- giving away --------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_handle_survives_an_adoption_that_no_majority_answered():
    """Nodes that hang while a handle is adopted do not destroy it: they go on, and it is good."""
    with laboratory(5, NODE_TIMEOUT=0.5, TTL=MAX_TTL) as nodes:
        given = redlock("name", ttl=MAX_TTL).acquire()
        eventually(lambda: holders(nodes) == [0, 1, 2, 3, 4])
        handle = given.handle()
        for index in range(3):
            nodes.pause(index)
        with pytest.raises(NodesUnavailable, match="can still be adopted"):
            redlock.adopt(handle)
        for index in range(3):
            nodes.resume(index)

        def adopted() -> Lease | None:
            with suppress(NodesUnavailable):
                return redlock.adopt(handle)
            return None

        lease = eventually(adopted)
        assert lease is not None
        assert lease.fence > given.fence
        with pytest.raises(LeaseLost):
            redlock.adopt(handle)
        lease.release()
        leave_nothing(nodes)


def test_a_node_that_grants_after_the_name_was_given_away_keeps_no_key():
    """The grant is carried out when all is over, and the release of the adopter behind it."""
    with laboratory(5, NODE_TIMEOUT=0.5) as nodes:
        with redlock("warm"):
            pass
        nodes.pause(4)
        lease = redlock("name", renew=False).acquire()
        adopted = redlock.adopt(lease.handle())
        adopted.release()
        nodes.resume(4)
        leave_nothing(nodes)


# -- fork -------------------------------------------------------------------------------------

FORK = """
import json, os, sys, time, warnings
from django.conf import settings
settings.configure(REDLOCK={"default": json.loads(sys.argv[1])})
from django_redlock import LeaseLost, LockTaken, current_lease, redlock
from django_redlock.leases import lease as leases
leases.RENEWALS = 20  # no stall of the machine ends one

def in_child(work):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.write(write, json.dumps(work()).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as pipe:
        told = pipe.read()
    assert os.waitpid(child, 0)[1] == 0, told
    return json.loads(told)

def work():
    told = {"remaining": lease.remaining(), "current": current_lease() is None}
    for act in ("ensure", "extend", "handle"):
        try:
            getattr(lease, act)()
        except LeaseLost:
            told[act] = "LeaseLost"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lease.release()
        told["warned"] = [f"{each.category.__name__} {each.message}" for each in caught]
    told["taken"] = redlock("name").try_acquire() is None
    with redlock("own", ttl=2, renew=True) as own:
        told["own"] = own.fence > 0
        told["renewed"], left = False, own.remaining()
        while left > 0 and not told["renewed"]:
            time.sleep(0.01)
            told["renewed"], left = own.remaining() > left, own.remaining()
    return told

with redlock("name", ttl=2, renew=True) as lease:
    first, second = in_child(work), in_child(work)
    lease.extend()
    told = {"held": redlock("name").try_acquire() is None, "lost": lease.lost}

lock = redlock("name")
outer = lock.__enter__()
def leave():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lock.__exit__(None, None, None)
    return len(caught)
told["left"] = in_child(leave)
told["kept"] = redlock("name").try_acquire() is None
outer.extend()
lock.__exit__(None, None, None)
told["free"] = redlock("name").try_acquire() is not None
print(json.dumps([first, second, told]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("real", [False, True])
def test_a_forked_child_owns_nothing_of_its_parent(request, real):
    """A child owns only what it takes itself; the parent's lease stands."""
    if real:
        alias = request.getfixturevalue("patient_nodes").settings(
            NODE_TIMEOUT=PATIENCE, RESTART_GUARD=False
        )
    else:
        alias = {
            "NODES": [f"memory://fork-{number}" for number in range(3)],
            "MAX_TTL": 2,
            "TTL": 2,
        }
    command = [sys.executable, "-W", "error", "-W", "ignore:This process:DeprecationWarning"]
    output = subprocess.check_output([*command, "-c", FORK, json.dumps(alias)], text=True)
    first, second, parent = json.loads(output)
    for child in (first, second):
        assert child["remaining"] <= 0
        assert child["current"] is True
        assert [child[act] for act in ("ensure", "extend", "handle")] == ["LeaseLost"] * 3
        assert len(child["warned"]) == 1
        assert child["warned"][0].startswith("RuntimeWarning")
        assert child["taken"] is True
        assert child["own"] is True
        assert child["renewed"] is True
    assert parent == {"held": True, "lost": False, "left": 1, "kept": True, "free": True}


# -- taken or unavailable ---------------------------------------------------------------------


def test_taken_and_unavailable_are_never_mixed():
    """A majority that refuses is "taken", a minority beside dead nodes "unavailable"."""
    with laboratory(5) as nodes, redlock("name", renew=False):
        nodes.kill(0)
        nodes.kill(1)
        for _ in range(20):
            with pytest.raises(LockTaken):
                redlock("name").acquire()
        nodes.kill(2)
        unavailable()


@pytest.mark.parametrize(("count", "dead"), [(3, 1), (5, 1), (5, 2)])
def test_a_name_held_by_a_majority_is_taken_also_when_one_answer_is_slow(count, dead):
    """With a minority dead nothing may be said before a majority has answered."""
    with behind_proxies(count, 1) as (nodes, proxies), redlock("name", renew=False):
        for index in range(1, dead + 1):
            nodes.kill(index)
        with pytest.raises(LockTaken):
            redlock("name").acquire()
        proxies[0].delay = 0.03
        for _ in range(3):
            with pytest.raises(LockTaken):
                redlock("name").acquire()
        assert redlock("name").try_acquire() is None
        proxies[0].delay = 0.0

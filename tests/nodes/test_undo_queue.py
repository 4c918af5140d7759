"""What is to be undone while a node cannot be asked: it is, as soon as the node can."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from django_redlock import LockTaken, NodesUnavailable
from django_redlock.core.commands import Acquire, Complete, Release, Rest
from django_redlock.core.hold import undo
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Answer, Request, Vote
from django_redlock.core.quorum import all_heard, heard, with_majority
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.leases.lease import Lease
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes import node as node_module
from django_redlock.nodes.connection import OnWire, pack
from django_redlock.nodes.group import NodeGroup
from django_redlock.nodes.node import Undo, UndoQueue
from django_redlock.testing import EmbeddedNodes
from tests.support.loops import group_of, keys_on, template, unguarded
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

TTL = 60.0  # nobody waits for that
NAMES = 20


class Reached(NamedTuple):
    """Three nodes behind proxies, and a process that is connected to all of them."""

    nodes: EmbeddedNodes
    proxies: list[Proxy]
    redlock: LockTemplate
    group: NodeGroup

    def cut(self, places: tuple[int, ...]) -> None:
        """End the connections to these nodes, and let nobody connect."""
        for place in places:
            self.proxies[place].cut()

    def heal(self) -> None:
        """Let everybody through again."""
        for proxy in self.proxies:
            proxy.heal()

    def locks(self) -> list[int]:
        """How many names each node has."""
        return [len(keys) for keys in keys_on(self.nodes)]

    def held(self, count: int) -> list[Lease]:
        """Leases whose keys are on all nodes, however slow these are until then."""
        short = self.group._threads.timeout
        self.wait_for_nodes(20.0)
        leases: list[Lease] = []
        for number in range(count):
            leases.append(self.redlock(f"held:{number}").acquire())
            # A node that owes too many replies is asked nothing more until it has caught up.
            if len(leases) % 100 == 0 or len(leases) == count:
                eventually(lambda: self.locks() == [len(leases)] * 3)
        self.wait_for_nodes(short)
        return leases

    def wait_for_nodes(self, timeout: float) -> None:
        """Give the nodes so many seconds for an answer from now on."""
        self.group._threads.timeout = timeout
        for node in self.group.nodes:
            node.timeout = timeout


@pytest.fixture(scope="module")
def three() -> Iterator[EmbeddedNodes]:
    """Three nodes, without the guard."""
    with unguarded(3) as nodes:
        yield nodes


@pytest.fixture
def reached(three: EmbeddedNodes, request: pytest.FixtureRequest) -> Iterator[Reached]:
    """The nodes, with a node timeout of 5 s or as the test asks."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(node.port)) for node in three]
        group = group_of([proxy.url for proxy in proxies], getattr(request, "param", 5.0))
        stack.callback(group.close)
        for node in three:
            with closing(node.client()) as client:
                client.flushall()
        reached = Reached(three, proxies, template(group, ttl=TTL), group)
        eventually(lambda: connected(reached.redlock))
        eventually(lambda: all(state.voting for state in group.states()))
        yield reached
        reached.heal()
        eventually(lambda: not any(len(node.undos.kept) for node in group.nodes))


def connected(redlock: LockTemplate) -> bool:
    """Whether the nodes can be asked."""
    with suppress(NodesUnavailable, LockTaken), redlock("warm"):
        return True
    return False


def by_a_thread(leases: list[Lease]) -> None:
    """Release by blocking."""
    for lease in leases:
        lease.release()


def by_a_loop(leases: list[Lease]) -> None:
    """Release in an event loop."""

    async def main() -> None:
        for lease in leases:
            await lease.arelease()

    asyncio.run(main())


# -- nodes that are away ------------------------------------------------------------------------


@pytest.mark.parametrize("places", [(0,), (0, 1), (0, 1, 2)], ids=["one", "two", "all"])
@pytest.mark.parametrize("release", [by_a_thread, by_a_loop])
def test_what_is_released_while_nodes_are_away_is_free_when_they_are_back(reached, places, release):
    """Nobody asks the nodes anything after the release, and no name stays taken at any of them."""
    leases = reached.held(NAMES)
    reached.cut(places)
    release(leases)
    assert all(count == NAMES for place, count in enumerate(reached.locks()) if place in places)
    reached.heal()
    eventually(lambda: reached.locks() == [0, 0, 0])


def test_the_next_question_comes_behind_what_is_still_to_be_undone(reached, monkeypatch):
    """The first caller after the nodes are back meets no key of its own process."""
    monkeypatch.setattr(UndoQueue, "work", lambda _: None)  # only the next question sees to it
    leases = reached.held(NAMES)
    reached.cut((0, 1, 2))
    by_a_thread(leases)
    reached.heal()
    eventually(lambda: connected(reached.redlock))
    for number in range(NAMES):
        assert reached.redlock(f"held:{number}").try_acquire() is not None


@pytest.mark.parametrize("reached", [0.5], ids=["node timeout"], indirect=True)
def test_a_release_that_is_lost_after_it_returned_is_sent_again(reached):
    """Nobody waits for one slow node, its connection breaks, and nobody uses it: it hears again."""
    (lease,) = reached.held(1)
    reached.proxies[0].holding = 1
    lease.release()
    eventually(lambda: reached.locks() == [1, 0, 0])
    reached.cut((0,))
    reached.heal()
    eventually(lambda: reached.locks() == [0, 0, 0])


@pytest.mark.parametrize("release", ["thread", "task"])
def test_all_that_a_lease_leaves_is_undone_by_nodes_that_were_away(reached, release):
    """One name is freed, one rests and one becomes a record, though all have one nonce."""
    policy = Policy(size=3, max_ttl=TTL)
    whole, *targets = (policy.target(names) for names in ("abc", "a", "b", "c"))
    heard_by_most = with_majority(heard, 2)
    reached.group.ask(Acquire(NONCE, all_heard, whole, 1, 10**15, 60_000, "me"))
    eventually(lambda: reached.locks() == [3] * 3)
    reached.cut((0, 1, 2))
    requests = (
        Release(NONCE, heard_by_most, targets[0], lasts=TTL),
        Rest(NONCE, heard_by_most, targets[1], 50_000, lasts=TTL),
        Complete(NONCE, heard_by_most, targets[2], 50_000, lasts=TTL),
    )

    async def ask() -> None:
        for each in requests:
            await reached.group.aask(each)

    if release == "task":
        asyncio.run(ask())
    else:
        for each in requests:
            reached.group.ask(each)
    eventually(lambda: [len(n.undos.kept) for n in reached.group.nodes] == [3] * 3)
    reached.heal()
    eventually(lambda: values_on(reached.nodes) == [[None, b"rest::me", b"done::me"]] * 3)


def values_on(nodes: EmbeddedNodes) -> list[list[Any]]:
    """What each node has of three names."""
    found: list[list[Any]] = []
    for node in nodes:
        with closing(node.client()) as client:
            found.append([client.get(f"redlock:lock:{name}") for name in "abc"])
    return found


def test_an_error_instead_of_a_release_is_no_end_of_it(reached):
    """A node that refuses a release is asked again until it does not, without anybody's help."""
    leases = reached.held(3)
    for node in reached.nodes:
        with closing(node.client()) as client:
            client.execute_command("ACL", "SETUSER", "default", "-evalsha")
    by_a_thread(leases)
    assert reached.locks() == [3, 3, 3]
    for node in reached.nodes:
        with closing(node.client()) as client:
            client.execute_command("ACL", "SETUSER", "default", "+@all")
    eventually(lambda: reached.locks() == [0, 0, 0])


# -- nodes that hang, and questions of every size ------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("reached", [0.5], ids=["node timeout"], indirect=True)
def test_more_releases_than_a_connection_takes_reach_a_node_that_hung(reached):
    """Beside a node that stands still 1,000 names are released; when it goes on, none is left."""
    leases = reached.held(1000)
    reached.nodes.pause(2)
    by_a_thread(leases)
    assert len(reached.group.nodes[2].undos.kept) > 0  # else this shows nothing
    reached.nodes.resume(2)
    eventually(lambda: reached.locks() == [0, 0, 0])


@pytest.mark.parametrize("asynchronous", [False, True], ids=["threads", "asyncio"])
@pytest.mark.parametrize(("count", "size"), [(64, 512), (128, 260), (128, 512)])
def test_a_lock_may_have_as_many_and_as_long_names_as_are_allowed(
    reached, asynchronous, count, size
):
    """128 names of 512 bytes are taken, extended and released, at nodes that owe nothing."""
    names = [f"{number:04d}".ljust(size, "x") for number in range(count)]

    async def turn() -> None:
        async with reached.redlock(names) as lease:
            await lease.aextend()

    if asynchronous:
        asyncio.run(turn())
    else:
        with reached.redlock(names) as lease:
            lease.extend()
    eventually(lambda: reached.locks() == [0, 0, 0])


# -- the queue ----------------------------------------------------------------------------------


class Far:
    """Stands for a node that nobody asks."""

    label = "far:6379/0"
    undos: UndoQueue

    def work_on_undos(self) -> None:
        """Have nobody do it in the background."""


POLICY = Policy(size=1, max_ttl=30)


def to_undo(nonce: str, *, start: float = 0.0, name: str = "name") -> Undo:
    """Something to be undone."""
    return Undo(undo(POLICY, POLICY.target([name]), nonce, frozenset({0})), start)


def queue_of() -> UndoQueue:
    """An empty queue."""
    far: Any = Far()
    far.undos = queue = UndoQueue(far)
    return queue


class Interruption(Exception):  # noqa: N818 - it is one
    """What a signal handler raises."""


def sent(queue: UndoQueue, now: float = 1.0, most: float = 1e9) -> list[OnWire]:
    """What the queue puts on a connection that takes all."""
    taken: list[OnWire] = []

    def put(owed: OnWire) -> bool:
        taken.append(owed)
        return True

    queue.send(put, now, most=most)
    return taken


NONCE = "1" * 32


def one_nonce() -> list[Request]:
    """Undos of one nonce: of other names, or by other commands."""
    targets = [POLICY.target([name]) for name in "abc"]
    return [
        undo(POLICY, targets[0], NONCE, frozenset({0})),
        undo(POLICY, targets[1], NONCE, frozenset({0})),
        Rest(NONCE, bool, targets[1], 20_000, lasts=30),
        Complete(NONCE, bool, targets[2], 60_000, lasts=30),
    ]


def as_asked(owed: list[OnWire]) -> list[bytes]:
    """The bytes of what was sent."""
    return [each.packed for each in owed]


def test_no_undo_takes_the_place_of_another():
    """All of a nonce are sent, in the order in which they were kept."""
    queue, undos = queue_of(), one_nonce()
    for each in undos * 5:  # however often each fails
        queue.add(Undo(each, 1.0))
    assert as_asked(sent(queue)) == [pack(each, 0) for each in undos]
    assert (len(queue.kept), queue._bytes) == (0, 0)


def test_an_older_undo_does_not_shorten_a_newer_one():
    """A node may be asked again for as long as the later one is of interest."""
    queue, (release, *_) = queue_of(), one_nonce()
    queue.add(Undo(release, 10.0))
    queue.add(Undo(release, 0.0))
    assert len(sent(queue, now=35.0)) == 1  # each lasts for 30 s


def test_what_is_kept_again_while_it_is_sent_stays():
    """It was sent, and its connection broke in another thread before this one went on."""
    queue, taken, again = queue_of(), list[bytes](), Undo(one_nonce()[0], 0.0)
    queue.add(again)

    def put(owed: OnWire) -> bool:
        taken.append(owed.packed)
        if len(taken) == 1:
            queue.add(again)
        return True

    queue.send(put, 1.0)
    assert len(taken) == 2
    assert (len(queue.kept), queue._bytes) == (0, 0)


@pytest.mark.parametrize("interrupted", [False, True])
def test_what_a_connection_does_not_take_stays(interrupted):
    """A question that is refused, or whose sending is interrupted, is not lost, nor overtaken."""
    queue = queue_of()
    for digit in "123":
        queue.add(to_undo(digit * 32))
    taken: list[bytes] = []

    def put(owed: OnWire) -> bool:
        if len(taken) == 1 and interrupted:
            raise Interruption
        if len(taken) == 1:
            return False
        taken.append(owed.nonce)
        return True

    with pytest.raises(Interruption) if interrupted else nullcontext():
        queue.send(put, 1.0)
    assert taken == [b"1" * 32]
    assert [owed.nonce for owed in sent(queue)] == [b"2" * 32, b"3" * 32]


def test_what_the_nodes_have_dropped_by_themselves_is_not_sent():
    """After MAX_TTL no key can be left of what was to be undone."""
    queue = queue_of()
    queue.add(to_undo("1" * 32, start=0.0))
    queue.add(to_undo("2" * 32, start=10.0))
    assert [owed.nonce for owed in sent(queue, now=30.0)] == [b"2" * 32]


def test_a_name_rests_no_longer_because_a_node_hears_late():
    """The seconds of `min_hold` count from the attempt: what is sent later has less of them."""
    rest = Rest("1" * 32, bool, POLICY.target(["name"]), 20_000, lasts=60.0)
    queue = queue_of()
    queue.add(Undo(rest, 100.0))
    (owed,) = sent(queue, now=101.5)
    assert owed.packed == pack(replace(rest, rest=18_500), 0)


def test_an_error_delays_the_next_question():
    """A node that answers with an error is asked again after a pause; an answer ends that."""
    now = time.monotonic()
    queue = queue_of()
    queue.add(to_undo("1" * 32, start=now))
    (owed,) = sent(queue, now)
    owed.hear(0, Vote("far", Answer.UNKNOWN, reason=because(ReasonCode.OUT_OF_MEMORY)))
    queue.add(to_undo("1" * 32, start=now))
    assert sent(queue, now) == []
    (owed,) = sent(queue, time.monotonic() + node_module.LEAST_PAUSE)
    owed.hear(0, Vote("far", Answer.NO))
    queue.add(to_undo("2" * 32, start=now))
    assert len(sent(queue, now)) == 1


def test_a_full_queue_drops_the_oldest_and_says_so_once(monkeypatch, caplog):
    """What is given up is counted, and told in one line when it begins and one when it is over."""
    monkeypatch.setattr(node_module, "MOST", 3)
    queue = queue_of()
    with caplog.at_level(logging.WARNING, "django_redlock"):
        for digit in "123456":
            queue.add(to_undo(digit * 32))
        assert queue.dropped == 3
        assert [owed.nonce for owed in sent(queue)] == [b"4" * 32, b"5" * 32, b"6" * 32]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 2
    assert "far:6379/0" in told[0]
    assert "3 releases were given up" in told[1]


def test_long_names_fill_the_queue_by_their_bytes(monkeypatch):
    """The memory of the queue is bounded, whatever the names."""
    monkeypatch.setattr(node_module, "MOST_BYTES", 100_000)
    queue = queue_of()
    for number in range(1000):
        queue.add(to_undo(f"{number:032x}", name="x" * 512))
    assert 10 < len(queue.kept) < 100


def test_part_of_a_long_queue_goes_before_a_question():
    """So many bytes are sent that the question itself still finds room."""
    queue = queue_of()
    for number in range(100):
        queue.add(to_undo(f"{number:032x}"))
    first = sent(queue, most=5000)
    assert 1 < len(first) < 100
    assert len(sent(queue)) == 100 - len(first)

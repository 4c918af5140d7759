"""The watchdogs: renewal of many leases at once, and being told of a loss in time."""

from __future__ import annotations

import gc
import logging
import math
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from django_redlock import LeaseLost, NodesUnavailable, events
from django_redlock.backend import Backend
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Command, Grant, Request, Vote
from django_redlock.fanout.group import NodeGroup
from django_redlock.fanout.memory.group import MemoryNode, MemoryNodes
from django_redlock.leases.batch import MOST_BYTES, MOST_TENANCIES, batches
from django_redlock.leases.lease import Lease
from django_redlock.leases.schedule import AHEAD, EARLY, LEAST_ENTRIES, RenewalSchedule
from django_redlock.leases.watchdog import Watchdog
from django_redlock.locks.template import LockTemplate
from django_redlock.testing import EmbeddedNodes
from django_redlock.transport.address import from_url

from .waiting import eventually


class Memory(MemoryNodes):
    """Three nodes in memory that note what they are asked, and fail or dawdle when told to."""

    def __init__(self) -> None:
        super().__init__([MemoryNode() for _ in range(3)])
        self.asked: list[Request] = []
        self.before: Callable[[Request], object] = lambda _: None

    def ask(self, ask: Request) -> list[Vote]:
        """See ``MemoryNodes``."""
        self.asked.append(ask)
        self.before(ask)
        return super().ask(ask)

    @property
    def renewals(self) -> list[Request]:
        """The messages that prolong."""
        return [ask for ask in self.asked if ask.command is Command.EXTEND]


def made(group: Any, size: int = 3, **options: Any) -> LockTemplate:
    """What calls itself ``redlock`` over a group of nodes."""
    backend = Backend("mine", group, Policy(size=size), **options)
    return LockTemplate(lambda _: backend)


@pytest.fixture
def memory() -> Memory:
    """Nodes of this test alone."""
    return Memory()


@pytest.fixture(scope="module")
def nodes() -> Iterator[EmbeddedNodes]:
    """Real nodes that nobody else asks, so that what they count is ours."""
    with EmbeddedNodes(3) as started:
        yield started


def group_of(nodes: EmbeddedNodes, timeout: float = 5.0) -> NodeGroup:
    """A process's view of the nodes; where nobody hangs, none of them has to be quick."""
    return NodeGroup(
        [from_url(url) for url in nodes.urls], timeout=timeout, guard=0, prefix="redlock:"
    )


def prolonged(*leases: Lease, times: int = 3) -> None:
    """Wait until the watchdog has prolonged each so often, one message after the other."""
    for _ in range(times):
        eventually(partial(_all_later, leases, [lease.tenancy.deadline for lease in leases]))
    for lease in leases:
        lease.ensure()


def _all_later(leases: Sequence[Lease], deadlines: Sequence[float]) -> bool:
    pairs = zip(leases, deadlines, strict=True)
    return all(lease.tenancy.deadline > deadline for lease, deadline in pairs)


# -- one message for many -------------------------------------------------------------------------


@pytest.mark.usefixtures("often")
def test_leases_that_are_due_together_share_a_message(nodes):
    """300 leases, renewed twice, cost each node 6 messages or a few more, as the node counts."""
    with closing(group_of(nodes)) as group:
        redlock = made(group)
        leases = [redlock(f"name:{number}").acquire() for number in range(300)]
        deadlines = [lease.tenancy.deadline for lease in leases]

        def counted() -> list[tuple[int, int]]:
            found = []
            for node in nodes:
                with closing(node.client()) as client:
                    stats = client.info("commandstats")
                    pexpire = stats.get("cmdstat_pexpire", {"calls": 0})
                    found.append((stats["cmdstat_evalsha"]["calls"], pexpire["calls"]))
            return found

        def renewed() -> list[tuple[int, int]]:
            pairs = zip(counted(), before, strict=True)
            found = [(now[0] - then[0], now[1] - then[1]) for now, then in pairs]
            return found if min(keys for _, keys in found) >= 600 else []

        before = counted()
        for scripts, keys in eventually(renewed, every=0.02):
            assert 600 / 24 * scripts <= keys  # they may have been renewed more than twice
        eventually(lambda: _all_later(leases, deadlines))
        for lease in leases:
            lease.release()


def test_a_message_is_bounded():
    """A batch has so many tenancies and bytes at the most, and no lease is left out."""
    redlock = made(Memory(), ttl=30, renew=False)
    few = [redlock(f"{number}:{'ü' * 250}").acquire() for number in range(60)]
    many = [redlock(f"name:{number}").acquire() for number in range(300)]
    big = [redlock([f"{number}:{'x' * 500}" for number in range(40)]).acquire()]
    for leases, most in ((few, 20), (many, MOST_TENANCIES), (big, 1)):
        made_of = [batch for _, batch in batches(leases)]
        assert [reference() for batch in made_of for reference in batch] == leases
        for batch in made_of:
            names = [name for each in batch if (lease := each()) for name in lease.names]
            size = sum(2 * len(name.encode()) for name in names)
            assert len(batch) <= most
            assert len(batch) == 1 or size <= MOST_BYTES


@pytest.mark.usefixtures("often")
def test_each_backend_has_its_own_message(memory):
    """Leases of two groups of nodes never meet in a message."""
    other = Memory()
    pairs = [(made(memory), "a"), (made(other), "b")]
    leases = [redlock(name).acquire() for redlock, name in pairs]
    eventually(lambda: memory.renewals and other.renewals)
    assert {key for ask in memory.renewals for key in ask.keys} == {
        "redlock:held",
        "redlock:lock:a",
    }
    assert {key for ask in other.renewals for key in ask.keys} == {"redlock:held", "redlock:lock:b"}
    for lease in leases:
        lease.release()


# -- unknown, kept, lost --------------------------------------------------------------------------


@pytest.mark.usefixtures("often")
def test_a_failed_renewal_is_unknown_until_the_deadline(memory):
    """FM-6: nodes that are away for two renewals cost nothing; nobody is told of a loss."""
    told: list[Lease] = []

    def be_away(ask: Request) -> None:
        failing = ask.command is Command.EXTEND and len(memory.renewals) <= 2
        memory.down = {0, 1} if failing else set()

    memory.before = be_away
    lease = made(memory)("name", on_lost=told.append).acquire()
    prolonged(lease)
    assert len(memory.renewals) >= 5
    assert told == []
    lease.release()


def test_what_stays_unknown_is_lost_at_the_deadline_not_before(memory, monkeypatch):
    """FM-6: nodes that stay away end the lease at its own deadline."""
    monkeypatch.setattr("django_redlock.leases.lease.RENEWALS", 50)
    monkeypatch.setattr("django_redlock.leases.lease.TRIES", 50)
    told: list[tuple[float, float]] = []

    def be_away(ask: Request) -> None:
        memory.down = {0, 1} if ask.command is Command.EXTEND else set()

    def note(lost: Lease) -> None:
        told.append((lost.backend.policy.clock(), lost.tenancy.deadline))

    memory.before = be_away
    lease = made(memory, ttl=1.5)("name", on_lost=note).acquire()
    deadline = lease.tenancy.deadline
    ((moment, end),) = eventually(lambda: told)
    assert len(memory.renewals) >= 3
    assert end == deadline
    assert deadline <= moment < deadline + 5


@pytest.mark.usefixtures("often")
def test_a_minority_that_denies_a_lease_does_not_end_it(memory):
    """FM-6: one node of three without the key, another one silent: unknown, so the lease stands."""
    told: list[Lease] = []

    def forget(ask: Request) -> None:
        denying = ask.command is Command.EXTEND and len(memory.renewals) <= 2
        memory.down = {1} if denying else set()
        if denying:
            memory.nodes[0].keys.clear()

    memory.before = forget
    lease = made(memory)("name", on_lost=told.append).acquire()
    prolonged(lease)
    assert len(memory.renewals) >= 5
    assert told == []
    lease.release()


@pytest.mark.usefixtures("often")
def test_an_unforeseen_error_of_asking_is_unknown_too(memory, caplog):
    """Whatever asking raises is logged, and the lease is tried again until its deadline."""

    def fail(ask: Request) -> None:
        if ask.command is Command.EXTEND and len(memory.renewals) <= 2:
            raise ZeroDivisionError

    memory.before = fail
    with caplog.at_level(logging.ERROR, logger="django_redlock"):
        lease = made(memory)("name").acquire()
        prolonged(lease)
    errors = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert errors == [ZeroDivisionError] * 2
    lease.release()


@pytest.mark.usefixtures("often")
def test_a_hung_group_delays_no_deadline_and_no_renewal_of_others(nodes, monkeypatch):
    """FM-6: while a renewal hangs for seconds, every other lease is renewed or told in time."""
    told: dict[str, float] = {}
    unanswered: list[Request] = []

    def note(lease: Lease) -> None:
        told[str(lease.name)] = lease.backend.policy.clock() - lease.tenancy.deadline

    def asking(ask: Request) -> list[Vote]:
        unanswered.append(ask)
        try:
            return ask_nodes(ask)
        finally:
            unanswered.remove(ask)

    with closing(group_of(nodes, timeout=60.0)) as group:
        ask_nodes = group.ask
        monkeypatch.setattr(group, "ask", asking)
        slow, quick = made(group), made(Memory())
        hanging = [slow(f"slow:{number}", ttl=1.5, on_lost=note).acquire() for number in range(3)]
        for node in range(3):
            nodes.pause(node)
        try:
            kept = quick("kept", on_lost=note).acquire()
            ending = quick("ending", ttl=0.6, renew=False, on_lost=note).acquire()
            eventually(lambda: len(told) == 4)
            prolonged(kept)
            (question,) = unanswered
            assert question.command is Command.EXTEND
        finally:
            for node in range(3):
                nodes.resume(node)
        assert set(told) == {"slow:0", "slow:1", "slow:2", "ending"}
        assert all(0 <= late < 5 for late in told.values()), told
        for lease in (*hanging, kept, ending):
            lease.release()


def test_an_exit_in_the_background_ends_no_watchdog(memory, caplog):
    """FM-6: an ``on_lost`` that calls ``sys.exit`` is logged; others are told all the same."""

    def leave(_: Lease) -> None:
        raise SystemExit(3)

    told: list[Lease] = []
    redlock = made(memory, ttl=0.3, renew=False)
    leases = [redlock(f"name:{number}", on_lost=leave).acquire() for number in range(2)]
    with caplog.at_level(logging.ERROR, logger="django_redlock"):
        eventually(lambda: len([each for each in caplog.records if each.exc_info]) == 2)
        leases.append(redlock("later", on_lost=told.append).acquire())
        eventually(lambda: told == leases[2:])


@pytest.mark.usefixtures("often")
def test_a_listener_that_exits_ends_no_renewal(memory):
    """A listener to extensions that calls ``sys.exit`` costs no lease of its message."""

    def leave(_: events.Event) -> None:
        raise SystemExit(3)

    redlock = made(memory)
    events.subscribe(leave, [events.EventKind.EXTENDED])
    try:
        leases = [redlock(f"name:{number}").acquire() for number in range(3)]
        prolonged(*leases)
    finally:
        events.unsubscribe(leave)
    for lease in leases:
        lease.release()


@pytest.mark.usefixtures("often")
def test_an_on_lost_that_blocks_stops_no_renewal(memory):
    """FM-6: a callback that does not return keeps no other lease from being renewed."""
    blocked, free = threading.Event(), threading.Event()

    def block(_: Lease) -> None:
        blocked.set()
        free.wait(60)

    redlock = made(memory)
    kept = redlock("kept").acquire()
    try:
        lost = redlock("lost", ttl=0.4, renew=False, on_lost=block).acquire()
        assert blocked.wait(20)
        assert lost.lost
        prolonged(kept)
    finally:
        free.set()
    kept.release()


def test_a_late_answer_neither_shortens_nor_ends_what_another_has_prolonged(memory):
    """FM-6: of two extensions at once the later deadline counts, in whatever order they end."""
    lease = made(memory, ttl=10, renew=False)("name").acquire()
    before, policy = lease.tenancy, lease.backend.policy
    lease.extend(20)
    deadline = lease.tenancy.deadline
    assert lease.renewed(before._replace(deadline=before.deadline + 1), 0.0) is False
    assert lease.tenancy.deadline == deadline
    assert lease.renewed(LeaseLost("over before a majority extended it"), 0.0) is False
    assert lease.renewed(NodesUnavailable("nobody answered"), 0.0) is False
    assert not lease.lost
    assert lease.tenancy.deadline == deadline > policy.clock()
    lease.release()


def test_a_renewal_heard_after_the_deadline_revives_nothing(memory, monkeypatch):
    """FM-8: what somebody may have seen as lost stays lost, and is told once."""
    monkeypatch.setattr(Watchdog, "watch", lambda *_: None)  # nobody else watches it
    lease = made(memory, ttl=0.2, renew=False)("name").acquire()
    eventually(lambda: lease.lost)
    later = lease.tenancy._replace(deadline=lease.tenancy.deadline + 10)
    assert lease.renewed(later, 0.0) is True
    assert lease.renewed(later, 0.0) is False
    assert lease.over() is False
    assert lease.lost
    assert lease.remaining() <= 0


@pytest.mark.usefixtures("often")
def test_a_renewal_that_a_release_overtook_loses_nothing(memory):
    """FM-6: nodes that deny a lease because its holder has released it are no news."""
    told: list[Lease] = []
    asking, go_on = threading.Event(), threading.Event()

    def dawdle(ask: Request) -> None:
        if ask.command is Command.EXTEND:
            asking.set()
            go_on.wait(20)

    memory.before = dawdle
    lease = made(memory)("name", on_lost=told.append).acquire()
    assert asking.wait(20)
    lease.release()
    go_on.set()
    not_renewed(memory, "name", after=1)
    assert told == []
    assert not lease.lost


def not_renewed(memory: Memory, name: str, after: int) -> None:
    """See that a lease is in no further message, while another one is renewed again and again."""
    other = made(memory)("other").acquire()
    prolonged(other)
    assert not any(f"redlock:lock:{name}" in ask.keys for ask in memory.renewals[after:])
    other.release()


@pytest.mark.usefixtures("often")
def test_a_lease_that_nobody_can_release_is_not_renewed(memory):
    """A lease that was forgotten ends with its ttl: the watchdog does not keep it."""
    lease = made(memory)("name").acquire()
    reference = weakref.ref(lease)
    eventually(lambda: memory.renewals)
    del lease
    gc.collect()
    eventually(lambda: reference() is None)
    not_renewed(memory, "name", after=len(memory.renewals))
    for node in memory.nodes:
        node.clock = lambda: time.time() * 1000 + 30_000  # its ttl is over
    made(memory)("name").acquire().release()


@pytest.mark.usefixtures("often")
def test_many_threads_take_and_lose_leases_and_none_is_mixed_up(memory):
    """Leases of many threads, some released, some lost: each is told once what happened to it."""
    told: list[str] = []
    redlock = made(memory)

    def work(number: int) -> None:
        for turn in range(20):
            name = f"{number}:{turn}"
            lease = redlock(name, on_lost=tell).acquire()
            if turn % 4 == 0:
                kept.append(lease)
                continue
            if turn % 4 == 1:
                ending.append(redlock(f"end:{name}", ttl=0.4, **ends).acquire())
            lease.release()

    def tell(lost: Lease) -> None:
        told.append(str(lost.name))

    ends: dict[str, Any] = {"renew": False, "on_lost": tell}
    kept: list[Lease] = []
    ending: list[Lease] = []
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(kept) == len(ending) == 40
    eventually(lambda: len(told) >= 40)
    prolonged(*kept)
    assert sorted(told) == sorted(str(lease.name) for lease in ending)
    for lease in kept:
        lease.release()


# -- when -----------------------------------------------------------------------------------------


def test_a_lease_is_due_after_a_third_of_its_ttl_and_soon_again_where_nobody_answered(memory):
    """Counted from when it was asked for; a renewal with an unknown end is tried 20 times a ttl."""
    lease = made(memory, renew=False)("name").acquire()
    assert lease.renew_at == math.inf
    lease.release()
    lease = made(memory)("name").acquire()
    since = lease.tenancy.since
    assert lease.renew_at == since + 10
    lease.renewed(NodesUnavailable("nobody answered"), since + 10)
    assert lease.renew_at == since + 11.5
    lease.renewed(lease.tenancy, since + 12)
    assert lease.renew_at == since + 22
    lease.release()


# -- whose turn it is -----------------------------------------------------------------------------


class Turn:
    """A lease as far as a rota looks at it."""

    def __init__(self, *, ttl: float = 30.0, since: float = 0.0, renews: bool = True) -> None:
        target = Policy(size=1).target(["name"])
        self.tenancy = Grant(target, "f" * 32, 1, since + ttl, since, ttl, frozenset())
        self.renew_at = since + ttl / 3 if renews else float("inf")
        self.held, self.untold = True, False

    def renew(self, now: float) -> None:
        """Be prolonged."""
        self.tenancy = self.tenancy._replace(deadline=now + self.tenancy.ttl)
        self.renew_at = now + self.tenancy.ttl / 3


def rota_of(*turns: Any, **options: float) -> RenewalSchedule:
    """A rota with these leases."""
    rota = RenewalSchedule(**options)
    for turn in turns:
        rota.add(turn)
    return rota


def test_a_rota_takes_along_what_is_nearly_due():
    """When one lease is due, so are all within a small part of their ttl; before that, none is."""
    first: Any = Turn()
    near: Any = Turn(since=30 * EARLY * 0.9)
    far: Any = Turn(since=30 * EARLY * 1.1)
    rota = rota_of(far, near, first)
    assert rota.next() == 10
    assert rota.take(9.99) == ([], [])
    assert rota.take(10.0) == ([], [first, near])
    assert rota.next() == far.renew_at


def test_a_rota_finds_who_is_over_while_it_is_being_renewed():
    """A lease whose renewal is under way keeps its place among the deadlines."""
    turn: Any = Turn()
    rota = rota_of(turn)
    assert rota.take(10.0) == ([], [turn])
    assert rota.next() == 30
    assert rota.take(29.99) == ([], [])
    assert rota.take(30.0) == ([turn], [])
    assert rota.next() == float("inf")


def test_a_rota_follows_a_deadline_that_moves():
    """A deadline that was put off, by whomever, is no end."""
    turn: Any = Turn(renews=False)
    rota = rota_of(turn)
    turn.tenancy = turn.tenancy._replace(deadline=45.0)
    assert rota.take(30.0 - AHEAD) == ([], [])
    assert rota.next() == 45
    assert rota.take(45.0) == ([turn], [])


def test_a_rota_forgets_who_has_ended():
    """Released and forgotten leases are neither renewed nor told, and take no room for long."""
    turns: list[Any] = [Turn() for _ in range(2 * LEAST_ENTRIES)]
    alive: Any = Turn(since=100)
    rota = rota_of(*turns, alive)
    for turn in turns[::2]:
        turn.held = False
    del turns[1::2], turn
    rota.take(0.0)
    assert len(rota._renewals) + len(rota._deadlines) == 1
    assert rota.take(200.0) == ([alive], [alive])


def test_a_rota_that_lags_steps_in_only_where_nobody_else_did():
    """The spare rota waits, and takes no lease that was renewed in the meantime."""
    kept: Any = Turn()
    left: Any = Turn()
    rota = rota_of(kept, left, lag=1 / 6, grace=0.1)
    assert rota.next() == 15
    kept.renew(10.0)
    assert rota.take(15.0) == ([], [left])
    assert rota.take(30.05) == ([], [kept])
    assert rota.take(30.1) == ([left], [])
    left.held = False
    assert rota.take(40.05) == ([], [])
    assert rota.take(40.1) == ([kept], [])


def test_a_rota_names_who_is_over_once():
    """Also where the time to renew comes after the end, as with a ttl of few milliseconds."""
    turn: Any = Turn()
    rota = rota_of(turn, lag=1)
    assert rota.next() == 30
    assert rota.take(200.0) == ([turn], [turn])

"""The watchdogs: renewal of many leases at once, and being told of a loss in time."""

from __future__ import annotations

import gc
import logging
import math
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from django_redlock.backend import Backend
from django_redlock.core import hold
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Command, Grant, Request, Vote
from django_redlock.leases import renewal
from django_redlock.leases.lease import Lease
from django_redlock.leases.renewal import (
    EARLY,
    MOST_BYTES,
    MOST_LEASES,
    MOST_TOLD,
    RenewalBatch,
    RenewalSchedule,
    Watchdog,
    Wounded,
    batches,
)
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.address import from_url
from django_redlock.nodes.background import end
from django_redlock.nodes.group import NodeGroup
from django_redlock.nodes.memory import MemoryNode, MemoryNodes
from django_redlock.testing import EmbeddedNodes
from tests.simulation.mutants import Patch, with_edits
from tests.support.waiting import eventually


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


def later(*leases: Lease) -> Callable[[], bool]:
    """What tells whether each of the leases has been prolonged since now."""
    pairs = [(lease, lease.grant.deadline) for lease in leases]
    return lambda: all(lease.grant.deadline > deadline for lease, deadline in pairs)


def prolonged(*leases: Lease, times: int = 3) -> None:
    """Wait until the watchdog has prolonged each so often, one message after the other."""
    for _ in range(times):
        eventually(later(*leases))
    for lease in leases:
        lease.ensure()


# -- one message for many -------------------------------------------------------------------------


def test_a_message_is_bounded():
    """A batch has so many tenancies and bytes at the most, and no lease is left out."""
    redlock = made(Memory(), ttl=30, renew=False)
    few = [redlock(f"{number}:{'ü' * 250}").acquire() for number in range(60)]
    many = [redlock(f"name:{number}").acquire() for number in range(300)]
    big = [redlock([f"{number}:{'x' * 500}" for number in range(40)]).acquire()]
    for leases, most in ((few, 20), (many, MOST_LEASES), (big, 1)):
        made_of = [batch for _, batch in batches(leases)]
        assert [reference() for batch in made_of for reference in batch] == leases
        for batch in made_of:
            names = [name for each in batch if (lease := each()) for name in lease.names]
            size = sum(2 * len(name.encode()) for name in names)
            assert len(batch) <= most
            assert len(batch) == 1 or size <= MOST_BYTES


def most_heals_between_renewals(commands: Sequence[Command]) -> int:
    """The most heals that were asked for while a renewal was still to come."""
    words = "".join("R" if each is Command.EXTEND else "h" for each in commands)
    return max(map(len, words.split("R")[1:-1]), default=0)


@pytest.mark.parametrize("broken", [False, True], ids=["well", "broken"])
def test_no_renewal_waits_until_others_are_healed(memory, broken, monkeypatch):
    """A node has lost 300 leases: each of the three messages comes after one heal at most."""
    watchdog = Watchdog()
    workers = watchdog._workers
    if broken:
        monkeypatch.setattr(RenewalBatch, "steps", steps_that_heal)
    redlock = made(memory)
    leases = [redlock(f"name:{number}", renew=False).acquire() for number in range(300)]
    memory.nodes[0].keys.clear()

    def wait_for_others(ask: Request) -> None:
        """Begin when all three messages are submitted."""
        if ask.command is Command.EXTEND and len(memory.renewals) == 1:
            eventually(lambda: len(workers._jobs[id(memory)]) >= 2)

    memory.asked.clear()
    memory.before = wait_for_others
    for backend, batch in batches(leases):
        workers.do(id(memory), partial(watchdog._renew, backend, batch))
    eventually(lambda: len(memory.nodes[0].keys) == 300)
    commands = [ask.command for ask in memory.asked]
    assert (commands.count(Command.EXTEND), commands.count(Command.HEAL)) == (3, 300)
    assert (most_heals_between_renewals(commands) <= 1) is not broken
    for lease in leases:
        lease.release()


def steps_that_heal(batch: RenewalBatch) -> Any:
    """Heal all leases of a message before the next message."""
    ttls = [each.grant.ttl for each in batch.leases]
    return hold.extend_many(batch.backend.policy, batch.leases, ttls, batch._hear)


def test_a_lease_waits_once_to_be_healed(memory):
    """However often it is renewed meanwhile, it keeps its turn; who has ended has none."""
    redlock, wounded = made(memory, renew=False), Wounded()
    first, ended, last = (redlock(name).acquire() for name in ("first", "ended", "last"))
    for lease in (first, ended, last, first):
        wounded[weakref.ref(lease)] = frozenset({0})
    ended.release()
    turns = [wounded.next_one() for _ in range(3)]
    assert [healing and healing.lease for healing in turns] == [first, last, None]
    for lease in (first, last):
        lease.release()


def test_a_heal_that_fails_is_told_and_others_go_on(memory, caplog):
    """The leases that it leaves are found again by the next renewal."""
    watchdog = Watchdog()
    redlock = made(memory, renew=False)
    leases = [redlock(name).acquire() for name in ("one", "other")]
    memory.nodes[0].keys.clear()

    def fail(ask: Request) -> None:
        if ask.command is Command.HEAL and ask.nonce == leases[0].grant.nonce:
            raise ZeroDivisionError

    memory.before = fail
    ((backend, batch),) = batches(leases)
    with caplog.at_level(logging.ERROR, logger="django_redlock"):
        watchdog._renew(backend, batch)
        eventually(lambda: list(memory.nodes[0].keys) == ["redlock:lock:other"])
    assert [record.getMessage() for record in caplog.records] == ["healing 'one' failed"]
    for lease in leases:
        lease.release()


@pytest.mark.usefixtures("often")
def test_each_backend_has_its_own_message(memory):
    """Leases of two groups of nodes never meet in a message."""
    other = Memory()
    pairs = [(made(memory), "a"), (made(other), "b")]
    leases = [redlock(name).acquire() for redlock, name in pairs]
    eventually(lambda: memory.renewals and other.renewals)
    for group, name in ((memory, "a"), (other, "b")):
        asked = {key for ask in group.renewals for key in ask.keys}
        assert asked == {"redlock:held", f"redlock:lock:{name}"}
    for lease in leases:
        lease.release()


# -- unknown, kept, lost --------------------------------------------------------------------------


def away(memory: Memory) -> None:
    """A majority does not reply."""
    memory.down = {0, 1}


def foreign(memory: Memory) -> None:
    """One node has another's key, for a free name would be healed; one does not reply."""
    memory.down = {1}
    keys = memory.nodes[0].keys
    keys.update({key: ("foreign", expiry) for key, (_, expiry) in keys.items()})


def fail(_: Memory) -> None:
    """Asking raises something unforeseen, which is logged."""
    raise ZeroDivisionError


@pytest.mark.slow
@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("outage", [away, foreign, fail])
def test_two_renewals_that_no_majority_decides_cost_nothing(memory, caplog, outage):
    """The lease is tried again until its deadline, and nobody is told of a loss."""
    told: list[Lease] = []

    def twice(ask: Request) -> None:
        memory.down = set()
        if ask.command is Command.EXTEND and len(memory.renewals) <= 2:
            outage(memory)

    memory.before = twice
    lease = made(memory)("name", on_lost=told.append).acquire()
    prolonged(lease)
    assert len(memory.renewals) >= 5
    assert told == []
    errors = [record.exc_info[0] for record in caplog.records if record.exc_info]
    assert errors == [ZeroDivisionError] * 2 * (outage is fail)
    lease.release()


@pytest.mark.slow
def test_what_stays_unknown_is_lost_at_the_deadline_not_before(memory, monkeypatch):
    """Nodes that stay away end the lease at its own deadline."""
    monkeypatch.setattr("django_redlock.leases.lease.RENEWALS", 50)
    monkeypatch.setattr("django_redlock.leases.lease.TRIES", 50)
    told: list[tuple[float, float]] = []

    def be_away(ask: Request) -> None:
        memory.down = {0, 1} if ask.command is Command.EXTEND else set()

    def note(lost: Lease) -> None:
        told.append((lost.backend.policy.clock(), lost.grant.deadline))

    memory.before = be_away
    lease = made(memory, ttl=1.5)("name", wait=60, on_lost=note).acquire()
    deadline = lease.grant.deadline
    ((moment, end),) = eventually(lambda: told)
    assert len(memory.renewals) >= 3
    assert end == deadline
    assert moment >= deadline


@pytest.mark.slow
@pytest.mark.usefixtures("often")
def test_a_hung_group_delays_no_deadline_and_no_renewal_of_others(nodes, monkeypatch):
    """While a renewal hangs for seconds, every other lease is renewed or told in time."""
    told: dict[str, float] = {}
    unanswered: list[Request] = []

    def note(lease: Lease) -> None:
        told[str(lease.name)] = lease.backend.policy.clock() - lease.grant.deadline

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
        names = [f"slow:{number}" for number in range(3)]
        hanging = [slow(name, ttl=1.5, wait=60, on_lost=note).acquire() for name in names]
        for node in range(3):
            nodes.pause(node)
        try:
            kept = quick("kept", on_lost=note).acquire()
            ending = quick("ending", ttl=0.6, wait=60, renew=False, on_lost=note).acquire()
            eventually(lambda: len(told) == 4)
            prolonged(kept)
            (question,) = unanswered
            assert question.command is Command.EXTEND
        finally:
            for node in range(3):
                nodes.resume(node)
        assert set(told) == {"slow:0", "slow:1", "slow:2", "ending"}
        assert all(late >= 0 for late in told.values()), told
        for lease in (*hanging, kept, ending):
            lease.release()


@pytest.mark.slow
def test_an_exit_in_the_background_ends_no_watchdog(memory, caplog):
    """An ``on_lost`` that calls ``sys.exit`` is logged; others are told all the same."""

    def leave(_: Lease) -> None:
        raise SystemExit(3)

    told: list[Lease] = []
    redlock = made(memory, ttl=0.3, renew=False).using(wait=60)
    leases = [redlock(f"name:{number}", on_lost=leave).acquire() for number in range(2)]
    with caplog.at_level(logging.ERROR, logger="django_redlock"):
        eventually(lambda: len([each for each in caplog.records if each.exc_info]) == 2)
        leases.append(redlock("later", on_lost=told.append).acquire())
        eventually(lambda: told == leases[2:])


def test_the_watchdog_tells_of_a_loss_that_nobody_told(memory, monkeypatch):
    """A signal handler interrupted the thread that noticed the loss, before it told anybody."""
    monkeypatch.setattr(Watchdog, "watch", lambda *_: None)  # nobody else watches it
    told: list[Lease] = []
    lease = made(memory, renew=False)("name", on_lost=told.append).acquire()
    assert lease.expire()
    assert told == []
    watchdog = Watchdog()
    watchdog.schedule.add(lease)
    watchdog._attend()
    eventually(lambda: told == [lease])


@pytest.mark.parametrize("grace", [0.0, 10.0], ids=["well", "broken"])
@pytest.mark.parametrize("renew", [False, True], ids=["not renewed", "renewal hangs"])
def test_the_watchdog_sleeps_no_longer_than_until_the_deadline(memory, monkeypatch, renew, grace):
    """It wakes at the lease's own deadline; one that wakes ten seconds later is noticed."""
    monkeypatch.setattr(Watchdog, "watch", lambda *_: None)  # nobody else watches it
    lease = made(memory, ttl=60, renew=renew)("name").acquire()
    watchdog: Any = Watchdog()
    slept: list[float] = []
    watchdog._wakeup = SimpleNamespace(sleep=slept.append)

    def late(due: Callable[..., Any]) -> Callable[..., Any]:
        end = lease.grant.deadline
        return lambda at, *more, **wait: due(at + grace * (at == end), *more, **wait)

    with with_edits(Patch(renewal, "Due", late)):
        watchdog.schedule.add(lease)
        if renew:  # taken, and nobody gives it back
            assert watchdog.schedule.take(lease.renew_at) == ([], [lease])
    left = lease.remaining()
    watchdog._attend()
    assert slept[0] > 0
    assert (slept[0] <= left) is not bool(grace)
    lease.release()


@pytest.mark.parametrize("threads", [False, True])
def test_a_server_that_stops_the_watchdog_between_requests_is_named(
    memory, monkeypatch, caplog, *, threads
):
    """A process that uWSGI runs without threads warns at its first lease, once."""
    monkeypatch.setitem(sys.modules, "uwsgi", SimpleNamespace(has_threads=threads))
    renewal._warn_of_uwsgi.cache_clear()
    lease = made(memory, ttl=60)("name").acquire()
    for _ in range(2):
        watchdog = Watchdog()
        watchdog.watch(lease)
        assert end([watchdog._workers], 60) == []
    told = [each.message for each in caplog.records if each.levelname == "WARNING"]
    assert ["set enable-threads = true" in each for each in told] == [True] * (not threads)
    lease.release()


@pytest.mark.usefixtures("often")
def test_a_lease_that_nobody_can_release_is_not_renewed(memory):
    """The watchdog does not keep what it has renewed."""
    lease = made(memory)("name").acquire()
    prolonged(lease, times=1)
    reference = weakref.ref(lease)
    del lease
    gc.collect()
    eventually(lambda: reference() is None)


# -- whose turn it is -----------------------------------------------------------------------------

MOST = 160  # leases


class Turn:
    """A lease as far as a schedule looks at it."""

    def __init__(self, *, ttl: float = 30.0, since: float = 0.0, renews: bool = True) -> None:
        target = Policy(size=1).target(["name"])
        self.grant = Grant(target, "f" * 32, 1, since + ttl, since, ttl, frozenset())
        self.renew_at = since + ttl / 3 if renews else float("inf")
        self.held, self.untold = True, False
        self.block = None
        self.schedule: RenewalSchedule | None = None

    def renew(self, now: float) -> None:
        """Be prolonged."""
        self.grant = self.grant._replace(deadline=now + self.grant.ttl)
        self.renew_at = now + self.grant.ttl / 3


def schedule_of(*turns: Any) -> RenewalSchedule:
    """A schedule with these leases."""
    schedule = RenewalSchedule()
    for turn in turns:
        schedule.add(turn)
    return schedule


def test_a_schedule_takes_along_what_is_nearly_due():
    """When one lease is due, so are all within a small part of their ttl; before that, none is."""
    first: Any = Turn()
    near: Any = Turn(since=30 * EARLY * 0.9)
    far: Any = Turn(since=30 * EARLY * 1.1)
    schedule = schedule_of(far, near, first)
    assert schedule.next() == 10
    assert schedule.take(9.99) == ([], [])
    assert schedule.take(10.0) == ([], [first, near])
    assert schedule.next() == far.renew_at


def size(schedule: RenewalSchedule) -> int:
    """How many leases have an entry."""
    return len(schedule._entries)


def forget(turn: Any) -> None:
    """Forget the leases that have ended, as a release does it."""
    turn.held = False
    if turn.schedule is not None:
        turn.schedule.forget(turn)


def test_a_schedule_forgets_who_has_ended():
    """Released leases are neither renewed nor told, and have no place."""
    turns: list[Any] = [Turn(since=each % 7) for each in range(10 * MOST)]
    schedule = schedule_of(*turns)
    alive: Any = Turn(since=100)
    schedule.add(alive)
    assert size(schedule) == 10 * MOST + 1
    _, due = schedule.take(10.0)
    for turn in turns:
        forget(turn)
        forget(turn)
    assert size(schedule) == 1
    for turn in due:
        schedule.renew_later(turn)
    assert size(schedule) == 1
    assert schedule.next() == alive.renew_at
    assert schedule.take(200.0) == ([alive], [])


def test_a_schedule_drops_in_time_who_was_never_released():
    """Leases that the program has forgotten go with the next one that is due, and are told."""
    kept: Any = Turn()
    schedule = schedule_of(kept, *(Turn(since=100) for _ in range(MOST)))
    assert size(schedule) == MOST + 1
    assert schedule.take(10.0) == ([], [kept])
    assert size(schedule) == 1
    assert len(schedule.forgotten) == MOST_TOLD


def test_a_schedule_looks_only_where_something_is_near():
    """Leases that are due in the same message are few of many, whatever their ttl is."""
    turns: list[Any] = [Turn(since=each / 1000, ttl=30 + each % 9) for each in range(20 * MOST)]
    schedule = schedule_of(*turns)
    had: set[int] = set()
    while len(had) < len(turns):
        now = schedule.next()
        over, due = schedule.take(now)
        assert over == []
        assert due
        assert due == sorted(due, key=lambda turn: turn.renew_at)
        assert not had & set(map(id, due))
        had |= set(map(id, due))
        late = [turn.renew_at for turn in turns if id(turn) not in had]
        assert min(late, default=now) >= now


def test_a_schedule_names_all_who_are_over():
    """Also leases that are being renewed, or never are; a released lease is not among them."""
    turns: list[Any] = [Turn(since=each, renews=each % 2 == 0) for each in range(10)]
    schedule = schedule_of(*turns)
    assert schedule.take(10.0) == ([], [turns[0]])
    turns[2].held = False
    assert schedule.take(12.0) == ([], [])
    assert schedule.next() == 14
    over, due = schedule.take(37.0)
    assert over == [turns[each] for each in (0, 1, 3, 4, 5, 6, 7)]
    assert due == [turns[8]]
    assert schedule.take(39.0) == ([turns[8], turns[9]], [])
    assert size(schedule) == 0


def test_who_is_lost_and_not_told_is_taken_again():
    """Also at the time of its renewal, which comes to nothing; once."""
    turn: Any = Turn()
    schedule = schedule_of(turn)
    turn.held, turn.untold = False, True
    assert schedule.take(10.0) == ([turn], [])
    assert schedule.take(30.0) == ([], [])
    assert schedule.next() == math.inf


def release_in_the_middle_of_a_put() -> int:
    """Have another thread release a lease while it is given back; how many entries are left?"""
    turn: Any = Turn()
    schedule = schedule_of(turn)
    assert schedule.take(10.0) == ([], [turn])
    held = iter([True])

    class Released(Turn):
        @property
        def held(self) -> bool:
            if next(held, False):
                forget(turn)
                return True
            return False

        @held.setter
        def held(self, _: bool) -> None:
            pass

    turn.__class__ = Released
    schedule.renew_later(turn)
    return size(schedule)


def test_a_lease_that_is_released_while_it_is_given_back_has_no_entry():
    """Its release may be a moment earlier than its new entry."""
    assert release_in_the_middle_of_a_put() == 0
    with with_edits(Patch(renewal, "_is_watched", lambda _: lambda lease: True)):
        assert release_in_the_middle_of_a_put() == 1


@pytest.mark.slow
def test_threads_forget_leases_while_others_are_added_and_taken():
    """None of those that live is missed, and none that was released has an entry."""
    schedule, ended, over = schedule_of(), deque[Any](), threading.Event()

    def forget_all() -> None:
        while not (over.is_set() and not ended):
            try:
                turn = ended.popleft()
            except IndexError:
                continue
            forget(turn)

    threads = [threading.Thread(target=forget_all) for _ in range(3)]
    for thread in threads:
        thread.start()
    alive: list[Any] = []
    try:
        for number in range(100 * MOST):
            turn: Any = Turn(since=number / 1000)
            schedule.add(turn)
            if number % 40:
                turn.held = False
                ended.append(turn)
            else:
                alive.append(turn)
            if number % 100 == 0:
                due: Any
                for due in schedule.take(10 + number / 2000)[1]:
                    due.renew(10 + number / 2000)
                    schedule.renew_later(due)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert size(schedule) == len(alive)
    found, _ = schedule.take(100.0)
    assert set(found) == set(alive)

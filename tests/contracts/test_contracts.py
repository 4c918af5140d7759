"""One list of promises, kept over nodes in memory and real ones, by threads and by asyncio."""

from __future__ import annotations

import base64
import itertools
import json
import logging
import math
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, nullcontext, suppress
from functools import partial
from typing import Any, NamedTuple, Protocol

import pytest
from django.test import override_settings

from django_redlock import (
    LeaseLost,
    LockTaken,
    assert_locked,
    conf,
    current_lease,
    redlock,
    redlocks,
)
from django_redlock.leases import context
from django_redlock.leases.lease import Lease
from django_redlock.nodes.memory import MemoryNodes
from django_redlock.testing.embedded import EmbeddedNodes
from tests.support.waiting import eventually, release_under_a_waiter, waiters

from .twins import by_asyncio

MAX_TTL = 60.0  # seconds: longer than any test may be held up
LONG = 50.0  # seconds: a ttl that no stall of this machine outlives
SHORT = 0.3  # seconds: a ttl that a test outlives
# A grant that was heard too late for that is none, and is tried again.
BRIEFLY: dict[str, Any] = {"ttl": SHORT, "renew": False, "wait": MAX_TTL}
NUMBERS = itertools.count()

COMPARE_AND_DELETE = (
    "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"
)


class Found(NamedTuple):
    """What one node stores under a key."""

    value: str
    pttl: int

    @property
    def nonce(self) -> str:
        """The part of our own values that is the power to release."""
        return self.value.split(":")[0]


class World(Protocol):
    """Five nodes, seen by somebody who knows nothing of this package."""

    def look(self, name: str) -> list[Found]:
        """What the nodes that have the lock's key store under it."""

    def seize(self, name: str, value: str, px: int, *, on: int = 5) -> int:
        """SET NX PX on the first ``on`` nodes; on how many it was done."""

    def let_go(self, name: str, value: str) -> int:
        """Compare and delete on all nodes; on how many it was done."""

    def wipe(self, name: str, *, on: int = 5) -> None:
        """Delete the lock's key on the first ``on`` nodes; all five have it, or are given it."""


class MemoryWorld:
    """The dictionaries of the nodes in memory."""

    def __init__(self, urls: list[str]) -> None:
        self.nodes = MemoryNodes.named(urls).nodes

    def look(self, name: str) -> list[Found]:
        """See ``World``."""
        key = f"redlock:lock:{name}"
        pairs = [(node.get(key), node.pttl(key)) for node in self.nodes]
        return [Found(value, pttl) for value, pttl in pairs if value is not None]

    def seize(self, name: str, value: str, px: int, *, on: int = 5) -> int:
        """See ``World``."""
        key = f"redlock:lock:{name}"
        free = [node for node in self.nodes[:on] if node.get(key) is None]
        for node in free:
            node.keys[key] = (value, node.clock() + px)
        return len(free)

    def let_go(self, name: str, value: str) -> int:
        """See ``World``."""
        key = f"redlock:lock:{name}"
        return len([node.keys.pop(key) for node in self.nodes if node.get(key) == value])

    def wipe(self, name: str, *, on: int = 5) -> None:
        """See ``World``."""
        for node in self.nodes[:on]:
            node.keys.pop(f"redlock:lock:{name}", None)


class RealWorld:
    """Real nodes, asked by redis-py as any other program would."""

    def __init__(self, nodes: EmbeddedNodes, stack: ExitStack) -> None:
        self.clients = [
            stack.enter_context(closing(node.client(decode_responses=True, socket_timeout=MAX_TTL)))
            for node in nodes
        ]

    def look(self, name: str) -> list[Found]:
        """See ``World``."""
        key = f"redlock:lock:{name}"
        pairs = [(client.get(key), client.pttl(key)) for client in self.clients]
        return [Found(str(value), pttl) for value, pttl in pairs if value is not None]

    def seize(self, name: str, value: str, px: int, *, on: int = 5) -> int:
        """See ``World``."""
        key = f"redlock:lock:{name}"
        return sum(bool(client.set(key, value, px=px, nx=True)) for client in self.clients[:on])

    def let_go(self, name: str, value: str) -> int:
        """See ``World``."""
        key = f"redlock:lock:{name}"
        return sum(client.eval(COMPARE_AND_DELETE, 1, key, value) for client in self.clients)

    def wipe(self, name: str, *, on: int = 5) -> None:
        """See ``World``."""
        # A majority was enough to grant it; to the others the request may be on its way.
        eventually(lambda: len(self.look(name)) == len(self.clients))
        for client in self.clients[:on]:
            client.delete(f"redlock:lock:{name}")


@pytest.fixture(autouse=True)
def nothing_held() -> Iterator[None]:
    """Release what a test left: a lease that was lost stays current until it is released."""
    yield
    for lease in context.leases():
        lease.release()


@pytest.fixture(params=["threads", "asyncio"])
def style(request: pytest.FixtureRequest) -> Iterator[str]:
    """Who does what a test asks for: the blocking methods, or their twins in an event loop."""
    with by_asyncio() if request.param == "asyncio" else nullcontext():
        yield request.param


@pytest.fixture(params=["memory", "real"])
def world(request: pytest.FixtureRequest, style: str) -> Iterator[World]:
    """Five nodes that hold nothing, in force as the default alias."""
    if request.param == "real":
        nodes = request.getfixturevalue("patient_nodes")
        # Nobody hangs here: no node has to be quick.
        alias = nodes.settings(MAX_TTL=MAX_TTL, RESTART_GUARD=False, NODE_TIMEOUT=10)
        with ExitStack() as stack, override_settings(REDLOCK={"default": alias}):
            yield RealWorld(nodes, stack)
        return
    urls = [f"memory://contract-{next(NUMBERS)}" for _ in range(5)]
    alias = {"NODES": urls, "MAX_TTL": MAX_TTL, "TTL": MAX_TTL, "CLOCK_SKEW": 0.1}
    with override_settings(REDLOCK={"default": alias}):
        yield MemoryWorld(urls)


def is_over(lease: Lease) -> bool:
    """Whether the lease's time has run out."""
    return lease.remaining() <= 0


def outlive(world: World, lease: Lease) -> None:
    """Wait until no node has the lease any more either: the holder stops before its keys expire."""
    eventually(lambda: is_over(lease), within=MAX_TTL + 1)
    eventually(lambda: not any(map(world.look, lease.names)), within=MAX_TTL)


def renewed(lease: Lease) -> float:
    """Wait until the watchdog has prolonged the lease; its new deadline."""
    before = lease.grant.deadline
    eventually(lambda: lease.grant.deadline > before, within=MAX_TTL)
    return lease.grant.deadline


def is_free(world: World, name: str) -> None:
    """See that nobody has the name, long before a ttl is over.

    For whoever may wait it is kept for 50 ms. A node whose grant was not waited for is not waited
    for by the release either, and may be about to do both.
    """
    eventually(
        lambda: {found.value for found in world.look(name)} <= {"next::"}, within=MAX_TTL / 2
    )
    eventually(lambda: world.look(name) == [], within=MAX_TTL / 2)


# -- with, acquire, try_acquire ---------------------------------------------------------------


def test_the_body_runs_with_the_lock_or_not_at_all(world):
    """`with` either holds a majority or raises before the body; leaving frees every node."""
    ran = []
    with redlock("name") as lease:
        assert len({found.nonce for found in world.look("name")}) == 1
        assert len(world.look("name")) == 5
        assert lease.remaining() > 0
        with pytest.raises(LockTaken), redlock("name"):
            ran.append("without the lock")
    assert ran == []
    assert world.look("name") == []


def test_a_second_acquire_of_the_same_thread_is_refused(world):
    """A lock is not re-entrant: its own thread is told LockTaken, and never waits for itself.

    `try_acquire` tells "held" by None, without waiting, whatever `wait` says.
    """
    with redlock("name", ttl=LONG, renew=False):
        with pytest.raises(LockTaken) as refused:
            redlock("name").acquire()
        assert redlock("name", wait=math.inf).try_acquire() is None
        left = min(found.pttl for found in world.look("name")) / 1000
    error = refused.value
    assert error.name == "name"
    assert error.holder
    assert error.retry_after is not None
    assert left <= error.retry_after <= LONG  # it was told before we looked
    assert len(error.votes) == 5


def test_one_lock_may_be_entered_by_many_threads(world):
    """A Lock shared by threads lets one in at a time, and each leaves its own lease."""
    lock = redlock("name", wait=30)
    inside: list[int] = []
    fences: list[int] = []
    overlaps: list[int] = []
    ended: list[int] = []

    def others_come(lease: Lease) -> bool:
        """Whether somebody waits beside us, or nobody is left."""
        return waiters(lease) > 0 or len(ended) == 3

    def work(number: int) -> None:
        for _ in range(5):
            with lock as lease:
                inside.append(number)
                eventually(partial(others_come, lease))
                overlaps.extend(each for each in inside if each != number)
                fences.append(lease.fence)
                inside.remove(number)
        ended.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert overlaps == []
    assert len(fences) == 20
    assert fences == sorted(set(fences))
    is_free(world, "name")


def test_waiting_ends_when_the_holder_releases(world):
    """A waiter gets the name when it was released, and not when it would have expired."""
    clock = conf.backend("default").policy.clock
    held = redlock("name", ttl=LONG, renew=False).acquire()
    releaser = release_under_a_waiter(held, 0)
    with redlock("name", wait=math.inf):
        had = clock()
    releaser.join()
    assert had < held.grant.deadline


def test_waiting_ends_when_the_time_is_up(world):
    """A waiter that does not get the name is refused after `wait` seconds, not before."""
    with redlock("name"):
        start = time.monotonic()
        with pytest.raises(LockTaken):
            redlock("name", wait=0.2).acquire()
        assert time.monotonic() - start >= 0.2
        with pytest.raises(LockTaken):
            redlock("name", wait=math.inf).acquire(wait=0.01)
    is_free(world, "name")


def test_waiting_ends_when_the_holder_expires(world):
    """A waiter for ever gets the name of a holder that never came back."""
    gone = redlock("name", **BRIEFLY).acquire()
    with redlock("name", wait=math.inf) as lease:
        assert lease.fence > gone.fence
        assert gone.lost


def test_a_failed_attempt_leaves_nothing(world):
    """An attempt refused by a majority takes its keys from the others back at once."""
    assert world.seize("name", "foreign", 60_000, on=3) == 3
    with pytest.raises(LockTaken):
        redlock("name").acquire()
    eventually(lambda: len(world.look("name")) == 3, within=MAX_TTL / 2)
    assert {found.value for found in world.look("name")} == {"foreign"}


# -- several names ----------------------------------------------------------------------------


def test_a_list_is_taken_whole_or_not_at_all(world):
    """When one name of a list is held none is taken, and the names go back together."""
    with redlock("b"):
        assert redlock(["a", "b", "c"]).try_acquire() is None
        assert world.look("a") == world.look("c") == []
    with redlock(["a", "b", "c"]) as lease:
        assert lease.name == ("a", "b", "c")
        assert [len(world.look(name)) for name in lease.names] == [5, 5, 5]
        assert redlock("c").try_acquire() is None
        assert redlock(["d", "c"]).try_acquire() is None
    with redlock(["a", "b", "a"]) as lease:
        assert lease.names == ("a", "b")  # a name that is listed twice does not block itself
    with redlock(["a", "a"]) as lease:
        assert lease.name == "a"
    assert [world.look(name) for name in "abcd"] == [[], [], [], []]


# -- fences -----------------------------------------------------------------------------------


def test_fences_strictly_increase(world):
    """Every holder of a name has a greater fence than the one before, also through lists."""
    last = dict.fromkeys("abc", 0)
    for names in itertools.islice(itertools.cycle(["a", "ab", "b", "bc", "cab", "c"]), 24):
        with redlock(list(names)) as lease:
            assert all(lease.fence > last[name] for name in names)
            last |= dict.fromkeys(names, lease.fence)


# -- extending --------------------------------------------------------------------------------


def test_extend_prolongs_and_never_shortens(world):
    """It moves the deadline of the holder and of every node, and never to an earlier time.

    Without an argument by the acquired ttl, whatever came in between. The fence stays; a bad ttl
    changes nothing.
    """
    with redlock("name", ttl=20, renew=False) as lease:
        fence = lease.fence
        lease.extend(LONG)
        deadline = lease.grant.deadline
        assert lease.remaining() > 20
        lease.extend(0.1)
        assert lease.grant.deadline == deadline
        assert [found.pttl > 20_000 for found in world.look("name")] == [True] * 5
        assert {int(found.value.split(":")[1]) for found in world.look("name")} == {fence}
        for ttl in (0, -1, math.nan, math.inf, MAX_TTL + 1):
            with pytest.raises(ValueError, match="ttl"):
                lease.extend(ttl)
        lease.ensure()
    with redlock("name", ttl=LONG, renew=False) as lease:
        lease.extend(0.05)
        before = lease.backend.policy.clock()
        lease.extend()
        assert lease.grant.deadline >= before + LONG * 0.99 - 0.002
    with pytest.raises(LeaseLost):
        lease.extend()  # it was released
    assert world.look("name") == []


@pytest.mark.slow
@pytest.mark.usefixtures("often")
def test_renewal_goes_on_with_the_ttl_it_was_acquired_with(world):
    """An `extend` by less than what is left does not make the watchdog renew for less."""
    clock = conf.backend("default").policy.clock
    with redlock("name", ttl=LONG, renew=True) as lease:
        lease.extend(0.05)
        now = clock()
        renewed(lease)  # this may have been on its way
        assert renewed(lease) >= now + LONG * 0.99 - 0.002


def test_extend_never_creates(world):
    """A lease that is over cannot be extended, and the name stays free."""
    lease = redlock("name", **BRIEFLY).acquire()
    outlive(world, lease)
    with pytest.raises(LeaseLost):
        lease.extend()
    assert world.look("name") == []
    assert lease.lost


def test_extend_finds_out_that_the_keys_are_gone(world):
    """When a majority lost the key the lease is lost, even with time on the clock."""
    told: list[Lease] = []
    lease = redlock("name", renew=False, on_lost=told.append).acquire()
    world.wipe("name")
    with pytest.raises(LeaseLost) as lost:
        lease.extend()
    assert lost.value.votes
    assert lease.lost
    assert lease.remaining() <= 0
    assert told == [lease]
    assert world.look("name") == []


def whole(world: World, name: str, fence: int) -> bool:
    """Whether all five nodes have the name for one nonce, with the token where it was healed."""
    found = world.look(name)
    numbers = {int(each.value.split(":")[1]) for each in found}
    return len(found) == 5 and len({each.nonce for each in found}) == 1 and max(numbers) <= fence


def grow(world: World, lease: Lease) -> None:
    """Extend until all nodes have it: one that replies late is healed by a later extension."""

    def is_whole() -> bool:
        lease.extend()
        return whole(world, "name", lease.fence)

    eventually(is_whole)


@pytest.mark.parametrize("names", ["name", ["name", "other"]])
def test_an_extension_heals_what_a_minority_lost(world, names):
    """The nodes get the keys back, all names or none, and the release frees them there, too."""
    lease = redlock(names, renew=False).acquire()
    world.wipe("name", on=2)
    grow(world, lease)
    lease.release()
    assert world.look("name") == []
    with redlock("name", renew=False) as next_lease:
        assert next_lease.fence > lease.fence


def test_a_lease_of_a_bare_majority_grows_to_all_nodes(world):
    """What another client had when the lock was taken is ours once it has let go."""
    assert world.seize("name", "foreign", 60_000, on=2) == 2
    lease = redlock("name", renew=False).acquire()
    assert len({found.value for found in world.look("name")}) == 2
    lease.extend()
    assert world.let_go("name", "foreign") == 2  # not before: it was another's
    grow(world, lease)
    lease.release()
    assert world.look("name") == []


@pytest.mark.usefixtures("often")
def test_renewals_heal(world):
    """Nobody has to extend it: the watchdog, or the timer of the loop, puts the keys back."""

    def is_whole() -> bool:
        # A node that owes the reply to the grant is not healed, and a loop hears replies only
        # while it runs.
        redlock("other").acquire().release()
        return whole(world, "name", lease.fence)

    with redlock("name") as lease:
        world.wipe("name", on=2)
        eventually(is_whole)
    assert world.look("name") == []


@pytest.mark.parametrize("value", ["rest::label", "done::label", "next::", "foreign"])
def test_what_is_not_free_is_not_healed(world, value):
    """A rest, a record, a reservation and a key of another program stay as they are."""
    lease = redlock("name", renew=False).acquire()
    world.wipe("name", on=2)
    assert world.seize("name", value, 60_000, on=2) == 2
    lease.extend()
    assert [found.value for found in world.look("name")].count(value) == 2
    lease.release()
    assert world.let_go("name", value) == 2


@pytest.mark.usefixtures("often")
def test_a_lease_that_is_given_away_is_healed_no_more(world):
    """The handle is good where the nodes have the key; its former holder puts back none."""
    with redlock("name") as lease, redlock("other") as other:
        handle = lease.handle()
        world.wipe("name", on=2)
        renewed(other)  # by the same watchdog
    assert len(world.look("name")) == 3
    adopted = redlock.adopt(handle)
    assert adopted.fence > lease.fence
    adopted.release()
    assert world.look("name") == []


# -- releasing --------------------------------------------------------------------------------


def test_a_late_release_leaves_the_next_holder(world):
    """A release after expiry compares, and leaves the key of the next holder."""
    late = redlock("name", **BRIEFLY).acquire()
    outlive(world, late)
    with redlock("name") as lease:
        late.release()
        late.release()
        lease.ensure()
        lease.extend()
        assert len(world.look("name")) == 5
        assert redlock("name").try_acquire() is None


def test_a_block_may_release_its_lease_itself(world):
    """Leaving a block whose lease was released inside raises nothing and frees nobody else."""
    with redlock("name") as lease:
        lease.release()
        other = redlock("name").acquire()
    assert len(world.look("name")) == 5
    other.release()


def test_leaving_a_block_after_expiry_raises_nothing(world):
    """The end of a block whose lease is over is silent unless asked otherwise."""
    with redlock("name", **BRIEFLY) as lease:
        outlive(world, lease)
        assert current_lease() is lease
        with pytest.raises(LeaseLost):
            assert_locked("name")
    assert lease.lost
    assert current_lease() is None


def fail_after(world: World, lease: Lease) -> None:
    """Be a body that works too long and then fails."""
    outlive(world, lease)
    raise ZeroDivisionError


@pytest.mark.parametrize("on_lost", [None, "raise"])
def test_the_error_of_the_body_wins(world, on_lost):
    """What the body raised comes out, whatever became of the lease."""
    with (
        pytest.raises(ZeroDivisionError) as error,
        redlock("name", **BRIEFLY, on_lost=on_lost) as lease,
    ):
        fail_after(world, lease)
    assert error.value.__context__ is None
    assert lease.lost


def test_on_lost_raise_tells_at_the_end_of_a_body_that_succeeded(world):
    """With on_lost="raise" a body that succeeded without the lock ends in LeaseLost."""
    with (
        pytest.raises(LeaseLost) as lost,
        redlock("name", **BRIEFLY, on_lost="raise") as lease,
    ):
        outlive(world, lease)
    assert lost.value.name == "name"
    with redlock("name", on_lost="raise") as lease:
        pass
    assert not lease.lost


def test_release_finds_out_that_the_keys_were_gone(world):
    """Keys deleted by somebody make a lease lost at its release, if not before."""
    with pytest.raises(LeaseLost), redlock("name", on_lost="raise", renew=False) as lease:
        world.wipe("name")
    assert lease.lost


# -- losing -----------------------------------------------------------------------------------


def test_on_lost_is_told_at_the_deadline(world):
    """The watchdog tells at the local deadline, once, with nobody asking the lease."""
    told: list[tuple[Lease, float, bool]] = []

    def tell(lease: Lease) -> None:
        told.append((lease, clock(), lease.lost))

    clock = conf.backend("default").policy.clock
    before = clock()
    lease = redlock("name", **BRIEFLY, on_lost=tell).acquire()
    eventually(lambda: told, within=MAX_TTL)
    deadline = lease.grant.deadline
    assert told[0][0] is lease
    assert told[0][1] >= deadline >= before + SHORT * 0.99 - 0.002
    assert told[0][2] is True
    lease.release()
    assert len(told) == 1


@pytest.mark.usefixtures("often")
def test_on_lost_is_told_when_renewal_finds_the_keys_gone(world):
    """A renewal that a majority refuses makes the lease lost, before its deadline."""
    clock = conf.backend("default").policy.clock
    told: list[float] = []
    with redlock("name", ttl=LONG, on_lost=lambda _: told.append(clock())) as lease:
        world.wipe("name")
        eventually(lambda: told, within=MAX_TTL)
        assert told[0] < lease.grant.deadline
        assert lease.lost
        with pytest.raises(LeaseLost):
            lease.ensure()


def test_an_error_in_on_lost_hides_nothing(world, caplog):
    """What on_lost raises is logged, and the body's error comes out."""

    def fail(_: Lease) -> None:
        raise KeyError("on_lost")

    with (
        caplog.at_level(logging.ERROR, logger="django_redlock"),
        pytest.raises(ZeroDivisionError),
        redlock("name", **BRIEFLY, on_lost=fail) as lease,
    ):
        fail_after(world, lease)
    eventually(lambda: "on_lost" in caplog.text)  # the watchdog may have been the one to tell
    assert lease.lost


@pytest.mark.slow
def test_the_watchdog_outlives_an_error_in_on_lost(world):
    """After an on_lost that failed the next lease is still told."""

    def fail(_: Lease) -> None:
        raise KeyError("on_lost")

    told = threading.Event()
    first = redlock("a", **BRIEFLY, on_lost=fail).acquire()
    second = redlock("b", **BRIEFLY | {"ttl": SHORT * 2}, on_lost=lambda _: told.set()).acquire()
    assert told.wait(MAX_TTL)
    assert first.lost
    assert second.lost


@pytest.fixture
def many_renewals(monkeypatch):
    """Leases are renewed 30 times in a ttl: who stands still for less than one loses none."""
    monkeypatch.setattr("django_redlock.leases.lease.RENEWALS", 30)
    monkeypatch.setattr("django_redlock.leases.lease.TRIES", 30)


@pytest.mark.slow
@pytest.mark.usefixtures("often")
def test_renew_keeps_a_lease(world):
    """The watchdog prolongs a lease while it is held, on a majority of the nodes; no longer."""
    clock = conf.backend("default").policy.clock
    with redlock("name", ttl=LONG, renew=True) as lease:
        first = lease.grant.deadline
        eventually(lambda: lease.grant.deadline > first + 1)  # clocks may drift by half of that
        later = lease.grant.deadline
        until = [found.pttl / 1000 + clock() for found in world.look("name")]
        assert sorted(until)[2] >= later
        assert redlock("name").try_acquire() is None
        lease.ensure()
    assert world.look("name") == []
    assert not lease.lost


@pytest.mark.nightly
def test_renew_keeps_a_lease_past_its_ttl(world, many_renewals):
    """So it outlives its ttl."""
    clock = conf.backend("default").policy.clock
    with redlock("name", ttl=3, renew=True) as lease:
        end = clock() + 3.5
        while clock() < end:
            lease.ensure()
            assert redlock("name").try_acquire() is None
            time.sleep(0.02)
    assert world.look("name") == []
    assert not lease.lost


HELD: dict[str, Any] = {"ttl": 1.2, "renew": True, "max_hold": 0.8}


@pytest.mark.slow
def test_max_hold_ends_renewal(world, many_renewals):
    """After max_hold the watchdog lets the lease run out and tells."""

    def was_renewed() -> bool:
        told = threading.Event()
        lock = redlock("name", **BRIEFLY | HELD, on_lost=lambda _: told.set())
        lease = lock.acquire()
        first = lease.grant.deadline
        assert told.wait(MAX_TTL)
        assert lease.lost
        return lease.grant.deadline > first

    eventually(was_renewed)  # where this machine stalls, a lease may end before its renewal
    eventually(lambda: world.look("name") == [], within=MAX_TTL)


@pytest.mark.slow
def test_min_hold_keeps_the_name_taken(world):
    """After an early release the name stays taken until min_hold is over."""
    with redlock("name", min_hold=LONG) as lease:
        nonce = world.look("name")[0].nonce
    assert lease.remaining() <= 0
    assert not lease.lost
    assert redlock("name").try_acquire() is None
    rests = world.look("name")
    assert len(rests) == 5
    assert all(0 < rest.pttl <= LONG * 1000 for rest in rests)
    assert not any(nonce in rest.value for rest in rests)
    start = time.monotonic()
    redlock("short", min_hold=0.5).acquire().release()
    with redlock("short", wait=math.inf):
        assert time.monotonic() - start > 0.45


def test_min_hold_binds_only_a_release(world):
    """A lease that runs out frees its name then; a release after that keeps nothing."""
    lease = redlock("name", **BRIEFLY, min_hold=MAX_TTL).acquire()
    assert all(found.pttl <= SHORT * 1000 for found in world.look("name"))
    outlive(world, lease)
    lease.release()
    assert world.look("name") == []
    with redlock("name") as after:
        assert after.fence > lease.fence


def test_a_resting_name_can_be_neither_extended_nor_adopted(world):
    """The marker that keeps a name taken is nobody's."""
    with redlock("name", min_hold=MAX_TTL) as lease:
        pass
    with pytest.raises(LeaseLost):
        lease.extend()
    lease.release()
    assert len(world.look("name")) == 5


@pytest.mark.parametrize("other", ["the same", "NODES", "KEY_PREFIX"])
def test_a_process_with_other_settings_is_a_second_holder(style, other):
    """Three nodes each, of which they share one; or other keys. With the same ones it is none."""
    urls = [f"memory://contract-{next(NUMBERS)}" for _ in range(5)]
    first: dict[str, Any] = {"NODES": urls[:3]}
    second = first | ({"NODES": urls[2:]} if other == "NODES" else {})
    second |= {"KEY_PREFIX": "mine:"} if other == "KEY_PREFIX" else {}
    with override_settings(REDLOCK={"default": first, "other": second}), redlock("name") as held:
        lease = redlocks["other"]("name").try_acquire()
        assert (lease is None) is (other == "the same")
        held.ensure()
        if lease is not None:
            lease.ensure()
            lease.release()


# -- knowing ----------------------------------------------------------------------------------


def test_remaining_counts_down_to_the_end(world):
    """`remaining` never exceeds the ttl less the drift, falls, and is 0 or less after the end."""
    lease = redlock("name", ttl=LONG, renew=False).acquire()
    first = lease.remaining()
    assert first <= LONG * 0.99 - 0.002
    eventually(lambda: lease.remaining() <= first - 0.01)
    assert lease.remaining() > 0
    lease.ensure()
    assert not lease.lost
    lease.release()
    assert lease.remaining() <= 0
    with pytest.raises(LeaseLost, match="released"):
        lease.ensure()


def test_the_holder_stops_before_the_nodes_do(world):
    """A holder stops believing while a majority of nodes still has its key."""
    clock = conf.backend("default").policy.clock
    lease = redlock("name", ttl=LONG, renew=False).acquire()
    for _ in range(5):
        now, left = clock(), lease.remaining()
        found = world.look("name")[0].pttl / 1000 + clock() - now  # what the key had left then
        assert found >= left - 0.002
    lease.release()


def test_a_lease_shows_no_nonce(world):
    """What a lease, a lock and an error print is not the power to release."""
    lock = redlock("name")
    with lock as lease:
        nonce = world.look("name")[0].nonce
        with pytest.raises(LockTaken) as refused:
            lock.acquire()
    texts = [repr(lease), repr(lock), str(refused.value), repr(refused.value.votes)]
    texts.append(repr(redlock))
    assert not any(nonce in text for text in texts)
    assert "name" in repr(lease)


def test_current_lease_is_the_innermost(world):
    """`current_lease` follows nesting, and is None outside."""
    assert current_lease() is None
    with redlock("a") as outer:
        assert current_lease() is outer
        with redlock("b") as inner:
            assert current_lease() is inner
        assert current_lease() is outer
        seen: list[Lease | None] = []
        thread = threading.Thread(target=lambda: seen.append(current_lease()))
        thread.start()
        thread.join()
        assert seen == [None]  # another thread has no part in our leases
    assert current_lease() is None


def test_assert_locked_finds_the_lease_of_a_name(world):
    """`assert_locked` returns the lease of the name, however nested, also out of a list."""
    with pytest.raises(LeaseLost):
        assert_locked("a")
    with redlock(["a", "b"]) as outer, redlock("c") as inner:
        assert assert_locked("a") is assert_locked("b") is outer
        assert assert_locked("c") is inner
        with pytest.raises(LeaseLost) as error:
            assert_locked("d")
        assert error.value.name == "d"
    with pytest.raises(LeaseLost):
        assert_locked("a")


# -- giving away ------------------------------------------------------------------------------


def test_a_handle_gives_the_name_away(world):
    """The giver stops believing before the handle exists; the adopter holds under a new nonce."""
    with redlock("name") as given:
        before = world.look("name")[0].nonce
        handle = given.handle()
        assert given.remaining() <= 0
        assert not given.lost
        with pytest.raises(LeaseLost):
            given.ensure()
        with pytest.raises(LeaseLost):
            given.extend()
    assert len(world.look("name")) == 5  # leaving the block gave nothing back
    adopted = redlock.adopt(handle)
    assert adopted.name == "name"
    assert adopted.fence > given.fence
    assert {found.nonce for found in world.look("name")} != {before}
    assert redlock("name").try_acquire() is None
    assert current_lease() is adopted
    given.release()
    adopted.ensure()
    adopted.release()
    assert world.look("name") == []


def test_a_handle_has_one_owner(world):
    """A handle delivered twice has one owner; the second is told, the first keeps the name."""
    for names in (["name"], ["name", "other"]):
        handle = redlock(names).acquire().handle()
        adopted = redlock.adopt(handle)
        assert adopted.names == tuple(names)
        with pytest.raises(LeaseLost):
            redlock.adopt(handle)
        adopted.extend()
        adopted.release()
        with redlock("name") as lease:
            with pytest.raises(LeaseLost):
                redlock.adopt(handle)
            lease.extend()
        assert world.look("name") == []


def test_of_many_adopters_one_succeeds(world):
    """A handle that several threads adopt at the same time has one owner, and not none."""
    handle = redlock("name").acquire().handle()
    owners: list[Lease] = []
    begin = threading.Barrier(4)

    def adopt() -> None:
        begin.wait(MAX_TTL)
        while True:
            with suppress(LockTaken):  # they split the nodes: the handle is still good
                try:
                    owners.append(redlock.adopt(handle))
                except LeaseLost:
                    return

    threads = [threading.Thread(target=adopt) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(MAX_TTL)
    assert len(owners) == 1
    for owner in owners:
        owner.release()


def encoded(value: object) -> str:
    """A text in the outer form of a handle."""
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "garbage",
    [
        "",
        "name",
        "é",
        "a" * 10_000,
        None,
        b"bytes",
        7,
        encoded(None),
        encoded(1),
        encoded([]),
        encoded({"version": 1}),
        encoded([1, "default", "0" * 31, ["name"]]),
        encoded([1, "default", "G" * 32, ["name"]]),
        encoded([1, "default", 5, ["name"]]),
        encoded([1, "default", "0" * 32, []]),
        encoded([1, "default", "0" * 32, [""]]),
        encoded([1, "default", "0" * 32, 5]),
        encoded([2, "default", "0" * 32, ["name"]]),
        encoded([1, "other", "0" * 32, ["name"]]),
        base64.urlsafe_b64encode(b"[" * 100_000).decode(),
    ],
    ids=lambda garbage: str(garbage)[:16] or "empty",
)
def test_a_garbled_handle_is_a_value_error(style, garbage):
    """What is no handle of this alias is a ValueError that does not quote it."""
    with pytest.raises(ValueError, match="handle") as error:
        redlock.adopt(garbage)
    assert not garbage or str(garbage) not in str(error.value)


# -- decorating -------------------------------------------------------------------------------


def names_now() -> tuple[str, ...]:
    """What the running code holds."""
    lease = current_lease()
    assert lease is not None
    return lease.names


def test_a_decorator_fills_fields_from_arguments(world):
    """Fields are bound arguments, however they are passed, with defaults, items and attributes."""

    @redlock("report:{year}:{kind}:{options[a]}:{lang!r:>4}")
    def build(year: int, kind: str = "all", *, options: dict[str, int], lang: str = "x") -> Any:
        """Say who."""
        return names_now()

    class Report:
        pk = 7

        @redlock(["report:{self.pk}:{text}", "report:{self.pk}:{other}"])
        def build(self, text: str, other: str = "x") -> Any:
            return names_now()

    # ``self`` is an argument like others, braces in one are text, and equal names count once.
    assert Report().build("{other}") == ("report:7:{other}", "report:7:x")
    assert Report().build("x") == ("report:7:x",)
    wanted = ("report:2026:all:1: 'x'",)
    assert build(2026, options={"a": 1}) == wanted
    assert build(kind="all", year=2026, options={"a": 1}, lang="x") == wanted
    assert build.__name__ == "build"
    assert build.__doc__ == "Say who."
    assert current_lease() is None


def test_a_decorated_function_runs_only_under_the_lock(world):
    """A decorated function that cannot have its lock does not run."""
    ran = []

    @redlock("name")
    def work() -> None:
        ran.append(1)
        raise ZeroDivisionError

    with redlock("name"), pytest.raises(LockTaken):
        work()
    assert ran == []
    with pytest.raises(ZeroDivisionError):
        work()
    assert ran == [1]
    assert world.look("name") == []


def test_long_and_strange_arguments_are_hashed(world):
    """A name built from arguments that would not do is a digest: short, distinct, stable."""

    @redlock("page:{text}")
    def work(text: str) -> Any:
        return names_now()

    long, other = work("x" * 600)[0], work("x" * 599 + "y")[0]
    assert long.startswith("page:xxx")
    assert long != other
    assert len(long.encode()) <= 512
    assert work("x" * 600) == (long,)
    assert work("a\nb") != work("a\tb")
    assert "\n" not in work("a\nb")[0]
    assert work("\ud800") != work("\ud801")
    assert work("short") == ("page:short",)


def test_a_generator_function_is_refused():
    """A generator's body would run after the release: TypeError when decorated."""
    with pytest.raises(TypeError, match="generator"):

        @redlock("name")
        def produce() -> Iterator[int]:
            yield 1

    with pytest.raises(TypeError, match="generator"):

        @redlock("name")
        async def produce_later() -> Any:
            yield 1

    class Produce:
        def __call__(self) -> Iterator[int]:
            yield 1

    with pytest.raises(TypeError, match="generator"):
        redlock("name")(Produce())
    no_functions: list[Any] = [dict, property(), 5, None]
    for thing in no_functions:  # of a class only the making would be locked
        with pytest.raises(TypeError, match="is no function"):
            redlock("name")(thing)


def test_a_field_that_is_no_parameter_is_refused():
    """A template that names what the function does not have is a ValueError when decorated."""
    for name in ("{month}", "{0}", "{}", "{year", "year}", "{month.year}"):
        with pytest.raises(ValueError, match="lock name"):

            @redlock(name)
            def build(year: int) -> None:
                pass


# -- other programs ---------------------------------------------------------------------------


def test_a_foreign_holder_excludes_us(world):
    """A plain key that another client set excludes us; its owner's compare-and-delete works."""
    assert world.seize("name", "foreign-value", 60_000) == 5
    with pytest.raises(LockTaken) as refused:
        redlock("name").acquire()
    assert refused.value.holder is None
    assert refused.value.retry_after is not None
    assert 0 < refused.value.retry_after <= 60
    assert {found.value for found in world.look("name")} == {"foreign-value"}
    assert world.let_go("name", "foreign-value") == 5
    with redlock("name"):
        pass


def test_we_exclude_a_foreign_client(world):
    """While we hold a name no SET NX of another client succeeds; after release it does."""
    with redlock("name"):
        assert world.seize("name", "foreign", 60_000) == 0
        assert world.let_go("name", "foreign") == 0
        assert len(world.look("name")) == 5
    assert world.seize("name", "foreign", 60_000) == 5


def test_every_key_expires_within_max_ttl(world):
    """Every lock key has an expiry of at most MAX_TTL, however it came to be."""
    with redlock(["a", "b"], ttl=MAX_TTL) as lease:
        lease.extend(MAX_TTL)
        with redlock("c", min_hold=MAX_TTL):
            pass
        adopted = redlock.adopt(redlock("d").acquire().handle())
        found = [each for name in "abcd" for each in world.look(name)]
        assert len(found) == 20
        assert all(0 < each.pttl <= MAX_TTL * 1000 for each in found)
        adopted.release()


# -- templates -------------------------------------------------------------------------------


def test_using_makes_an_immutable_copy(world):
    """`using` changes the copy only; a call's own options win; aliases have templates."""
    quick = redlock.using(**BRIEFLY)
    with redlock("a") as slow_lease, quick("b") as lease, quick("c", ttl=LONG) as own:
        assert slow_lease.remaining() > 1
        assert lease.remaining() < SHORT
        assert SHORT < own.remaining() < LONG
    assert list(redlocks) == ["default"]
    with redlocks["default"]("a"):
        assert redlock("a").try_acquire() is None

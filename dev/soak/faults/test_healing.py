"""Leases that grow back, under load and beside rolling restarts."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

import pytest
from django.test import override_settings

from dev.soak.faults.healing import Rush
from django_redlock import LockTaken, conf, redlock
from django_redlock.core import hold
from django_redlock.leases.lease import Lease
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.exchange import LateExchanges
from django_redlock.testing import EmbeddedNodes
from tests.faults.test_healing import SETTINGS, TTL, keys_on, nodes
from tests.support.replays import note_broken
from tests.support.waiting import eventually

__all__ = ["nodes"]


def client_of(nodes: EmbeddedNodes) -> LockTemplate:
    """One more client, with connections of its own."""
    backend = conf.make("default", nodes.settings(**SETTINGS))
    return LockTemplate(lambda _: backend)


def won_under_contention(nodes: EmbeddedNodes, count: int) -> list[Lease]:
    """So many leases, each the best of four clients that asked at the same moment."""
    won: list[Lease] = []
    together = threading.Barrier(4)

    def contend(client: LockTemplate) -> None:
        for i in range(count):
            together.wait()
            with suppress(LockTaken):
                won.append(client(f"name{i}", wait=0).acquire())

    threads = [threading.Thread(target=contend, args=(client_of(nodes),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    missing = {f"name{i}" for i in range(count)} - {lease.name for lease in won}
    return won + [
        redlock(name).acquire() for name in sorted(missing)
    ]  # after a split nobody has it


def lost_beside_a_stopped_node(nodes: EmbeddedNodes, leases: list[Lease]) -> int:
    """How many are lost until each of the others was renewed twice since a node stopped."""
    nodes.pause(2)
    stopped = [lease.grant.deadline for lease in leases]
    eventually(
        lambda: all(
            lease.lost or lease.grant.deadline > before + TTL
            for lease, before in zip(leases, stopped, strict=True)
        ),
        within=120,
    )
    return sum(lease.lost for lease in leases)


def test_no_lease_that_was_won_under_contention_is_lost_with_one_node(nodes):
    """Many of them sit on three nodes of five; after a renewal they sit on all."""
    leases = won_under_contention(nodes, 200)
    assert len(leases) == 200
    eventually(lambda: all(keys_on(nodes, place) == 200 for place in range(5)), within=60)
    assert lost_beside_a_stopped_node(nodes, leases) == 0


def test_leases_that_do_not_grow_back_are_lost_with_one_node(nodes, monkeypatch):
    """The check above fails where renewals heal nothing: a bare majority ends with one node."""
    monkeypatch.setattr(hold, "_free", lambda _: {})
    note_broken("_free")
    for place in (0, 1):
        with nodes[place].client() as client:
            client.set("redlock:lock:bare", "foreign", px=60_000)
    lease = redlock("bare").acquire()
    for place in (0, 1):
        with nodes[place].client() as client:
            client.delete("redlock:lock:bare")
    assert lost_beside_a_stopped_node(nodes, [lease]) == 1


async def take_turns(name: str, served: Counter[str], number: int, stop: asyncio.Event) -> None:
    """Wait for a name again and again, and count the turns."""
    while not stop.is_set():
        async with redlock(name, wait=float("inf")):
            served[f"{name}:{number}"] += 1
            await asyncio.sleep(0.1)  # fifty that took turns all the time would be a whole core


@contextmanager
def crowd(names: int, each: int) -> Iterator[Counter[str]]:
    """Waiters for a few names, in an event loop of a thread; yields how often each was served."""
    served: Counter[str] = Counter()
    failed: list[BaseException] = []

    async def main() -> None:
        stop = asyncio.Event()
        loop.append((asyncio.get_running_loop(), stop))
        async with asyncio.TaskGroup() as group:
            for name in range(names):
                for number in range(each):
                    group.create_task(take_turns(f"turn{name}", served, number, stop))

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:  # noqa: BLE001 - told by the test
            failed.append(error)

    loop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield served
    finally:
        eventually(lambda: loop)
        ((running, stop),) = loop
        running.call_soon_threadsafe(stop.set)
        thread.join(60)
    assert not failed, failed


@pytest.mark.parametrize("count", [3, 5])
def test_a_rolling_restart_costs_no_lease_and_starves_no_waiter(count):
    """Each node restarts empty when the one before votes again and has the leases again."""
    with EmbeddedNodes(count) as nodes:
        # The guard lasts for 17 s; renewals may come 10 s late, so busy may the machine be.
        settings = nodes.settings(MAX_TTL=15, TTL=15, CLOCK_SKEW=1, NODE_TIMEOUT=0.5)
        with override_settings(REDLOCK={"default": settings}):
            leases = [redlock(f"held{i}").acquire() for i in range(1000)]
            with crowd(10, 5) as served:
                for place in range(count):
                    nodes.kill(place)
                    nodes[place].start()
                    eventually(partial(healed, nodes, place), within=120)
                    eventually(partial(all_served_since, served, served.copy()), within=120)
                    assert not any(lease.lost for lease in leases)
            assert all(lease.remaining() > 0 for lease in leases)


def all_served_since(served: Counter[str], before: Counter[str]) -> bool:
    """Whether each of the fifty has had a turn."""
    return len(served - before) == 50


def healed(nodes: EmbeddedNodes, place: int) -> bool:
    """Whether a node votes, and has all leases that are held."""
    redlock("look").try_acquire()
    states = conf.backend("default").group.states()
    return states[place].voting and keys_on(nodes, place, "held*") == 1000


@pytest.fixture
def lasting() -> Iterator[EmbeddedNodes]:
    """Five nodes on which a name that is left taken stays so for a minute."""
    with EmbeddedNodes(5) as five:
        settings = five.settings(**SETTINGS | {"MAX_TTL": 60})
        with override_settings(REDLOCK={"default": settings}):
            yield five


def test_a_release_beside_a_heal_leaves_no_name_taken(lasting):
    """Whichever comes first: the heal is rolled back, or the release goes behind it."""
    with Rush(lasting) as rush:
        assert rush.left_after(1_500) == 0
    assert rush.healed > 0


def test_heals_that_are_not_rolled_back_leave_names_taken(lasting, monkeypatch):
    """The check above fails where a release may overtake a heal, and the heal stands."""
    monkeypatch.setattr(hold, "_is_over", lambda _: False)
    monkeypatch.setattr(LateExchanges, "pop", lambda *_: ())
    note_broken("_is_over")
    with Rush(lasting, soon=1.0) as rush:
        assert rush.left_after(1_500) > 0

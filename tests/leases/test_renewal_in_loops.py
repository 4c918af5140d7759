"""Leases of tasks: renewed by a timer of their event loop, by the thread where that fails."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections import Counter, deque
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from django_redlock.core.protocol import Command, Request, Vote
from django_redlock.leases.lease import Lease
from django_redlock.leases.renewal import (
    LoopWatchdog,
    RenewalBatch,
    RenewalSchedule,
    Watchdog,
    batches,
)
from django_redlock.nodes.group import NodeGroup
from tests.support.loops import soon
from tests.support.waiting import eventually

from .test_renewal import (
    Memory,
    group_of,
    made,
    most_heals_between_renewals,
    nodes,
    steps_that_heal,
)

__all__ = ["nodes"]


class Twice(Memory):
    """Notes who asks to prolong: the thread or the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.by: list[str] = []

    def ask(self, ask: Request) -> list[Vote]:
        """See ``MemoryNodes``."""
        if ask.command is Command.EXTEND:
            self.by.append("thread")
        return super().ask(ask)

    def aask(self, ask: Request) -> asyncio.Future[list[Vote]]:
        """See ``MemoryNodes``."""
        answered: asyncio.Future[list[Vote]] = asyncio.get_running_loop().create_future()
        answered.set_result(super().ask(ask))
        if ask.command is Command.EXTEND:
            self.by.append("loop")
        return answered


@pytest.fixture
def often_thread(monkeypatch: pytest.MonkeyPatch) -> float:
    """A ttl at which the thread renews every 0.6 s what a loop would have renewed every 0.1 s."""
    monkeypatch.setattr("django_redlock.leases.lease.RENEWALS", 30)
    return 3.0


async def prolonged(lease: Lease, times: int = 3) -> None:
    """Wait until it was prolonged so often, with the loop running."""
    for _ in range(times):
        deadline = lease.grant.deadline
        await soon(partial(_is_later, lease, deadline))
    lease.ensure()


def _is_later(lease: Lease, deadline: float) -> bool:
    return lease.grant.deadline > deadline


@pytest.mark.usefixtures("often")
def test_a_loop_renews_what_its_tasks_have_taken():
    """The loop's own timer keeps the lease, without a task that anybody could cancel."""
    group = Twice()

    async def work() -> None:
        async with made(group)("name") as lease:
            await prolonged(lease)
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(work())
    assert group.by.count("loop") >= 3
    assert "thread" not in group.by


def test_a_loop_tells_of_a_loss_that_nobody_told(monkeypatch):
    """A signal handler interrupted the thread that noticed the loss, before it told anybody."""
    monkeypatch.setattr(Watchdog, "watch", lambda *_: None)  # nobody else watches it
    told: list[Lease] = []

    async def work() -> None:
        loop, watchdog = asyncio.get_running_loop(), LoopWatchdog()
        lease = await made(Memory(), renew=False)("name", on_lost=told.append).aacquire()
        assert lease.expire()
        assert told == []
        watchdog.schedule.add(lease)
        watchdog._look(watchdog.schedule.next(), loop)
        await soon(lambda: told == [lease])

    asyncio.run(work())


@pytest.mark.parametrize("grace", [0.0, 10.0], ids=["well", "broken"])
@pytest.mark.parametrize("renew", [False, True], ids=["not renewed", "renewal hangs"])
def test_a_loops_timer_fires_no_later_than_at_the_deadline(monkeypatch, renew, grace):
    """It fires at the lease's own deadline; one that fires ten seconds later is noticed."""
    monkeypatch.setattr(Watchdog, "watch", lambda *_: None)  # nobody else watches it
    lease = made(Memory(), ttl=60, renew=renew)("name").acquire()
    watchdog, delays = LoopWatchdog(), list[float]()
    loop: Any = SimpleNamespace(call_later=lambda delay, *_, **__: delays.append(delay))
    watchdog.schedule = RenewalSchedule(grace=grace)
    watchdog.schedule.add(lease)
    if renew:  # taken, and nobody gives it back
        assert watchdog.schedule.take(lease.renew_at) == ([], [lease])
    left = lease.remaining()
    watchdog._set_timer(loop)
    assert delays[0] > 0
    assert (delays[0] <= left) is not bool(grace)
    lease.release()


@pytest.mark.parametrize("broken", [False, True], ids=["well", "broken"])
def test_no_renewal_of_a_loop_waits_until_others_are_healed(broken, monkeypatch):
    """A node has lost 300 leases of a loop: they are healed behind all three messages."""
    if broken:
        monkeypatch.setattr(RenewalBatch, "steps", steps_that_heal)
    group = Twice()

    async def work() -> None:
        redlock, watchdog = made(group, renew=False), LoopWatchdog()
        leases = [await redlock(f"name:{number}").aacquire() for number in range(300)]
        group.nodes[0].keys.clear()
        group.asked.clear()
        watchdog._queued[id(group)] = deque(batches(leases))
        watchdog._ask_next(id(group), asyncio.get_running_loop())
        await soon(lambda: len(group.nodes[0].keys) == 300)
        commands = [ask.command for ask in group.asked]
        assert (commands.count(Command.EXTEND), commands.count(Command.HEAL)) == (3, 300)
        assert (most_heals_between_renewals(commands) == 0) is not broken
        await asyncio.gather(*(lease.arelease() for lease in leases))

    asyncio.run(work())


def test_a_renewal_of_a_loop_that_cannot_be_asked_keeps_no_other_from_it():
    """The leases of the next message are prolonged; the first ones have another renewal."""
    group = Twice()

    async def work() -> None:
        redlock, watchdog = made(group, renew=False), LoopWatchdog()
        leases = [await redlock(f"name:{number}").aacquire() for number in range(2)]
        deadline = leases[1].grant.deadline
        failures = [OSError("no descriptor is left")]

        def fail_once(_: Request) -> None:
            if failures:
                raise failures.pop()

        group.before = fail_once
        watchdog._queued[id(group)] = deque(pair for each in leases for pair in batches([each]))
        watchdog._ask_next(id(group), asyncio.get_running_loop())
        await soon(lambda: leases[1].grant.deadline > deadline)
        await asyncio.gather(*(lease.arelease() for lease in leases))

    asyncio.run(work())


def test_no_renewal_of_a_loop_is_sent_while_a_lease_is_healed():
    """A lease whose majority depends on its heal: the next message waits for that as well."""
    sent: list[int] = []

    class Slow(Memory):
        def aask(self, ask: Request) -> asyncio.Future[list[Vote]]:
            answered, loop = super().aask(ask), asyncio.get_running_loop()
            if ask.command is not Command.HEAL:
                return answered
            late: asyncio.Future[list[Vote]] = loop.create_future()

            def answer() -> None:
                sent.append(len(self.renewals))
                late.set_result(answered.result())

            loop.call_soon(loop.call_soon, answer)
            return late

    async def work() -> None:
        group = Slow()
        redlock, watchdog = made(group, renew=False), LoopWatchdog()
        leases = [await redlock(f"name:{number}").aacquire() for number in range(2)]
        group.nodes[1].keys.clear()
        group.down = {2}
        watchdog._queued[id(group)] = deque(pair for each in leases for pair in batches([each]))
        watchdog._ask_next(id(group), asyncio.get_running_loop())
        await soon(lambda: len(sent) == 2)
        await asyncio.gather(*(lease.arelease() for lease in leases))

    asyncio.run(work())
    assert sent == [1, 2]


@pytest.mark.usefixtures("often")
def test_many_leases_of_a_loop_share_a_message(nodes):
    """200 leases of a loop on real nodes: two messages per round, none lost."""

    async def work(group: NodeGroup) -> None:
        redlock = made(group)
        asked: list[Request] = []
        ask_nodes = group.aask

        def noting(ask: Request) -> Any:
            if ask.command is Command.EXTEND:
                asked.append(ask)
            return ask_nodes(ask)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(group, "aask", noting)  # first: the loop may renew while others acquire
            leases = await asyncio.gather(*(redlock(f"name:{n}").aacquire() for n in range(200)))
            await asyncio.gather(*map(prolonged, leases))
        names = Counter(key for ask in asked for key in ask.keys[1:])
        assert len(names) == 200
        assert min(names.values()) >= 3
        assert len(asked) <= 5 * max(names.values())
        await asyncio.gather(*(lease.arelease() for lease in leases))

    with closing(group_of(nodes)) as group:
        asyncio.run(work(group))


@pytest.mark.slow
def test_the_thread_steps_in_while_a_loop_is_blocked(often_thread):
    """A task that blocks its loop keeps its lease for as long as it does."""
    group = Twice()

    async def work() -> None:
        async with made(group, ttl=often_thread)("name") as lease:
            deadline = lease.grant.deadline
            eventually(lambda: group.by.count("thread") >= 2)  # this is the mishap: it blocks
            lease.ensure()
            assert group.by == ["thread"] * len(group.by)
            assert lease.grant.deadline > deadline
            await soon(lambda: "loop" in group.by)
            lease.ensure()

    asyncio.run(work())


@pytest.mark.slow
def test_the_thread_tells_of_a_loss_while_a_loop_is_blocked():
    """`on_lost` does not wait for a loop that is blocked."""
    told: list[threading.Thread] = []

    async def work() -> None:
        group = Memory()
        lock = made(group, ttl=0.3, renew=False)(
            "name", wait=60, on_lost=lambda _: told.append(threading.current_thread())
        )
        lease = await lock.aacquire()
        eventually(lambda: told)
        assert lease.lost
        await asyncio.sleep(0.3)
        assert len(told) == 1

    asyncio.run(work())
    assert told[0] is not threading.current_thread()


@pytest.mark.slow
def test_a_lease_outlives_its_loop_and_keeps_nothing_of_it(often_thread):
    """A lease that was taken in a loop that has ended is renewed, and the loop is forgotten."""
    group = Twice()
    runner = asyncio.Runner()
    lease = runner.run(made(group, ttl=often_thread)("name").aacquire())
    loop = weakref.ref(runner.get_loop())
    runner.close()
    del runner
    gc.collect()
    assert loop() is None
    eventually(lambda: group.by.count("thread") >= 2)
    lease.ensure()
    lease.release()


@pytest.mark.usefixtures("often")
def test_a_loop_that_ends_lets_its_holders_clean_up():
    """Renewal goes on while tasks that were cancelled at the loop's end still hold their locks."""
    group = Twice()
    cleaned_up: list[list[str]] = []

    async def hold_on(holds: asyncio.Event) -> None:
        async with made(group)("name") as lease:
            holds.set()
            try:
                await asyncio.sleep(60)
            finally:
                before = len(group.by)
                await prolonged(lease)
                cleaned_up.append(group.by[before:])

    async def work() -> asyncio.Task[None]:
        holds = asyncio.Event()
        task = asyncio.create_task(hold_on(holds))
        await holds.wait()
        return task

    assert asyncio.run(work()).cancelled()
    (by,) = cleaned_up
    assert by.count("loop") >= 3
    assert "thread" not in by


ENDINGS = """
import asyncio, gc, os, sys, threading, time
from django.conf import settings
settings.configure(REDLOCK={"default": {
    "NODES": sys.argv[2].split(",") if len(sys.argv) > 2 else ["memory://a", "memory://b"],
    "MAX_TTL": 3, "TTL": 3, "RESTART_GUARD": False, "NODE_TIMEOUT": 5,
}})
from asgiref.sync import async_to_sync
from django_redlock import redlock
from django_redlock.leases import lease as leases
leases.RENEWALS = 30  # no stall of the machine ends one

def prolonged(leases):
    before = [lease.grant.deadline for lease in leases]
    for _ in range(2000):
        assert not any(lease.lost for lease in leases)
        if all(lease.grant.deadline > then for lease, then in zip(leases, before)):
            return
        yield 0.01
    raise AssertionError("not prolonged")

async def take(number):
    names = [f"{os.getpid()}:{number}:{each}" for each in range(20)]  # others leave theirs to end
    return [await redlock(name).aacquire() for name in names]

async def last():
    leases = await take(1)
    for _ in range(2):
        for pause in prolonged(leases):
            await asyncio.sleep(pause)
    return leases

how = sys.argv[1]
if how == "run":
    kept = asyncio.run(last())
elif how == "async_to_sync":
    kept = async_to_sync(last)()
elif how == "abrupt":
    loop = asyncio.new_event_loop()
    kept = loop.run_until_complete(last())
    for _ in range(400):  # end it in the middle of whatever it does
        loop.run_until_complete(asyncio.sleep(0.001))
    loop.close()
    del loop
elif how == "left":
    loop = asyncio.new_event_loop()
    kept = loop.run_until_complete(last())
    loop.close()
    del kept
gc.collect()
if how != "left":
    for _ in range(2):  # what the loop had asked may have been heard
        for pause in prolonged(kept):
            time.sleep(pause)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["run", "async_to_sync", "abrupt", "left"])
@pytest.mark.parametrize("real", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_loop_ends_quietly(how, real, request):
    """However a loop ends, nothing complains, and the leases stand until the exit."""
    urls = [",".join(request.getfixturevalue("nodes").urls)] if real else []
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", ENDINGS, how, *urls],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")

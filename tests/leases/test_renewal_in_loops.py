"""Leases of tasks: the thread renews them, whatever their event loop does."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
import weakref
from collections import Counter
from contextlib import closing
from typing import Any

import pytest

from django_redlock.core.protocol import Command, Request
from django_redlock.leases.lease import Lease
from django_redlock.nodes.group import NodeGroup
from tests.support.loops import soon
from tests.support.waiting import eventually

from .test_renewal import Memory, group_of, later, made, nodes
from .test_renewal import prolonged as blocking

__all__ = ["nodes"]


async def prolonged(lease: Lease, times: int = 3) -> None:
    """Wait until it was prolonged so often, with the loop running."""
    for _ in range(times):
        await soon(later(lease))
    lease.ensure()


@pytest.mark.usefixtures("often")
def test_what_a_task_has_taken_is_renewed_without_a_task():
    """There is nothing in the loop that anybody could cancel."""

    async def work() -> None:
        async with made(Memory())("name") as lease:
            await prolonged(lease)
            assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(work())


@pytest.mark.usefixtures("often")
def test_a_loop_that_is_blocked_costs_no_lease_and_delays_no_loss():
    """The thread renews, and calls `on_lost`."""
    told: list[threading.Thread] = []
    redlock = made(Memory())
    lock = redlock(
        "ending",
        ttl=0.3,
        wait=60,
        renew=False,
        on_lost=lambda _: told.append(threading.current_thread()),
    )

    async def work() -> None:
        async with redlock("name") as lease:
            ending = await lock.aacquire()
            eventually(lambda: told)  # this is the mishap: it blocks
            blocking(lease)
            assert ending.lost

    asyncio.run(work())
    assert told != [threading.current_thread()]
    assert len(told) == 1


@pytest.mark.usefixtures("often")
def test_a_lease_outlives_its_loop_and_keeps_nothing_of_it():
    """A lease that was taken in a loop that has ended is renewed, and the loop is forgotten."""
    runner = asyncio.Runner()
    lease = runner.run(made(Memory())("name").aacquire())
    loop = weakref.ref(runner.get_loop())
    runner.close()
    del runner
    gc.collect()
    assert loop() is None
    blocking(lease, times=1)
    lease.release()


@pytest.mark.usefixtures("often")
def test_a_loop_that_ends_lets_its_holders_clean_up():
    """Renewal goes on while tasks that were cancelled at the loop's end still hold their locks."""
    cleaned_up: list[bool] = []

    async def hold_on(holds: asyncio.Event) -> None:
        async with made(Memory())("name") as lease:
            holds.set()
            try:
                await asyncio.sleep(60)
            finally:
                await prolonged(lease)
                cleaned_up.append(lease.held)

    async def work() -> asyncio.Task[None]:
        holds = asyncio.Event()
        task = asyncio.create_task(hold_on(holds))
        await holds.wait()
        return task

    assert asyncio.run(work()).cancelled()
    assert cleaned_up == [True]


@pytest.mark.usefixtures("often")
def test_leases_of_many_tasks_share_a_message(nodes):
    """200 leases on real nodes: two messages per round, none lost."""

    async def work(group: NodeGroup) -> None:
        redlock = made(group)
        asked: list[Request] = []
        ask_nodes = group.ask

        def noting(ask: Request) -> Any:
            if ask.command is Command.EXTEND:
                asked.append(ask)
            return ask_nodes(ask)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(group, "ask", noting)
            leases = await asyncio.gather(*(redlock(f"name:{n}").aacquire() for n in range(200)))
            await asyncio.gather(*map(prolonged, leases))
        names = Counter(key for ask in asked for key in ask.keys[1:])
        assert len(names) == 200
        assert min(names.values()) >= 3
        assert len(asked) <= 5 * max(names.values())
        await asyncio.gather(*(lease.arelease() for lease in leases))

    with closing(group_of(nodes)) as group:
        asyncio.run(work(group))


ENDINGS = """
import asyncio, gc, os, sys, threading, time, warnings
from django.conf import settings
settings.configure(REDLOCK={"default": {
    "NODES": sys.argv[2].split(","),
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
elif how == "left":  # that they were never released may be told, if there is time for it
    warnings.filterwarnings("ignore", "the lease of .* was forgotten", ResourceWarning)
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
def test_a_loop_ends_quietly(how, nodes):
    """However a loop ends, nothing complains, and the leases stand until the exit."""
    command = [sys.executable, "-W", "error", "-c", ENDINGS, how, ",".join(nodes.urls)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    assert (done.returncode, done.stderr) == (0, "")

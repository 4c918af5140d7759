"""The memory of leases: little while they are held, and none once they are released."""

from __future__ import annotations

import json
import subprocess
import sys
from contextvars import copy_context
from typing import Any

import pytest

from django_redlock.leases import context

from .test_renewal import Memory, made

RENEWED = 1000
SOME = 40  # tracked objects that a schedule may keep
MOST_BYTES = 2048  # of a held, renewed lease, without its connections

# In a process of its own: what other tests have left would count as well. The nodes grant at once
# and remember nothing, so that all memory is the leases'.
MEASURE = """
import asyncio, gc, json, sys, time, tracemalloc
from django_redlock.backend import Backend
from django_redlock.core.policy import Policy
from django_redlock.core.commands import Kept
from django_redlock.core.protocol import Answer, Command, Vote
from django_redlock.leases import lease as leases_module
from django_redlock.leases.renewal import watchdog
from django_redlock.locks.template import LockTemplate

LOCKS = int(sys.argv[1])

LABELS = [f"127.0.0.1:700{i}/0" for i in range(5)]

class Nodes:
    def ask(self, ask):
        kept = None
        if ask.command is Command.EXTEND:
            kept = Kept([1] * ask.count, ())
        return [Vote(label, Answer.YES, 5, result=kept) for label in LABELS]

    def aask(self, ask):
        answered = asyncio.get_running_loop().create_future()
        answered.set_result(self.ask(ask))
        return answered

backend = Backend("default", Nodes(), Policy(size=5, max_ttl=3600), ttl=3600)  # nothing is due
redlock = LockTemplate(lambda alias: backend)

def tracked():
    gc.collect()
    return len(gc.get_objects())

def by_a_thread(count=LOCKS):
    for number in range(count):
        with redlock(f"name:{number}"):
            pass
        redlock("name").acquire().release()

async def by_a_task(count=LOCKS):
    for number in range(count):
        async with redlock(f"name:{number}"):
            pass

async def in_a_loop():
    await by_a_task()
    before = tracked()
    await by_a_task()
    return tracked() - before

def left():
    by_a_thread()
    before = tracked()
    by_a_thread()
    return tracked() - before

def held():
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    leases = [redlock(f"name:{number}").acquire() for number in range(LOCKS)]
    each = (tracemalloc.get_traced_memory()[0] - before) / LOCKS
    for lease in leases:
        lease.release()
    del lease, leases
    by_a_thread()  # what had room for many shrinks when it is used
    gc.collect()
    after = (tracemalloc.get_traced_memory()[0] - before) / LOCKS
    tracemalloc.stop()
    return each, after

LIVES = 30.0  # seconds, of which it is renewed after one: no stall of this machine ends it

def renewed(leases, before):
    return all(lease.grant.deadline > deadline for lease, deadline in zip(leases, before))

def entries():
    return len(watchdog.schedule._entries)

def renew_some(count):
    leases = [redlock(f"kept:{number}", ttl=LIVES).acquire() for number in range(count)]
    before, until = [lease.grant.deadline for lease in leases], time.monotonic() + 60
    while not renewed(leases, before) and time.monotonic() < until:
        time.sleep(0.01)
    had = renewed(leases, before) and entries()
    for lease in leases:
        lease.release()
    del lease, leases
    by_a_thread(2)  # a context drops those that have ended when the next one begins
    return had

def settled(before):
    # The watchdog may have leases in its hands for a while.
    left, until = tracked() - before, time.monotonic() + SETTLED
    while left > SOME and time.monotonic() < until:
        time.sleep(0.05)
        left = tracked() - before
    return left

def after_renewal():
    renew_some(10)
    before, empty = tracked(), entries()
    had = renew_some(RENEWED)
    return {"had": had - empty, "objects": settled(before), "entries": entries() - empty}

RENEWED, SOME, SETTLED = map(int, sys.argv[2:])
each, after = held()
found = {
    "thread": left(),
    "task": asyncio.run(in_a_loop()),
    "bytes": each,
    "after": after,
}
leases_module.RENEWALS = LIVES
print(json.dumps(found | {"renewed": after_renewal()}))
"""
BROKEN = """
from django_redlock.leases.renewal import RenewalSchedule
RenewalSchedule.forget = lambda self, lease: None
"""


def measured(
    locks: int, before: str = "", renewed: int = RENEWED, settled: int = 60
) -> dict[str, Any]:
    """The tracked objects that locks have left, and the bytes of a lease, held and released."""
    numbers = map(str, (locks, renewed, SOME, settled))
    command = [sys.executable, "-c", before + MEASURE, *numbers]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("locks", [3000, pytest.param(10_000, marks=pytest.mark.nightly)])
def test_leases_are_small_and_leave_nothing(locks):
    """Thousands of leases that were released leave no object and no memory, however taken."""
    found = measured(locks)
    assert abs(found["thread"]) < 50
    assert abs(found["task"]) < 50
    assert found["bytes"] <= MOST_BYTES
    assert found["after"] < 10
    renewed = found["renewed"]  # it leaves no place in the schedule either
    assert renewed["had"] == RENEWED
    assert renewed["entries"] == 0
    assert renewed["objects"] <= SOME


def test_leases_that_are_held_in_a_chain_leave_nothing_in_the_context():
    """Each lease is taken before the one before it is released: the innermost is always held."""

    def chained() -> int:
        redlock = made(Memory())
        leases = [redlock("name:0").acquire()]
        for number in range(1, 40):
            leases.append(redlock(f"name:{number}").acquire())
            leases[-2].release()
        leases[-1].release()
        return len(context._stack.get())

    assert copy_context().run(chained) < 4


@pytest.mark.slow
def test_a_schedule_that_remembers_is_noticed():
    """The check above can fail."""
    few = 1000
    found = measured(few, BROKEN, renewed=10, settled=1)
    assert found["thread"] >= few / 2
    assert found["task"] >= few / 2
    assert found["after"] > 50

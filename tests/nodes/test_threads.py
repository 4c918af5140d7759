"""Many threads on one group of nodes, and processes that fork."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.test import override_settings

from django_redlock import conf, redlock
from django_redlock.nodes.node import MOST_ATTEMPTS
from tests.support.waiting import eventually


@pytest.fixture(autouse=True)
def patient(patient_nodes):
    """Nobody hangs here, so no node has to be quick, and nobody has to let go in time."""
    alias = patient_nodes.settings(MAX_TTL=60, RESTART_GUARD=False, NODE_TIMEOUT=20)
    with override_settings(REDLOCK={"default": alias}):
        yield


@pytest.mark.slow
def test_threads_exclude_each_other(patient_nodes):
    """Sixteen threads on four names: one at a time in each, fences increasing, nothing lost."""
    inside: dict[str, int] = dict.fromkeys("abcd", 0)
    fences: dict[str, list[int]] = {name: [] for name in inside}
    overlaps: list[str] = []
    never = threading.Event()

    def work(seed: int) -> int:
        chance, turns = random.Random(seed), 0
        for _ in range(25):
            name = chance.choice("abcd")
            with redlock(name, wait=300) as lease:
                inside[name] += 1
                if inside[name] != 1:
                    overlaps.append(name)
                fences[name].append(lease.fence)
                never.wait(0.0005)  # for others, if one could enter
                inside[name] -= 1
                turns += 1
        return turns

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(work, range(16))) == 16 * 25
    assert overlaps == []
    for numbers in fences.values():
        assert numbers == sorted(set(numbers))


@pytest.mark.slow
@pytest.mark.alone
def test_idle_connections_are_bounded(patient_nodes):
    """Threads that are gone leave their connections for others."""
    with patient_nodes[0].client(socket_timeout=20) as client:

        def connections() -> int:
            return int(client.info("clients")["connected_clients"])

        conf.forget()
        others = connections()
        for _ in range(5):
            with ThreadPoolExecutor(8) as pool:
                list(pool.map(lambda n: redlock(f"name:{n}").acquire().release(), range(8)))
        # A thread may get another one's connection while its own is still being opened; and the
        # thread that sends undos has one.
        eventually(lambda: connections() <= others + 8 + MOST_ATTEMPTS + 1)


def test_blocking_in_an_event_loop_is_refused(patient_nodes):
    """A blocking `with` in a coroutine raises as the ORM does, and takes nothing."""

    async def view() -> None:
        with redlock("loop"):
            pass

    with pytest.raises(SynchronousOnlyOperation, match="async"):
        asyncio.run(view())
    redlock("loop").acquire().release()


# In a process of its own, where each lock of the package notes that the main thread takes it. Every
# node is waited for: a late reply is read in the background, which a thread is asked for.
COUNTING = """
import gc, os, sys, threading
gc.disable()  # the collector has a lock of its own
taken, noting, main = [], [], threading.get_ident()

def made(real):
    class Noting:
        def __init__(self, where):
            self.lock, self.where = real(), where

        def acquire(self, *args, **options):
            if noting and threading.get_ident() == main:
                taken.append(self.where)
            return self.lock.acquire(*args, **options)

        def __enter__(self):
            return self.acquire()

        def __exit__(self, *_):
            self.lock.release()

        def __getattr__(self, name):
            return getattr(self.lock, name)

    def make():
        facts = sys._getframe(1).f_globals
        ours = facts["__name__"].startswith("django_redlock")
        return Noting(facts["__name__"]) if ours else real()

    return make

threading.RLock, threading.Lock = made(threading.RLock), made(threading.Lock)
from django.conf import settings
alias = {"NODES": sys.argv[1].split(","), "RESTART_GUARD": False, "NODE_TIMEOUT": 20}
settings.configure(REDLOCK={"default": alias})
from django_redlock import redlock
from django_redlock.leases.lease import Lease
from django_redlock.nodes import exchange, link
link.LEAST_LINGER = exchange.LEAST_LINGER = 20.0
if "broken" in sys.argv:
    tell_once = Lease.tell_once

    def told(lease):
        with lease._changing:
            return tell_once(lease)

    Lease.tell_once = told
for turn in range(100):
    if turn == 5:
        noting.append(True)
    with redlock(f"name-{turn}", wait=5):
        pass
print(*sorted(set(taken)))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize(
    ("variant", "taken"), [("", "\n"), ("broken", "django_redlock.leases.lease\n")]
)
def test_an_uncontended_block_takes_no_lock_of_the_package(three, variant, taken):
    """From the first node to the last, over TCP; a lock on its way is noticed."""
    command = [sys.executable, "-c", COUNTING, ",".join(three.urls), variant]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert done.stdout == taken

"""Renewal where processes are frozen, exit, or run greenlets; on real nodes."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from django_redlock.testing.server import process_state
from tests.support.waiting import eventually

from .test_renewal import group_of, made, nodes

__all__ = ["nodes"]

SETTINGS = """
import json, sys, threading, time
from django.conf import settings
settings.configure(REDLOCK={"default": {
    "NODES": sys.argv[1].split(","), "MAX_TTL": 30, "TTL": 2, "RESTART_GUARD": False,
    "NODE_TIMEOUT": 5,
}})
from django_redlock import LeaseLost, redlock
from django_redlock.leases import lease as leases
leases.RENEWALS = 20  # while it runs, no stall of the machine ends a lease

def look(lease):
    "Whether it is lost, and then whether `ensure` returns."
    lost = lease.lost
    try:
        lease.ensure()
    except LeaseLost:
        return lost, False
    return lost, True
"""


@contextmanager
def running(script: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A process that runs the script; killed at the end, should it still run."""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    """The next line that it prints."""
    assert process.stdout is not None
    said = process.stdout.readline().strip()
    assert said, process.stderr and process.stderr.read()
    return said


@contextmanager
def invoice(path: Path) -> Iterator[sqlite3.Connection]:
    """A table with one row, which nobody has claimed."""
    with closing(sqlite3.connect(path, isolation_level=None)) as table:
        table.execute("CREATE TABLE invoice (total INTEGER, fence INTEGER)")
        table.execute("INSERT INTO invoice VALUES (0, 0)")
        yield table


# -- frozen ---------------------------------------------------------------------------------------

CLAIM = "UPDATE invoice SET fence = ? WHERE fence <= ?"
FROZEN = f"""{SETTINGS}
import asyncio, os, sqlite3
from contextlib import closing
where, claimed, meanwhile = sys.argv[2:]
told = threading.Event()
lock = redlock("invoice", wait=20, on_lost=lambda _: told.set())

def claim(lease):
    rows = table.execute("{CLAIM}", (lease.fence,) * 2)
    print(json.dumps([rows.rowcount, lease.remaining() > 0]), flush=True)

def write(lease):
    lost, ensured = look(lease)
    rows = table.execute("UPDATE invoice SET total = 1 WHERE fence = ?", (lease.fence,))
    print(json.dumps([lost, ensured, rows.rowcount, told.wait(60)]), flush=True)

def in_a_thread():
    with lock as lease:
        claim(lease)
        while not os.path.exists(claimed):  # frozen in here
            time.sleep(0.001)
        write(lease)

async def in_a_task():
    async with lock as lease:
        claim(lease)
        while not os.path.exists(claimed):  # or here
            if meanwhile == "awaiting":
                await asyncio.sleep(0.001)
        write(lease)

with closing(sqlite3.connect(where, isolation_level=None)) as table:
    in_a_thread() if meanwhile == "in a thread" else asyncio.run(in_a_task())
"""  # noqa: S608 - no injection: a script


@pytest.mark.slow
@pytest.mark.parametrize("meanwhile", ["in a thread", "awaiting", "working"])
def test_a_frozen_holder_wakes_up_lost_and_its_write_is_refused(nodes, tmp_path, meanwhile):
    """Stopped past its ttl, a holder knows at its next look, and the row knows the fence.

    It knows by the clock: where a task was at work, nothing in its loop has run before.
    """
    path, claimed = tmp_path / "shop.sqlite3", tmp_path / "claimed"
    words = ",".join(nodes.urls), str(path), str(claimed), meanwhile
    with invoice(path) as table, closing(group_of(nodes)) as group:
        with running(FROZEN, *words) as frozen:
            assert json.loads(line(frozen)) == [1, True]
            frozen.send_signal(signal.SIGSTOP)
            eventually(lambda: process_state(frozen.pid) == "T")
            lease = made(group, ttl=60, renew=False)("invoice", wait=60).acquire()
            assert table.execute(CLAIM, (lease.fence,) * 2).rowcount == 1
            claimed.touch()  # what the frozen one sees from now on, it sees too late
            frozen.send_signal(signal.SIGCONT)
            assert json.loads(line(frozen)) == [True, False, 0, True]
            assert frozen.wait(120) == 0
        lease.ensure()
        lease.extend()
        assert table.execute("SELECT total, fence FROM invoice").fetchall() == [(0, lease.fence)]
        lease.release()


HELD = """
leases = [redlock(f"{sys.argv[2]}:{number}", wait=60).acquire() for number in range(50)]
print("holds", flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
def test_a_killed_holder_is_gone_after_its_ttl_and_not_before(nodes):
    """What a process held that was killed is free after one ttl at the most."""
    words = ",".join(nodes.urls), "left"
    with closing(group_of(nodes)) as group, running(SETTINGS + HELD, *words) as holder:
        assert line(holder) == "holds"
        redlock = made(group, ttl=9)
        assert redlock("left:7").try_acquire() is None
        end = time.monotonic() + 2.5  # its ttl is 2

        def outlived() -> bool:
            assert redlock("left:7").try_acquire() is None
            return time.monotonic() > end

        eventually(outlived, every=0.05)
        holder.kill()
        holder.wait(120)
        for node in nodes:
            with closing(node.client()) as client:
                assert client.pttl("redlock:lock:left:7") <= 2000
        redlock("left:7", wait=60).acquire().release()


# -- greenlets ------------------------------------------------------------------------------------

GREEN = f"""
from gevent import monkey
monkey.patch_all()
import gevent
{SETTINGS}
redlock = redlock.using(ttl=30)
leases.RENEWALS = 300
inside, overlaps, fences, beats, lost, prolonged = [], [], [], [0], [], []

def work(number):
    for turn in range(10):
        with redlock("contended", wait=60, on_lost=lost.append) as held:
            overlaps.extend(inside)
            inside.append(number)
            fences.append(held.fence)
            gevent.sleep(0.002)
            inside.remove(number)

def keep(number):
    with redlock(f"kept:{{number}}", on_lost=lost.append) as held:
        first = held.grant.deadline
        for _ in range(200):
            held.ensure()
            gevent.sleep(0.01)
        prolonged.append(held.grant.deadline > first + 1)

def beat():
    while True:
        beats[0] += 1
        gevent.sleep(0.01)

ticker = gevent.spawn(beat)
told = threading.Event()
with redlock("warm"):  # a busy machine takes long to connect: so long lasts no short lock
    pass
ending = redlock("ending", ttl=3, renew=False, on_lost=lambda _: told.set()).acquire()
greenlets = [gevent.spawn(keep, n) for n in range(20)] + [gevent.spawn(work, n) for n in range(6)]
gevent.joinall(greenlets, raise_error=True)
assert told.wait(60)
print(json.dumps({{
    "overlaps": overlaps, "turns": len(fences), "rising": fences == sorted(set(fences)),
    "lost": len(lost), "beats": beats[0], "ending": ending.lost, "prolonged": all(prolonged),
}}), flush=True)
"""


@pytest.mark.slow
def test_greenlets_are_renewed_and_exclude_each_other(nodes):
    """Under gevent renewal goes on while greenlets work, and stops none of them."""
    with running(GREEN, ",".join(nodes.urls)) as green:
        told = json.loads(line(green))
        assert green.wait(120) == 0
        assert green.stderr is not None
        assert [each for each in green.stderr.read().splitlines() if "'ending'" not in each] == []
    assert told.pop("beats") > 50
    assert told == {
        "overlaps": [],
        "turns": 60,
        "rising": True,
        "lost": 0,
        "ending": True,
        "prolonged": True,
    }

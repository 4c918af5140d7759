"""Code that runs when the interpreter shuts down: threads have ended, sockets may be closed."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from django_redlock import LockTaken, NodesUnavailable, redlock
from django_redlock.core.reasons import ReasonCode
from django_redlock.nodes.background import WorkerThreads
from tests.support.waiting import slowness

PROCESS = """
import json, os, sys
from django.conf import settings
settings.configure(REDLOCK={"default": json.loads(os.environ["ALIAS"])})
from django_redlock import NodesUnavailable, redlock

class Last:
    def __init__(self, act):
        self.act, self.finalizing = act, sys.is_finalizing

    def __del__(self):
        try:
            assert self.finalizing()
            self.act()
        except NodesUnavailable as error:
            os.write(1, error.code.encode())

lease = redlock("held").acquire()
waits = redlock("held", wait=float("inf"))
acts = {"release": lease.release, "extend": lease.extend, "wait": waits.acquire}
kept = Last(acts[sys.argv[1]])
sys.modules["kept"] = kept  # until modules are dropped
os.write(1, b"held ")
"""
NODE_TIMEOUT = 60  # seconds, of which a release at the exit waited for 20
PATIENCE = 120.0  # seconds


def ended(nodes, act: str, process: str = PROCESS) -> tuple[str, str]:
    """What a process says that does this at its end, and what it complains of."""
    alias = nodes.settings(NODE_TIMEOUT=NODE_TIMEOUT, MAX_TTL=3600, RESTART_GUARD=False, TTL=3600)
    done = subprocess.run(
        [sys.executable, "-c", process, act],
        env=os.environ | {"ALIAS": json.dumps(alias)},
        capture_output=True,
        text=True,
        timeout=PATIENCE * max(1.0, slowness()),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("act", "says"),
    [("release", ""), ("extend", "exiting"), ("wait", "exiting")],
)
def test_what_runs_when_the_interpreter_shuts_down_waits_for_nothing(patient_nodes, act, says):
    """Neither for a node nor for a thread, and nothing is complained of by a release."""
    said, complaints = ended(patient_nodes, act)
    assert said == f"held {says}"
    assert "Traceback" not in complaints


HANDLERS = """
import atexit, json, os, sys, _thread

def can_start():
    try:
        _thread.start_new_thread(bool, ())
    except RuntimeError:
        return False
    return True

def at_exit(which):
    if which in kept:
        kept[which].release()
    try:
        with redlock(f"at exit: {which}") as lease:
            told = "took" if lease.fence else ""
    except NodesUnavailable as error:
        told = ", ".join(sorted({vote.code for vote in error.votes}))
    print(json.dumps([which, can_start(), told]), flush=True)

kept = {}
atexit.register(at_exit, "before")
from django.conf import settings
settings.configure(REDLOCK={"default": json.loads(os.environ["ALIAS"])})
from django_redlock import NodesUnavailable, redlock
atexit.register(at_exit, "after")

if sys.argv[1] == "held":
    kept |= {which: redlock(f"held: {which}").acquire() for which in ("before", "after")}
if sys.argv[1] == "block":
    with redlock("held: before"):
        sys.exit(0)
sys.exit(0)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("way", ["held", "block", "first"])
def test_handlers_of_atexit_take_and_release(patient_nodes, way):
    """Registered before the package was imported, or after it.

    The first lock of a process needs threads, of which Python 3.12 starts none at the exit.
    """
    said, complaints = ended(patient_nodes, way, HANDLERS)
    told = [json.loads(each) for each in said.splitlines()]
    assert [which for which, *_ in told] == ["after", "before"]
    for _, can_start, did in told:
        assert did == ("took" if can_start or way != "first" else ReasonCode.NO_THREAD)
    assert "Traceback" not in complaints
    for which in ("before", "after"):
        redlock(f"held: {which}").acquire(wait=0).release()


@pytest.fixture
def shutting_down(monkeypatch):
    """Makes the package believe that the interpreter shuts down."""

    def begin() -> None:
        instead = SimpleNamespace(is_finalizing=lambda: True)
        monkeypatch.setattr("django_redlock.backend.sys", instead)
        monkeypatch.setattr("django_redlock.nodes.background.sys", instead)

    yield begin
    monkeypatch.undo()


def test_each_request_is_answered_at_once_when_the_interpreter_shuts_down(
    patient_nodes, shutting_down
):
    """A release ends, and what needs votes is told that there are none, even if it may wait."""
    lease, other = redlock("held").acquire(), redlock("held", wait=float("inf"))
    shutting_down()
    for act in (lease.extend, other.acquire, other.acquire):
        with pytest.raises(NodesUnavailable) as raised:
            act()
        assert raised.value.code == ReasonCode.EXITING
    lease.release()
    assert lease.ended
    assert not WorkerThreads().offer("kind", bool)


def test_a_task_waits_for_nothing_when_the_interpreter_shuts_down(patient_nodes, shutting_down):
    """Nor does one that waits in the queue: it leaves."""

    async def main() -> None:
        lease = await redlock("task").aacquire()
        waiting = asyncio.ensure_future(redlock("task", wait=float("inf")).aacquire())
        with pytest.raises(LockTaken):
            await redlock("task").aacquire(wait=0)
        shutting_down()
        with pytest.raises(NodesUnavailable):
            await lease.aextend()
        await lease.arelease()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(main())

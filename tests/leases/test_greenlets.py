"""Locks where gevent or eventlet has patched the process, before the import or after it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from django_redlock.testing import EmbeddedNodes

from .test_renewal import nodes

__all__ = ["nodes"]

pytestmark = pytest.mark.slow

MEMORY = {"NODES": ["memory://a", "memory://b", "memory://c"]}
WORLDS = (
    "gevent first",
    "gevent late",
    "gevent late forked",  # as ``gunicorn --preload``, whose master holds a lock
    "eventlet first",
    "eventlet late",
)

BEGIN = """
import _thread, json, os, sys, threading, time
world, alias, broken = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
native_sleep, native_start, main = time.sleep, _thread.start_new_thread, _thread.get_ident()

def patch():
    if "gevent" in world:
        from gevent import monkey
        monkey.patch_all()
    else:
        import eventlet
        eventlet.monkey_patch()

if "first" in world:
    patch()
import django
from django.conf import settings
settings.configure(SECRET_KEY="x", INSTALLED_APPS=["django_redlock"], REDLOCK={"default": alias})
django.setup()
from django_redlock import backend, redlock
from django_redlock.core import wait
from django_redlock.interruption import ThreadWakeup
from django_redlock.leases import lease as leases, renewal
from django_redlock.nodes import background, link, node, queue
redlock = redlock.using(ttl=30)
leases.RENEWALS = 300
"""

BREAK = """
class Early(ThreadWakeup):
    "Made at the import, with its lock."
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()
        self.lock.acquire()
    def sleep(self, seconds):
        self.lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))

def tell_when_blocked():
    "The main thread waits for a lock that only itself could release."
    while sys._current_frames()[main].f_code is not Early.sleep.__code__:
        native_sleep(0.01)
    os.write(1, b'"blocked"')
    os._exit(0)

if broken == "wakeup":
    renewal.watchdog._wakeup = Early()
    native_start(tell_when_blocked, ())
if broken == "sleep":
    backend.sleep = native_sleep
    backend.Backend.__init__.__defaults__ = tuple(
        native_sleep if getattr(each, "__name__", "") == "sleep" else each
        for each in backend.Backend.__init__.__defaults__
    )
if broken == "poll":
    import select
    for module in (node, queue, link):
        module.new_poll = lambda: select.poll()
"""

PATCH_LATE = """
if "forked" in world:
    with redlock("of the master"):
        if child := os.fork():
            os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
if "late" in world:
    patch()
if "gevent" in world:
    import gevent
    spawn, sleep = gevent.spawn, gevent.sleep
    def join(greenlets): gevent.joinall(greenlets, raise_error=True)
else:
    import eventlet
    spawn, sleep = eventlet.spawn, eventlet.sleep
    def join(greenlets): [each.wait() for each in greenlets]
"""

SCENE = """
inside, overlaps, fences, beats, lost, woken = [], [], [], [0], [], [0]
wakeup_in = wait._wakeup_in

def noted(came):
    nonce = wakeup_in(came)
    woken[0] += bool(nonce)
    return nonce

wait._wakeup_in = noted

def work(number):
    for turn in range(5):
        with redlock("contended", wait=60, on_lost=lost.append) as held:
            overlaps.extend(inside)
            inside.append(number)
            fences.append(held.fence)
            sleep(0.01)
            inside.remove(number)

def keep(number):
    with redlock(f"kept:{number}", on_lost=lost.append) as held:
        first = held.grant.deadline
        while held.grant.deadline < first + 0.5:
            held.ensure()
            sleep(0.01)

def beat():
    while True:
        beats[0] += 1
        sleep(0.01)

spawn(beat)
join([spawn(keep, n) for n in range(4)] + [spawn(work, n) for n in range(4)])
before = beats[0]
backend.backends["default"].sleep(0.3)
print(json.dumps({
    "overlaps": overlaps, "turns": len(fences), "rising": fences == sorted(set(fences)),
    "lost": len(lost), "woken": woken[0] > 0, "others ran": before > 10 and beats[0] > before,
}), flush=True)
os._exit(0)
"""
RIGHT = {
    "overlaps": [],
    "turns": 20,
    "rising": True,
    "lost": 0,
    "woken": True,
    "others ran": True,
}


def alias_of(where: str, nodes: EmbeddedNodes) -> dict[str, Any]:
    """The settings of an alias: with nodes in memory, or real ones that may take their time."""
    real = nodes.settings(NODE_TIMEOUT=5, MAX_TTL=60, RESTART_GUARD=False)
    return MEMORY if where == "memory" else real


def played(world: str, alias: dict[str, Any], scene: str = SCENE, broken: str = "") -> Any:
    """What a process says that plays the scene in such a world; else the end of its errors."""
    script = BEGIN + (BREAK if broken else "") + PATCH_LATE + scene
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, world, json.dumps(alias), broken],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return json.loads(process.stdout) if process.returncode == 0 else process.stderr[-2000:]


@pytest.mark.parametrize("where", ["memory", "real"])
@pytest.mark.parametrize("world", WORLDS)
def test_greenlets_lock_in_a_world_that_is_patched(world, where, nodes):
    """They exclude each other, are woken and renewed, and stop no other greenlet."""
    assert played(world, alias_of(where, nodes)) == RIGHT


def test_a_watchdog_with_a_lock_of_the_import_is_noticed():
    """The check can fail: its greenlet blocks all others."""
    assert played("gevent late", MEMORY, broken="wakeup") == "blocked"


def test_a_sleep_of_the_import_is_noticed():
    """The check can fail: while a greenlet sleeps, no other runs."""
    assert played("gevent late", MEMORY, broken="sleep") == RIGHT | {"others ran": False}


def test_a_poll_that_eventlet_has_removed_is_noticed(nodes):
    """The check can fail: no node is asked."""
    told = played("eventlet first", alias_of("real", nodes), broken="poll")
    assert "has no attribute 'poll'" in told


STALE = """
import select, socket
import eventlet.event

class Naive:
    "By what eventlet leaves in ``select``."
    def __init__(self):
        self.filenos = []
    def register(self, fileno, events):
        self.filenos.append(fileno)
    def poll(self, milliseconds):
        return select.select(self.filenos, [], [], milliseconds / 1000)[0]

pairs = [socket.socketpair() for _ in range(5)]
poll = Naive() if broken else background.new_poll()
for mine, _ in pairs:
    poll.register(mine.fileno(), select.POLLIN)

def write():
    for _, other in pairs:
        other.send(b"x")

empty = poll.poll(10)
spawn(write)
found = len(poll.poll(60_000))
other = eventlet.event.Event()
eventlet.spawn_after(0.1, other.send, "its own")
print(json.dumps([empty, found, other.wait()]), flush=True)
os._exit(0)
"""


def test_a_poll_under_eventlet_resumes_a_greenlet_once():
    """Of five sockets that are ready at once, none resumes it where it waits for something else."""
    assert played("eventlet first", MEMORY, STALE) == [[], 5, "its own"]
    assert played("eventlet first", MEMORY, STALE, "select")[2] != "its own"


NATIVE = """
def refused():
    try:
        with redlock("native"):
            return ""
    except RuntimeError as error:
        return str(error)

pool = gevent.get_hub().threadpool
print(json.dumps([
    pool.spawn(refused).get(), list(renewal.watchdog._workers._workers), refused(),
]), flush=True)
os._exit(0)
"""


@pytest.mark.parametrize("world", ["gevent first", "gevent late"])
def test_a_native_thread_of_gevent_is_refused(world):
    """Before it starts anything: a watchdog there would renew nothing while the thread computes."""
    refused, started, here = played(world, MEMORY, NATIVE)
    assert "take the lock in a greenlet" in refused
    assert (started, here) == ([], "")

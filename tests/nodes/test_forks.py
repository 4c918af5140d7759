"""What another thread held when the process forked does not stop the child."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from django_redlock import redlock
from django_redlock.core.protocol import JoinQueue, Waiter
from django_redlock.nodes.memory import MemoryNodes
from tests.support.loops import group_of, unguarded
from tests.support.proxy import Proxy
from tests.support.replays import note_broken

QUIET = ["-W", "error", "-W", "ignore:This process:DeprecationWarning"]  # it forks with threads


def told(*command: str) -> Any:
    """What a process prints, as JSON."""
    output = subprocess.check_output([sys.executable, *QUIET, *command], text=True)
    return json.loads(output)


@pytest.mark.slow
def test_a_child_has_every_lock_that_another_thread_held():
    """No lock of the package that a thread of the parent held is held in a forked child."""
    assert told("-m", "tests.nodes.held_locks") == {"missed": [], "stuck": [], "used": True}


@pytest.mark.slow
def test_a_lock_that_no_child_makes_anew_is_found():
    """The check above names a lock that stays held."""
    found = told("-m", "tests.nodes.held_locks", "careless")
    assert found["stuck"] == ["django_redlock.conf.careless"]


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # it has threads
def test_a_process_that_is_killed_keeps_its_name_for_one_ttl_at_most(patient_nodes):
    """Every key that it leaves expires, and nobody renews it: it is nobody's any more."""
    child = os.fork()
    if not child:
        try:
            redlock("name", ttl=40).acquire()
            os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert redlock("name").try_acquire() is None
    left = []
    for node in patient_nodes:
        with closing(node.client(socket_timeout=5)) as client:
            left.append(client.pttl("redlock:lock:name"))
            client.delete("redlock:lock:name")
    assert sum(0 < each <= 40_000 for each in left) >= 3  # milliseconds
    assert max(left) <= 40_000
    assert -1 not in left  # a key without an end


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # it has threads
@pytest.mark.parametrize("make", [group_of, MemoryNodes])
def test_a_child_waits_behind_no_waiter_of_its_parent(make):
    """Such a waiter never leaves the queue of the child, for its thread is in the parent."""
    group = make([])
    effects = [JoinQueue(Waiter("queue"), 0) for _ in range(2)]
    assert group.queue(effects[0])
    child = os.fork()
    if not child:
        try:
            os._exit(3 if group.queue(effects[1]) else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    assert not group.queue(effects[1])


# -- a server that forks in C, as uWSGI: no hook of Python runs ------------------------------------


@pytest.mark.slow
def test_a_child_that_is_forked_in_c_has_every_lock():
    """The same where no hook runs: the child's first use of the package makes them anew."""
    assert told("-m", "tests.nodes.held_locks", "in C") == {"missed": [], "stuck": [], "used": True}


def played(nodes: Any, alias: dict[str, Any], *words: str) -> Any:
    """What children say that a process has forked in C, and what that process has left."""
    ports = ",".join(str(node.port) for node in nodes)
    return told("-m", "tests.nodes.forked_in_c", json.dumps(alias), ports, *words)


RIGHT = {"remaining": 0.0, "renewed": True, "shared": 0, "taken": True, "holder": True}
USES = ["thread", "task"]


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("by_tls", [False, True], ids=["TCP", "TLS"])
def test_a_child_that_is_forked_in_c_has_connections_and_leases_of_its_own(use, by_tls, tls):
    """Its lease is renewed; the parent keeps lease and connections, also after the child's end."""
    with ExitStack() as stack:
        nodes: Any = stack.enter_context(unguarded(3))
        alias = nodes.settings(RESTART_GUARD=False, NODE_TIMEOUT=1)
        if by_tls:
            context, certificate = tls
            nodes = [stack.enter_context(Proxy(node.port, context)) for node in nodes]
            alias["NODES"] = [f"rediss://127.0.0.1:{each.port}/0" for each in nodes]
            alias["OPTIONS"] = {"ssl_ca_certs": str(certificate)}
        assert played(nodes, alias, use) == {"children": [RIGHT, RIGHT], "kept": True}


@pytest.mark.slow
@pytest.mark.parametrize("use", USES)
def test_a_child_that_does_not_notice_the_fork_is_noticed(use):
    """The check above can fail: else children share connections, and cost their parent its own."""
    with unguarded(3) as nodes:
        alias = nodes.settings(RESTART_GUARD=False, NODE_TIMEOUT=1)
        note_broken("notice_fork")
        outcome = played(nodes, alias, use, "careless")
    shared = [child["shared"] for child in outcome["children"]]
    assert any(shared) or not outcome["kept"]  # two readers of one reply: both close
    if use == "thread":  # a loop renews by its own timers
        assert not any(child["renewed"] for child in outcome["children"])


# -- forks while threads lock ----------------------------------------------------------------------


def forked_while_locking(home: Path, *words: str) -> Any:
    """How children end that a process forks while its threads lock, and what went wrong there."""
    with unguarded(3) as nodes:
        alias = nodes.settings(RESTART_GUARD=False, NODE_TIMEOUT=10, MAX_TTL=60, TTL=60)
        return told("-m", "tests.nodes.forked_while_locking", json.dumps(alias), str(home), *words)


@pytest.mark.slow
def test_forks_while_fifty_threads_lock(tmp_path):
    """Each child locks as well, and ends; at no time has a name two holders, and nothing hangs."""
    assert forked_while_locking(tmp_path) == {"ends": [0] * 12, "wrong": [], "left": []}


@pytest.mark.slow
def test_children_that_keep_what_is_the_parents_are_noticed(tmp_path):
    """The check above can fail: such children hang, or take replies that are the parent's."""
    note_broken("call_in_child")
    assert any(forked_while_locking(tmp_path, "careless")["ends"])


# -- the first use of an alias --------------------------------------------------------------------


FIRST_USE = """
import json, os, select, signal, threading
import django
from django.conf import settings
from django_redis.cache import RedisCache

PATIENCE = 30
connecting, forked = threading.Event(), threading.Event()

class SlowCache(RedisCache):
    def __init__(self, *args):
        super().__init__(*args)
        connecting.set()
        forked.wait(PATIENCE)

settings.configure(
    CACHES={
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "slow": {"BACKEND": "__main__.SlowCache", "LOCATION": "redis://127.0.0.1:1/0"},
    },
    REDLOCK={
        "default": {"NODES": ["memory://a"]},
        "slow": {"NODES": [{"CACHE": "slow"}]},
    },
)
django.setup()
from django_redlock import redlock, redlocks

def use():
    with redlock("name") as lease:
        return [lease.fence > 0, redlocks["slow"].alias]

first = threading.Thread(target=lambda: redlocks["slow"])
first.start()
assert connecting.wait(PATIENCE)
read, write = os.pipe()
child = os.fork()
if not child:
    signal.alarm(PATIENCE)
    forked.set()
    try:
        os.write(write, json.dumps(use()).encode())
    finally:
        os._exit(0)
os.close(write)
forked.set()
first.join(PATIENCE)
with os.fdopen(read) as pipe:
    ready, _, _ = select.select([pipe], [], [], 2 * PATIENCE)
    told = pipe.read() if ready else ""
os.waitpid(child, 0)
print(told or '"the child hung"')
"""


@pytest.mark.slow
def test_a_fork_during_another_threads_first_use():
    """A child that is forked while another thread makes the nodes of an alias makes its own."""
    assert told("-c", FIRST_USE) == [True, "slow"]

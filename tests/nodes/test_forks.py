"""What another thread held when the process forked does not stop the child."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

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

"""A process that may have no more threads: its limit is reached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.waiting import slowness

PATIENCE = 120.0  # seconds

PROCESS = """
import asyncio, json, logging, os, sys, time, _thread
from django.conf import settings
settings.configure(REDLOCK={"default": json.loads(os.environ["ALIAS"])})
from django_redlock import NodesUnavailable, redlock

class Told(logging.Handler):
    def emit(self, record):
        told.append(record.getMessage())

def refuse(*_, **__):
    raise RuntimeError("can't start new thread")

def outcome(name):
    try:
        with redlock(name) as lease:
            lease.ensure()
            return lease.fence > 0
    except NodesUnavailable as error:
        return sorted({vote.code for vote in error.votes})

async def aoutcome(name):
    try:
        async with redlock(name) as lease:
            lease.ensure()
            return lease.fence > 0
    except NodesUnavailable as error:
        return sorted({vote.code for vote in error.votes})

told = []
logging.getLogger("django_redlock").addHandler(Told())
if sys.argv[1] == "connected":  # without a lease, so that no thread renews yet
    redlock("name").state()
start, _thread.start_new_thread = _thread.start_new_thread, refuse
found = {"thread": outcome("name"), "task": asyncio.run(aoutcome("name")), "told": list(told)}
if sys.argv[1] == "connected":
    held = redlock("held", ttl=4).acquire()
    first = held.grant.deadline
    _thread.start_new_thread = start
    with redlock("next"):  # starts the thread that renews
        while held.grant.deadline == first and held.remaining() > 0:
            time.sleep(0.01)
    found["renewed"] = held.grant.deadline > first
else:
    _thread.start_new_thread = start
    found["afterwards"] = outcome("name")
print(json.dumps(found), flush=True)
"""


def found(nodes: Any, way: str) -> Any:
    """What a process finds that can start no thread."""
    alias = nodes.settings(NODE_TIMEOUT=10, MAX_TTL=60, RESTART_GUARD=False, TTL=30)
    output = subprocess.check_output(
        [sys.executable, "-W", "error", "-c", PROCESS, way],
        env=os.environ | {"ALIAS": json.dumps(alias)},
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=PATIENCE * max(1.0, slowness()),
    )
    return json.loads(output)


@pytest.mark.slow
def test_a_lock_works_without_more_threads_and_the_log_says_that_none_renews(patient_nodes):
    """The connections that are there serve on. The next thread that starts renews every lease."""
    told = found(patient_nodes, "connected")
    warnings = told.pop("told")
    assert len(warnings) == 2
    assert all(each.startswith("no watchdog: ") for each in warnings)
    assert all("no thread can start" in each for each in warnings)
    assert told == {"thread": True, "task": True, "renewed": True}


@pytest.mark.slow
def test_a_first_lock_without_threads_is_refused_and_says_why(patient_nodes):
    """It does not wait, and goes through as soon as there are threads again."""
    told = found(patient_nodes, "new")
    assert all("no thread can be started to connect to it" in each for each in told.pop("told"))
    assert told == {"thread": ["no_thread"], "task": ["no_thread"], "afterwards": True}

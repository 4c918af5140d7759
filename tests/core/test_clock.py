"""Which clock a lease is measured by: not one that is set, nor one that stops in between."""

from __future__ import annotations

import json
import subprocess
import sys
import time

import pytest

PROGRAM = """
import json, time

ahead = {"wall": 0.0, "suspended": 0.0}
real_time, real_gettime = time.time, time.clock_gettime
WALL = (time.CLOCK_REALTIME,)

def gettime(clock):
    shift = "wall" if clock in WALL else "suspended"
    return real_gettime(clock) + (ahead[shift] if clock != time.CLOCK_MONOTONIC else 0.0)

time.clock_gettime = gettime
time.clock_gettime_ns = lambda clock: int(gettime(clock) * 1e9)
time.time = lambda: real_time() + ahead["wall"]
time.time_ns = lambda: int(time.time() * 1e9)

from django.conf import settings
nodes = [f"memory://{each}" for each in "abc"]
settings.configure(REDLOCK={"default": {"NODES": nodes, "TTL": 300, "MAX_TTL": 600}})
from django_redlock import redlock

def left_after(which, seconds):
    lease = redlock(f"{which} {seconds}", renew=False).acquire()
    before = lease.remaining()
    ahead[which] += seconds
    return {"before": before, "after": lease.remaining(), "lost": lease.lost}

print(json.dumps([left_after("wall", 3600), left_after("wall", -7200), left_after("suspended", 200),
    left_after("suspended", 310)]))
"""


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has such a clock")
def test_a_lease_is_measured_by_a_clock_that_nobody_sets_and_that_does_not_sleep():
    """Setting the wall clock changes nothing; a machine's suspension counts as time."""
    command = [sys.executable, "-c", PROGRAM]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    forward, back, slept, slept_long = json.loads(told.stdout)
    for set_anew in (forward, back):
        assert not set_anew["lost"]
        assert set_anew["before"] >= set_anew["after"] > 0
        assert set_anew["before"] - set_anew["after"] < 200  # and not an hour
    assert slept["before"] - slept["after"] >= 200
    assert not slept["lost"]
    assert slept_long["lost"]

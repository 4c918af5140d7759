"""A worker of RQ, which forks a child for each job, and its jobs.

SITE            a folder for the marks of jobs
REDLOCK         the alias "default", as JSON
BROKER          the URL of RQ's own node
MASTERS_LOCK    the name of a lock that the worker takes before it forks
NAIVE           set for a broken variant: a child knows nothing of the fork

Before it begins it has connections, and a thread that renews: both are nothing to its children.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

PATIENCE = 120.0  # seconds


def hold(name: str) -> list[int]:
    """Hold the lock until the test lets go; return the process and the fence."""
    from django_redlock import redlock

    site = Path(os.environ["SITE"])
    with redlock(name) as lease:
        (site / f"begun-{name}").write_text(str(os.getpid()))
        end = time.monotonic() + PATIENCE
        while not (site / f"enough-{name}").exists() and time.monotonic() < end:
            time.sleep(0.01)
        lease.ensure()
        return [os.getpid(), lease.fence]


def take(name: str) -> list[int]:
    """Take the lock without waiting."""
    from django_redlock import redlock

    with redlock(name, wait=0) as lease:
        return [os.getpid(), lease.fence]


def work() -> None:
    """Run the jobs until a signal ends it."""
    if "NAIVE" in os.environ:
        vars(os)["register_at_fork"] = lambda **_: None
    from django.conf import settings
    from redis import Redis
    from rq import Worker

    settings.configure(REDLOCK={"default": json.loads(os.environ["REDLOCK"])})
    from django_redlock import redlock

    with redlock(os.environ["MASTERS_LOCK"]):
        Worker(["default"], connection=Redis.from_url(os.environ["BROKER"])).work()


if __name__ == "__main__":
    work()

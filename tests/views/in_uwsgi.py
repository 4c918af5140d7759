"""A WSGI application that takes a lock in uWSGI's master, and in its views; run by test_uwsgi.

BEFORE_2_0_27: uWSGI keeps the interpreter's lock between requests, as it did by default before it
began to enable threads; the master takes no lock then.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import django
from django.conf import settings


def keep_the_interpreter() -> None:
    """Let uWSGI call the functions that do not give up the interpreter's lock."""
    import pyuwsgi  # type: ignore[import-not-found] # it has no types

    library = ctypes.PyDLL(pyuwsgi.__file__)
    words = (ctypes.c_size_t * 400).in_dll(library, "up")

    def address(name: str) -> int:
        return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0

    for act in ("get", "release"):
        place = list(words).index(address(f"gil_real_{act}"))
        words[place] = address(f"gil_fake_{act}")
    sys.modules["uwsgi"].has_threads = 0  # type: ignore[attr-defined]


def await_sleep() -> None:
    """Wait until the thread that renews has begun to sleep.

    uWSGI does not hold the interpreter's lock when it forks. If a thread of the master holds it
    then, nobody releases it in the child: a worker that hangs for ever.
    """
    looks = 0
    while looks < 3:
        looks = looks + 1 if watchdog._running and watchdog._wakeup._silent else 0
        threading.Event().wait(0.01)


if "BEFORE_2_0_27" in os.environ:
    keep_the_interpreter()
logging.basicConfig()
settings.configure(REDLOCK={"default": json.loads(os.environ["REDLOCK"])})
django.setup()

from django_redlock import redlock  # noqa: E402
from django_redlock.leases.renewal import watchdog  # noqa: E402

if "BEFORE_2_0_27" not in os.environ:  # there a thread of the master waits for the interpreter
    with redlock("in the master"):  # when uWSGI forks, which may stop a child for ever
        pass
    await_sleep()
MASTER = os.getpid()
kept: list[Any] = []


def hold(name: str) -> bool:
    """Hold a lock for longer than its ttl; return whether it was kept."""
    with redlock(name) as lease:
        end = time.monotonic() + 1.5 * lease.grant.ttl
        while time.monotonic() < end:
            threading.Event().wait(0.1)
        return not lease.lost


def take(name: str) -> bool:
    """Take a lock, and leave it to what comes after the request."""
    kept.append(redlock(name).acquire())
    return True


def application(environ: dict[str, Any], start: Callable[..., object]) -> Iterable[bytes]:
    """Call the function in the path with the rest of it."""
    _, act, name = environ["PATH_INFO"].split("/")
    told = {"kept": {"hold": hold, "take": take}[act](name), "process": os.getpid()}
    start("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(told | {"forked": os.getpid() != MASTER}).encode()]

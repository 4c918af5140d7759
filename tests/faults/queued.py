"""A process that takes turns as it is told; run by test_waiting.

Arguments: the alias, as JSON, and how many seconds there are between two looks of who waits;
more than the usual half to nine tenths, so that who has the name sooner was woken. It obeys lines
of its input:

    take NAME WAIT HOLD     take one turn
    turns NAME WAIT HOLD    one after another, until it is killed
    task …                  the same in a task of an event loop
    thread … / fork …       the same in a thread, in a child

and tells what happens: ``asking NAME``, ``in NAME FENCE``, ``out NAME``, ``over NAME`` before it
when the lease was over, ``refused NAME ERROR``, ``interrupted NAME`` (Ctrl-C). Each line ends with
the moment, on the clock that all processes of a machine share. SIGUSR1 starts a thread that takes
the same turn as the last one that was told. From SIGUSR2 on there are SELDOM seconds between looks.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import django
from django.conf import settings

from django_redlock import LockTaken, NodesUnavailable, redlock
from django_redlock.core import wait as waiting
from django_redlock.leases import lease as leases
from django_redlock.leases.lease import Lease

SELDOM = 5.0  # seconds between two looks: a waiter that has the name sooner was woken

last: list[str] = []


def say(*words: object) -> None:
    """Print one line, whole, with the moment."""
    os.write(1, f"{' '.join(map(str, words))} {time.monotonic()}\n".encode())


@contextmanager
def telling(name: str) -> Iterator[None]:
    """Tell that a turn was asked for, and why it was not had."""
    try:
        say("asking", name)
        yield
    except (LockTaken, NodesUnavailable) as error:
        say("refused", name, type(error).__name__)
    except KeyboardInterrupt:
        say("interrupted", name)


def leave(lease: Lease) -> None:
    """Tell that a turn ends."""
    if lease.remaining() <= 0:
        say("over", lease.name)
    say("out", lease.name)


def take(name: str, wait: float, hold: float) -> None:
    """Take one turn."""
    with telling(name), redlock(name, wait=wait) as lease:
        say("in", name, lease.fence)
        time.sleep(hold)
        leave(lease)


async def atake(name: str, wait: float, hold: float) -> None:
    """Take one turn, in a task."""
    with telling(name):
        async with redlock(name, wait=wait) as lease:
            say("in", name, lease.fence)
            await asyncio.sleep(hold)
            leave(lease)


def turns(words: list[str]) -> Iterator[tuple[str, float, float]]:
    """The turns that a line tells to take: name, seconds to wait, seconds to hold."""
    how, name, wait, hold = words[0], words[1], float(words[2]), float(words[3])
    yield name, wait, hold
    while how == "turns":
        yield name, wait, hold


def obey(words: list[str]) -> None:
    """Do what a line says."""
    last[:] = ["take", *words[1:]]
    for turn in turns(words):
        take(*turn)


async def aobey(words: list[str]) -> None:
    """``obey``, in a task."""
    for turn in turns(words):
        await atake(*turn)


def in_a_thread(words: list[str]) -> None:
    """Do it in a thread."""
    threading.Thread(target=obey, args=(words,), daemon=True).start()


def look_every(seconds: float) -> None:
    """Let waiters look so seldom."""
    vars(waiting).update(LOOK_EVERY=(seconds, seconds), NEWS=2 * seconds)


def main() -> None:
    """Obey one line after another."""
    settings.configure(
        REDLOCK={"default": json.loads(sys.argv[1])}, INSTALLED_APPS=["django_redlock"]
    )
    django.setup()
    vars(leases)["RENEWALS"] = 20  # while it runs, no stall of the machine ends a lease
    vars(waiting)["LONGEST"] = 600.0  # the order is that of arrival, however long that takes
    for seconds in map(float, sys.argv[2:]):
        look_every(seconds)
    signal.signal(signal.SIGUSR2, lambda *_: look_every(SELDOM))
    signal.signal(signal.SIGUSR1, lambda *_: in_a_thread(list(last)))
    say("ready")
    while line := sys.stdin.readline():
        kind, *words = line.split()
        if kind == "thread":
            in_a_thread(words)
        elif kind == "task":
            asyncio.run(aobey(words))
        elif kind != "fork":
            obey([kind, *words])
        elif os.fork() == 0:
            obey(words)
            os._exit(0)


if __name__ == "__main__":
    main()

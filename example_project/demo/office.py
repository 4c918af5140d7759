"""One ticket office: a process that sells seats of a show, one after the other.

It gets from the demo what to do, and tells it what it did, as tuples on a pipe.
"""

import logging
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import NamedTuple, TypeAlias

import django

from django_redlock import LeaseLost, LockTaken, NodesUnavailable, redlock
from django_redlock.fencing import StaleFence, fenced

TTL = 1.5  # seconds after which a frozen or dead office no longer has the lock
WAIT = 1.0  # seconds to wait for the lock before doing something else

Tell: TypeAlias = "Callable[[str, Sale | None], None]"


class Sale(NamedTuple):
    """One time in the critical section; seconds are of the machine's one monotonic clock."""

    fence: int
    entered: float
    left: float


def main(pipe: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the demo, which ends this
    django.setup()
    logging.disable()  # the demo tells what this does
    tell: Tell = lambda event, sale: pipe.send((event, sale))  # noqa: E731
    tell("ready", None)
    with suppress(EOFError):  # the demo has ended
        while True:
            work(pipe, tell, **pipe.recv())
            tell("closed", None)


def work(pipe: Connection, tell: Tell, show: int, *, locked: bool, fence: bool) -> None:
    """Sell until the demo says "close"; in the first sale after it says "freeze", freeze."""
    freeze = False
    while (order := pipe.recv() if pipe.poll() else "") != "close":
        freeze = freeze or order == "freeze"
        if not locked:
            sell_without_lock(show, tell)
        elif sell(show, tell, fence=fence, freeze=freeze):
            freeze = False
        time.sleep(random.uniform(0.01, 0.05))  # until the next customer comes


def sell(show: int, tell: Tell, *, fence: bool, freeze: bool) -> bool:
    """Sell one seat under the lock, with or without the fence; return False without the lock."""
    from example_project.box_office.models import Show

    rows = Show.objects.filter(pk=show)
    try:
        with redlock(f"show:{show}", ttl=TTL, wait=WAIT) as lease:
            entered = time.monotonic()
            over = entered + lease.remaining()
            row = fenced(lease, rows) if fence else rows
            sold = row.get().sold
            think()
            if freeze:
                stop(tell)
            row.update(sold=sold + 1)
            left = time.monotonic()
            if fence and lease.remaining() <= 0:  # nobody had claimed the row since
                left = min(left, over)
    except StaleFence:  # from `over` on this office was not the holder, and wrote nothing
        tell("refused", Sale(lease.fence, entered, min(time.monotonic(), over)))
        return True
    except (LockTaken, NodesUnavailable, LeaseLost):  # it has written nothing: come back later
        return False
    tell("sold", Sale(lease.fence, entered, left))
    return True


def sell_without_lock(show: int, tell: Tell) -> None:
    from example_project.box_office.models import Show

    entered = time.monotonic()
    sold = Show.objects.get(pk=show).sold
    think()
    Show.objects.filter(pk=show).update(sold=sold + 1)
    tell("sold", Sale(0, entered, time.monotonic()))


def stop(tell: Tell) -> None:
    """Freeze, until somebody sends SIGCONT."""
    tell("frozen", None)
    os.kill(os.getpid(), signal.SIGSTOP)


def think() -> None:
    time.sleep(random.uniform(0.005, 0.02))

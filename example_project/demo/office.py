"""One ticket office: a process that sells seats of a show, one after the other.

It reads on stdin what to do, and writes to stdout what it did, as lines of JSON. All offices write
to one pipe; a line is short enough to arrive in one piece.
"""

import json
import os
import random
import signal
import sys
import time

import django

from django_redlock import LeaseLost, LockTaken, NodesUnavailable, redlock
from django_redlock.fencing import StaleFence, fenced

TTL = 1.5  # seconds after which a frozen or dead office no longer has the lock
WAIT = 1.0  # seconds to wait for the lock before doing something else


def main() -> None:
    django.setup()
    tell("ready")
    for line in sys.stdin:
        work(**json.loads(line))
        tell("done")


def work(show: int, until: float, *, locked: bool, fence: bool, freeze_at: float | None) -> None:
    """Sell until the time is over; freeze once, in the first sale after `freeze_at`."""
    while (now := time.monotonic()) < until:
        freeze = freeze_at is not None and now >= freeze_at
        if not locked:
            sell_without_lock(show)
        elif sell(show, fence=fence, freeze=freeze) and freeze:
            freeze_at = None
        time.sleep(random.uniform(0.01, 0.05))  # until the next customer comes


def sell(show: int, *, fence: bool, freeze: bool) -> bool:
    """Sell one seat under the lock, with or without the fence; return False without the lock."""
    from example_project.box_office.models import Show

    rows = Show.objects.filter(pk=show)
    try:
        with redlock(f"show:{show}", ttl=TTL, wait=WAIT) as lease:
            entered = time.monotonic()
            over = entered + lease.remaining()
            tell("entered", fence=lease.fence)

            row = fenced(lease, rows) if fence else rows
            sold = row.get().sold
            think()
            if freeze:
                stop()
            row.update(sold=sold + 1)

            left = time.monotonic()
            if fence and lease.remaining() <= 0:  # nobody had claimed the row since
                left = min(left, over)
    except LockTaken:
        tell("taken")  # another office has it: come back later
        return False
    except NodesUnavailable:
        tell("unavailable")  # unknown whether it is taken: come back later, and tell an operator
        return False
    except StaleFence:  # from `over` on this office was not the holder, and wrote nothing
        tell("refused", fence=lease.fence, entered=entered, left=min(time.monotonic(), over))
        return True
    except LeaseLost:
        tell("late")  # it had not claimed the row yet
        return False
    tell("sold", fence=lease.fence, entered=entered, left=left)
    return True


def sell_without_lock(show: int) -> None:
    from example_project.box_office.models import Show

    entered = time.monotonic()
    sold = Show.objects.sold(show)
    think()
    Show.objects.filter(pk=show).update(sold=sold + 1)
    tell("sold", fence=0, entered=entered, left=time.monotonic())


def stop() -> None:
    """Freeze, until somebody sends SIGCONT."""
    tell("frozen")
    os.kill(os.getpid(), signal.SIGSTOP)


def think() -> None:
    time.sleep(random.uniform(0.005, 0.02))


def tell(event: str, **facts: float) -> None:
    line = json.dumps({"office": int(sys.argv[1]), "event": event, **facts})
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


if __name__ == "__main__":
    main()

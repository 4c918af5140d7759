"""One ticket office: a process that sells seats of a show, one after the other.

It is told what to do by lines on stdin and tells what it did by lines on stdout, all JSON. All
offices write to one pipe; a line is short enough to arrive in one piece.
"""

import json
import os
import random
import signal
import sys
import time

import django

from django_redlock import LockTaken, NodesUnavailable, redlock

TTL = 1.5  # seconds after which a frozen or dead office no longer has the lock
WAIT = 1.0  # seconds to wait for the lock before doing something else


def main() -> None:
    django.setup()
    tell("ready")
    for line in sys.stdin:
        work(**json.loads(line))
        tell("done")


def work(show: int, until: float, *, locked: bool, freeze_at: float | None) -> None:
    """Sell until the time is over; freeze once, in the first sale after `freeze_at`."""
    while (now := time.monotonic()) < until:
        freeze = freeze_at is not None and now >= freeze_at
        if not locked:
            sell_without_lock(show)
        elif sell(show, freeze=freeze) and freeze:
            freeze_at = None
        time.sleep(random.uniform(0.01, 0.05))  # until the next customer comes


def sell(show: int, *, freeze: bool) -> bool:
    """Sell one seat under the lock and the fence; False if we did not get the lock."""
    from example_project.box_office.models import Show

    try:
        with redlock(f"show:{show}", ttl=TTL, wait=WAIT) as lease:
            entered = time.monotonic()
            over = entered + lease.remaining()
            tell("entered", fence=lease.fence)

            claimed = Show.objects.claim(show, lease.fence)
            sold = Show.objects.sold(show)
            think()
            if freeze:
                tell("frozen")
                os.kill(os.getpid(), signal.SIGSTOP)
            written = claimed and Show.objects.write(show, lease.fence, sold=sold + 1)

            left = time.monotonic()
            if lease.remaining() <= 0:  # whatever came later, we were not the holder any more
                left = min(left, over)
    except LockTaken:
        tell("taken")  # somebody has it: an answer, so come back later
        return False
    except NodesUnavailable:
        tell("unavailable")  # nobody knows who has it: come back later, and tell an operator
        return False
    tell("sold" if written else "refused", fence=lease.fence, entered=entered, left=left)
    return True


def sell_without_lock(show: int) -> None:
    from example_project.box_office.models import Show

    entered = time.monotonic()
    sold = Show.objects.sold(show)
    think()
    Show.objects.filter(pk=show).update(sold=sold + 1)
    tell("sold", fence=0, entered=entered, left=time.monotonic())


def think() -> None:
    time.sleep(random.uniform(0.005, 0.02))


def tell(event: str, **facts: float) -> None:
    line = json.dumps({"office": int(sys.argv[1]), "event": event, **facts})
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


if __name__ == "__main__":
    main()

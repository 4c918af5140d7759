"""A process that adds to counters, each addition under a lock of its own; see ``counters``.

Every attempt is in the process's journal before it begins and when it has ended. A write goes into
the ledger in the transaction that adds, so what was added is known whenever the process is killed.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.fencing.outside import set_up

if TYPE_CHECKING:
    from django_redlock.leases.lease import Lease

ORDERS = "FENCING_ORDERS"
TOGETHER = 0.25  # of the attempts claim and read in the transaction that writes
BEGAN, HOLDS, DONE = "began", "holds", "done"
TAKEN, STALE, LOST, FAILED = "taken", "stale", "lost", "failed"


class Orders(NamedTuple):
    """What such a process does.

    Attributes:
        process: its name, which no other has.
        journal: a file that it alone writes.
        stop: a file; when it is there, the process ends.
        hot: how many of the counters half of the attempts are about.
        fenced: whether it claims the rows; without, it relies on the lock.
        ttl: of its locks, in seconds.
        long: share of the attempts that hold for longer, so that the lease must be renewed.
    """

    process: str
    journal: str
    stop: str
    seed: str
    counters: int
    hot: int
    fenced: bool
    ttl: float
    long: float


def attempt(orders: Orders, draw: random.Random, note: Any, number: int) -> None:
    """Add to a counter, once, and write down how that went."""
    from django.db import OperationalError

    from django_redlock import LeaseLost, LockTaken, NodesUnavailable, redlock
    from django_redlock.fencing import StaleFence

    key = draw.randint(1, orders.hot if draw.random() < 0.5 else orders.counters)
    hold = orders.ttl * draw.uniform(1.2, 2) if draw.random() < orders.long else 0.0
    together, wait = draw.random() < TOGETHER, draw.choice((0.0, 0.5))
    note(BEGAN, number, key)
    start = time.monotonic()
    try:
        with redlock(f"counter:{key}", ttl=orders.ttl, wait=wait) as lease:
            note(HOLDS, number, key)
            start = time.monotonic()
            add(orders, lease, key, number, hold, together=together)
        note(DONE, number, key, round(time.monotonic() - start, 3))
    except LockTaken:
        note(TAKEN, number, key)
    except StaleFence:
        note(STALE, number, key)
    except (LeaseLost, NodesUnavailable):
        note(LOST, number, key)
    except OperationalError as error:  # a deadlock, or a lock that was waited for in vain
        note(FAILED, number, key, str(error))


def add(
    orders: Orders, lease: Lease, key: int, number: int, hold: float, *, together: bool
) -> None:
    """Read, hold for so many seconds, and write one more, with an entry in the ledger."""
    from django.db import transaction

    from django_redlock.fencing import fenced
    from tests.fencing.tables import Counter, Entry

    rows: Any = Counter.objects.filter(pk=key)
    with transaction.atomic() if together else nullcontext():
        if orders.fenced:
            rows = fenced(lease, rows)
        else:
            lease.ensure()
        value = rows.get().value
        if hold and not together:
            time.sleep(hold)
        with transaction.atomic():
            rows.update(value=value + 1)
            Entry.objects.create(counter=key, process=orders.process, number=number)


def main() -> int:
    """Add until the file is there that says stop."""
    set_up()
    orders = Orders(**json.loads(os.environ[ORDERS]))
    draw, stop, number = random.Random(orders.seed), Path(orders.stop), 0
    journal = os.open(orders.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(*words: object) -> None:
        os.write(journal, (json.dumps(words) + "\n").encode())  # a killed process keeps nothing

    while not stop.exists():
        number += 1
        attempt(orders, draw, note, number)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Enqueue tasks: ``python -m tests.tasks.asking TASK COUNT KEYS SEED PAUSE``, or TASK and a key.

It prints the ids of what was enqueued, or of what is in its place.
"""

from __future__ import annotations

import random
import sys
import time

import django
from django.tasks import Task

django.setup()

from tests.tasks import work


def main(name: str, times: str, keys: str = "", seed: str = "0", pause: str = "0") -> None:
    """Enqueue; who asks has a run that begins later than this."""
    task: Task = getattr(work, name)
    chance = random.Random(seed)
    wanted = [f"k{chance.randrange(int(keys))}" for _ in range(int(times))] if keys else [times]
    for key in wanted:
        work.note("asked", key)
        print(task.enqueue(key).id, flush=True)
        time.sleep(float(pause))


main(*sys.argv[1:])

"""Locks of a fresh process on a machine that is busy with other things; run by test_busy.

    python -m dev.soak.faults.busy --runs 500

Each run connects anew to five healthy nodes, at the default NODE_TIMEOUT, and takes 1,000 locks in
as many tasks, or 200 in ten threads; beside it four processes do nothing but work. The client gives
way to all others, so that its nodes get the processor whatever else runs here. Prints a line
for each run in which a lock was refused, and at the end one line of JSON: no lock may be refused.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from dev.soak import verdict
from dev.soak.verdict import Played
from django_redlock import LockTaken, NodesUnavailable
from django_redlock.locks.template import LockTemplate
from tests.support.loops import group_of, template, unguarded

NODE_TIMEOUT = 0.05  # seconds: the default
TASKS = 1000
THREADS, TURNS = 10, 20
HOGS = 4
NICER = 5  # of 19: the client gives way to all else


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Run so many processes that do nothing but work."""
    work = [sys.executable, "-c", "while True: pass"]
    hogs = [subprocess.Popen(work) for _ in range(count)]
    try:
        yield
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def in_a_loop(redlock: LockTemplate) -> Counter[str]:
    """Take a lock in each of very many tasks; why any was refused."""
    refused: Counter[str] = Counter()

    async def turn(number: int) -> None:
        try:
            async with redlock(f"task:{number}"):
                pass
        except (LockTaken, NodesUnavailable) as error:
            refused[str(error)] += 1

    async def main() -> None:
        await asyncio.gather(*map(turn, range(TASKS)))

    asyncio.run(main())
    return refused


def in_threads(redlock: LockTemplate) -> Counter[str]:
    """Take locks in a few threads; why any was refused."""
    refused: Counter[str] = Counter()

    def work(thread: int) -> None:
        for turn in range(TURNS):
            try:
                with redlock(f"thread:{thread}:{turn}"):
                    pass
            except (LockTaken, NodesUnavailable) as error:
                refused[str(error)] += 1

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return refused


def main() -> int:
    """Run it so often, in turns by tasks and by threads."""
    parser = verdict.parser("dev.soak.faults.busy", __doc__)
    parser.add_argument("--runs", type=int, default=500)
    runs: int = parser.parse_args().runs
    logging.getLogger("django_redlock").setLevel(logging.ERROR)
    failed, seconds = 0, []
    with unguarded(5) as nodes, busy(HOGS):
        os.nice(NICER)  # of this process: that is busy, and the nodes are well
        for number in range(runs):
            group = group_of(nodes.urls, NODE_TIMEOUT)
            began = time.monotonic()
            way = in_threads if number % 2 else in_a_loop
            refused = way(template(group, ttl=60))
            seconds.append(time.monotonic() - began)
            group.close()
            if refused:
                failed += 1
                print(f"run {number}, {way.__name__}: {refused.most_common(3)}", flush=True)
    median = round(statistics.median(seconds), 3)
    print(json.dumps({"runs": runs, "failed": failed, "median seconds": median}))
    wrong = [f"locks were refused in {failed} runs"] * bool(failed)
    return verdict.end(wrong, Played(len(seconds), runs, "runs"))


if __name__ == "__main__":
    sys.exit(main())

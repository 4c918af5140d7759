"""Very many of Django's own tasks for few keys, by workers that are killed.

    make soak ARGS=tasks                                    2,000 tasks of 200 keys, 20 kills
    make soak ARGS="tasks --tasks 400 --keys 40 --kills 4"

No two bodies of a key run at a time, and after each request a run of its key begins.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Final

from dev.soak import verdict
from dev.soak.verdict import Played
from django_redlock.testing import EmbeddedNodes
from tests.support.waiting import in_time
from tests.tasks.site import LONG, Site, faults

TTL: Final = 2
WORKERS: Final = 3


def storm(
    site: Site,
    task: str,
    *,
    processes: int,
    each: int,
    names: int,
    kills: int,
    seconds: float = 10 * LONG,
) -> list[str]:
    """Many enqueue few keys, and workers are killed; what is wrong in the end, or when it ended."""
    late = time.monotonic() + seconds
    wrong: list[str] = []

    def until(condition: Callable[[], object]) -> bool:
        return in_time(condition, max(0.0, late - time.monotonic()))

    with ExitStack() as stack:
        workers = [stack.enter_context(site.worker()) for _ in range(WORKERS)]
        askers = [
            site.start("-m", "tests.tasks.asking", task, str(each), str(names), str(seed))
            for seed in range(processes)
        ]
        for number in range(kills):
            least = (number + 1) * names // (kills + 1)  # each name has a run at least
            if not until(lambda: count(site, "begun") >= least):  # noqa: B023
                break
            pid, name = workers.pop(0)
            site.kill(pid, name, time.monotonic())
            workers.append(stack.enter_context(site.worker()))
        until(lambda: all(asker.poll() is not None for asker in askers))
        for asker in askers:
            asker.kill()
            asker.communicate()
            if asker.returncode > 0:  # not by us
                wrong.append(f"who enqueues ended with {asker.returncode}")
        over = until(lambda: not site.unfinished())
    return wrong + faults(site.events(), site.killed, over=over)


def count(site: Site, event: str) -> int:
    """How often this was noted."""
    return sum(each.event == event for each in site.events())


def keys(nodes: EmbeddedNodes, kind: str) -> set[bytes]:
    """The keys of a kind on all nodes."""
    found: set[bytes] = set()
    for node in nodes:
        with closing(node.client()) as client:
            found.update(client.scan_iter(f"redlock:{kind}:*"))
    return found


def main() -> int:
    """Play it, and judge what was noted."""
    parser = verdict.parser("dev.soak.tasks.storm", __doc__)
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--keys", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=8, help="that enqueue")
    parser.add_argument("--seconds", type=float, default=10 * LONG, help="it ends then")
    chosen = parser.parse_args()
    each = chosen.tasks // chosen.processes
    with tempfile.TemporaryDirectory() as home, EmbeddedNodes(3) as nodes:
        site = Site(Path(home), nodes.settings(MAX_TTL=TTL, NODE_TIMEOUT=10, RESTART_GUARD=False))
        wrong = storm(
            site,
            "locked",
            processes=chosen.processes,
            each=each,
            names=chosen.keys,
            kills=chosen.kills,
            seconds=chosen.seconds,
        )
        left = site.unfinished()
        if not left:
            wrong += [f"{key!r} is left" for key in sorted(keys(nodes, "mark"))]
        counts = Counter(event.event for event in site.events())
    print(f"{dict(counts)}, {len(site.killed)} workers killed, {left} tasks left")
    asked = each * chosen.processes
    return verdict.end(
        wrong,
        Played(counts["asked"], asked, "tasks"),
        Played(asked - left, asked, "tasks that are over"),
        Played(len(site.killed), chosen.kills, "kills"),
    )


if __name__ == "__main__":
    sys.exit(main())

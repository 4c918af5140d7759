"""How much more than a plain lock does one cost of which k may be held, and are its slots busy?

    python -m dev.benchmarks.limited
    python -m dev.benchmarks.limited --limit 32 --rounds 20

The two are taken and released in turns, on five nodes of this machine, so that what else the
machine does meets both. ``python -m dev.soak.faults.crowding --calm 10 --hold 0.1`` tells how busy
the slots are.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import django
from django.conf import settings

from django_redlock.testing import EmbeddedNodes

MOST = 1.2  # times a plain lock
BLOCK = 100  # pairs of acquire and release


def main() -> int:
    """Measure, and say whether it is more than ``MOST``."""
    parser = argparse.ArgumentParser(prog="python -m dev.benchmarks.limited")
    parser.add_argument("--limit", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    with EmbeddedNodes(5) as nodes:
        settings.configure(REDLOCK={"default": nodes.settings(RESTART_GUARD=False)})
        django.setup()
        from django_redlock import redlock

        plain = redlock.using(renew=False)
        limited = plain.using(limit=options.limit)
        seconds: dict[str, list[float]] = {"plain": [], "limited": []}
        for number in range(options.rounds + 1):
            for kind, template in (("plain", plain), ("limited", limited)):
                start = time.perf_counter()
                for _ in range(BLOCK):
                    with template("benchmark"):
                        pass
                if number:  # the first one warms up
                    seconds[kind].append((time.perf_counter() - start) / BLOCK)
    each = {kind: statistics.median(found) for kind, found in seconds.items()}
    ratio = each["limited"] / each["plain"]
    print(
        f"plain {each['plain'] * 1e6:.0f} us, one of {options.limit} "
        f"{each['limited'] * 1e6:.0f} us: {ratio:.2f} times"
    )
    return ratio > MOST


if __name__ == "__main__":
    sys.exit(main())

"""What it costs one process to keep 10,000 leases alive: a share of a core, messages per node.

    python -m benchmarks.parts.renewal [--leases N] [--ttl S] [--seconds S] [--asyncio] [--json]

The processor time is that of the whole process, which does nothing else meanwhile. What the
nodes were asked is counted by the nodes themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import closing

from benchmarks.clients import ASYNCIO, THREADS
from benchmarks.result import Result
from benchmarks.stage import Stage
from benchmarks.turns import spread
from django_redlock.backend import Backend
from django_redlock.core.policy import Policy
from django_redlock.leases.lease import Lease
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.address import from_url
from django_redlock.nodes.group import NodeGroup
from django_redlock.testing import EmbeddedNodes

PREFIX = "renewal:"
AT_ONCE = 10  # tasks that acquire
GOAL = 0.15  # of a core, for 10,000 leases with a ttl of 30 s


def main() -> int:
    """Measure, print, and say whether the goal was met; the exit code is 0 either way."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.parts.renewal", description=__doc__)
    parser.add_argument("--leases", type=int, default=10_000)
    parser.add_argument("--ttl", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, default=20.0, help="to measure for")
    parser.add_argument("--asyncio", action="store_true", help="the timer of a loop, not a thread")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with EmbeddedNodes(5) as nodes:
        figures = renewal(
            nodes, options.leases, options.ttl, options.seconds, in_loop=options.asyncio
        )
    if options.json:
        print(json.dumps(figures, indent=2))
        return 0
    for name, value in figures.items():
        print(f"{name:36} {value:10.3f}")
    share = figures["share of a core"]
    print(f"goal: at most {GOAL} of a core: {'met' if share <= GOAL else 'MISSED'}")
    return 0


def part(stage: Stage) -> Result:
    """The part of `make bench`: the thread, then the timer of a loop."""
    effort = stage.effort
    result = Result(
        f"Renewal of {effort.leases:,} held leases, ttl {effort.ttl:g} s",
        "Processor time is that of the whole process, which does nothing else meanwhile.",
    )
    for each in (THREADS, ASYNCIO):
        found = renewal(
            stage.nodes, effort.leases, effort.ttl, effort.renewing, in_loop=each is ASYNCIO
        )
        lost = int(found.pop("leases lost"))
        result.rows.append({"": each.label, **found, "failed": f"{lost} lost" if lost else "0"})
        share = spread([found["share of a core"]])
        rate = effort.leases * 3 / effort.ttl  # each is due every third of its ttl
        result.figures[f"{rate:,.0f} leases renewed a second, {each.style}: share of a core"] = (
            share
        )
    return result


def renewal(
    nodes: EmbeddedNodes,
    leases: int = 10_000,
    ttl: float = 30.0,
    seconds: float = 20.0,
    *,
    in_loop: bool = False,
) -> dict[str, float]:
    """Hold so many leases, spread evenly over the time between two renewals, and measure."""
    urls = nodes.urls
    group = NodeGroup([from_url(url) for url in urls], timeout=0.5, guard=0, prefix=PREFIX)
    backend = Backend("renewal", group, Policy(size=len(urls), max_ttl=ttl, prefix=PREFIX), ttl=ttl)
    redlock = LockTemplate(lambda _: backend)
    with closing(group):
        if in_loop:
            return asyncio.run(_in_loop(redlock, nodes, leases, ttl, seconds))
        held: list[Lease] = []
        start = time.monotonic()
        for number in range(leases):
            time.sleep(max(0.0, start + number * ttl / 3 / leases - time.monotonic()))
            held.append(redlock(f"name:{number}").acquire())
        before = _now(nodes)
        time.sleep(seconds)
        figures = _figures(before, _now(nodes), held)
        _let_go(held, nodes)
        return figures


async def _in_loop(
    redlock: LockTemplate, nodes: EmbeddedNodes, leases: int, ttl: float, seconds: float
) -> dict[str, float]:
    held: list[Lease] = []
    start = time.monotonic()
    for first in range(0, leases, AT_ONCE):
        await asyncio.sleep(max(0.0, start + first * ttl / 3 / leases - time.monotonic()))
        numbers = range(first, min(first + AT_ONCE, leases))
        held += await asyncio.gather(*(redlock(f"name:{number}").aacquire() for number in numbers))
    before = await asyncio.to_thread(_now, nodes)
    await asyncio.sleep(seconds)
    figures = _figures(before, await asyncio.to_thread(_now, nodes), held)
    _let_go(held, nodes)
    return figures


def _let_go(held: Sequence[Lease], nodes: EmbeddedNodes) -> None:
    """End renewal and belief, then delete all keys: to release them one by one takes longer."""
    for lease in held:
        if lease.held:
            lease.handle()
    for node in nodes:
        with closing(node.client(socket_timeout=30)) as client:
            client.unlink(*client.scan_iter(f"{PREFIX}*", count=1000))


def _now(nodes: EmbeddedNodes) -> tuple[float, float, float, float]:
    """The time, the processor time, and what each node did so far: scripts, keys prolonged."""
    scripts = prolonged = 0
    for node in nodes:
        with closing(node.client(socket_timeout=30)) as client:
            stats = client.info("commandstats")
            scripts += stats.get("cmdstat_evalsha", {}).get("calls", 0)
            prolonged += stats.get("cmdstat_pexpire", {}).get("calls", 0)
    count = len(nodes.urls)
    return time.monotonic(), time.process_time(), scripts / count, prolonged / count


def _figures(
    before: Sequence[float], after: Sequence[float], held: Sequence[Lease]
) -> dict[str, float]:
    seconds, cpu, messages, prolonged = (b - a for a, b in zip(before, after, strict=True))
    return {
        "share of a core": cpu / seconds,
        "leases renewed per second": prolonged / seconds,
        "messages per node and second": messages / seconds,
        "leases per message": prolonged / max(1, messages),
        "leases lost": float(sum(lease.lost for lease in held)),
        "least time left, seconds": min(lease.remaining() for lease in held),
    }


if __name__ == "__main__":
    sys.exit(main())

"""What does it cost one process to keep leases alive: a share of a core, messages per node?

    python -m benchmarks.renewal [--leases N] [--ttl S] [--seconds S] [--asyncio]

The processor time is that of the whole process, which does nothing else meanwhile. What the
nodes were asked is counted by the nodes themselves.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import django
from django.conf import settings
from django.test import override_settings

from django_redlock.testing import EmbeddedNodes

from .clients import ASYNCIO, THREADS, Client
from .measure import Result, spread
from .stage import FULL, NODES, Stage

PREFIX = "renewal:"
GOAL = 0.15  # of a core, for 10,000 leases with a ttl of 30 s


def renewal(stage: Stage, clients: Sequence[Client] = (THREADS, ASYNCIO)) -> Result:
    """Hold leases, spread evenly over the time between two renewals: by a thread, by a loop."""
    leases, ttl = stage.effort.leases, stage.effort.ttl
    result = Result(
        f"Renewal of {leases:,} held leases, ttl {ttl:g} s",
        "Processor time is that of the whole process, which does nothing else meanwhile.",
    )
    alias = stage.alias | {"KEY_PREFIX": PREFIX, "MAX_TTL": ttl, "TTL": ttl, "NODE_TIMEOUT": 0.5}
    for each in clients:
        with override_settings(REDLOCK={"default": alias | {"RESTART_GUARD": False}}):
            row = (_by_tasks if each is ASYNCIO else _by_threads)(stage)
        for node in stage.nodes:  # to release the leases one by one takes longer
            with closing(node.client(socket_timeout=30)) as client:
                client.unlink(*client.scan_iter(f"{PREFIX}*", count=1000))
        result.rows.append({"": each.label, **row})
        rate = f"{leases * 3 / ttl:,.0f} leases renewed a second"  # each every third of its ttl
        share = spread([row["share of a core"]])
        result.figure(f"{rate}, {each.style}: share of a core", share, most=GOAL)
    return result


def _by_threads(stage: Stage) -> dict[str, Any]:
    from django_redlock import redlock

    leases, held, begin = stage.effort.leases, [], time.monotonic()
    for number in range(leases):
        when = begin + number * stage.effort.ttl / 3 / leases
        time.sleep(max(0.0, when - time.monotonic()))
        held.append(redlock(f"name:{number}").acquire())
    return _counted(stage, held, time.sleep)


def _by_tasks(stage: Stage) -> dict[str, Any]:
    from django_redlock import redlock

    leases, held, begin = stage.effort.leases, [], time.monotonic()

    async def take() -> None:
        for number in range(leases):
            when = begin + number * stage.effort.ttl / 3 / leases
            await asyncio.sleep(max(0.0, when - time.monotonic()))
            held.append(await redlock(f"name:{number}").aacquire())

    with asyncio.Runner() as runner:
        runner.run(take())
        return _counted(stage, held, lambda seconds: runner.run(asyncio.sleep(seconds)))


def _counted(stage: Stage, held: Sequence[Any], sleep: Callable[[float], object]) -> dict[str, Any]:
    """What the renewal takes of a core and of the nodes; then nobody believes in the leases."""
    before, start, worked = _counts(stage), time.monotonic(), time.process_time()
    sleep(stage.effort.renewing)
    seconds, worked = time.monotonic() - start, time.process_time() - worked
    messages, renewed = (
        (now - then) / seconds for now, then in zip(_counts(stage), before, strict=True)
    )
    lost, left = sum(lease.lost for lease in held), min(lease.remaining() for lease in held)
    for lease in held:
        if lease.held:
            lease.handle()
    return {
        "share of a core": worked / seconds,
        "leases renewed per second": renewed,
        "messages per node and second": messages,
        "leases per message": renewed / messages if messages else None,
        "least time left, seconds": left,
        "failed": f"{lost} lost" if lost else "0",
    }


def _counts(stage: Stage) -> tuple[float, float]:
    """Scripts that a node has run so far, and keys that they prolonged, in the mean."""
    found = []
    for node in stage.nodes:
        with closing(node.client(socket_timeout=30)) as client:
            found.append(client.info("commandstats"))
    scripts, prolonged = (
        sum(each.get(f"cmdstat_{kind}", {}).get("calls", 0) for each in found) / len(found)
        for kind in ("evalsha", "pexpire")
    )
    return scripts, prolonged


def main() -> None:
    """Measure one way, and print what was found beside the goal."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.renewal", description=__doc__)
    parser.add_argument("--leases", type=int, default=10_000)
    parser.add_argument("--ttl", type=float, default=30.0)
    parser.add_argument("--seconds", type=float, default=20.0, help="to measure for")
    parser.add_argument("--asyncio", action="store_true", help="the timer of a loop, not a thread")
    asked = parser.parse_args()
    settings.configure(INSTALLED_APPS=["django_redlock"], REDLOCK={})
    django.setup()
    effort = FULL._replace(leases=asked.leases, ttl=asked.ttl, renewing=asked.seconds)
    with EmbeddedNodes(NODES) as nodes:
        result = renewal(Stage(nodes, effort), [ASYNCIO if asked.asyncio else THREADS])
    for name, value in result.rows[0].items():
        print(f"{name:36} {value:10.3f}" if isinstance(value, float) else f"{name:36} {value}")
    print(f"goal: at most {GOAL} of a core: {next(iter(result.figures.values())).verdict}")


if __name__ == "__main__":
    main()

"""What does it cost one process to keep leases alive: a share of a core, messages per node?

The processor time is that of the whole process, which does nothing else meanwhile. What the
nodes were asked is counted by the nodes themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from django.test import override_settings

from .clients import ASYNCIO, THREADS
from .measure import Result, spread
from .stage import Stage

PREFIX = "renewal:"


def renewal(stage: Stage) -> Result:
    """Hold leases, spread evenly over the time between two renewals: by a thread, by a loop."""
    leases, ttl = stage.effort.leases, stage.effort.ttl
    result = Result(
        f"Renewal of {leases:,} held leases, ttl {ttl:g} s",
        "Processor time is that of the whole process, which does nothing else meanwhile.",
    )
    alias = stage.alias | {"KEY_PREFIX": PREFIX, "MAX_TTL": ttl, "TTL": ttl, "NODE_TIMEOUT": 0.5}
    for each, by in ((THREADS, _by_threads), (ASYNCIO, _by_tasks)):
        with override_settings(REDLOCK={"default": alias | {"RESTART_GUARD": False}}):
            row = by(stage)
        for node in stage.nodes:  # to release the leases one by one takes longer
            with closing(node.client(socket_timeout=30)) as client:
                client.unlink(*client.scan_iter(f"{PREFIX}*", count=1000))
        result.rows.append({"": each.label, **row})
        rate = f"{leases * 3 / ttl:,.0f} leases renewed a second"  # each every third of its ttl
        share = spread([row["share of a core"]])
        result.figure(f"{rate}, {each.style}: share of a core", share, most=0.15)
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

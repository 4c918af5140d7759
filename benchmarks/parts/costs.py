"""The part about the nodes: what a held lock weighs there, and what a lock makes them do."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any, NamedTuple

import redis

from benchmarks.clients import LOCKS, PLAIN, SOCKETS
from benchmarks.processes import Processes
from benchmarks.result import Result
from benchmarks.stage import Stage
from benchmarks.turns import Spread, failures

HELD = 1000


class Meter(NamedTuple):
    """Counters of a server, or what they rose by."""

    memory: float
    messages: float
    received: float
    sent: float
    processor: float  # microseconds, of the thread that serves
    evals: float
    scripts: float  # microseconds, in scripts

    @classmethod
    def read(cls, client: redis.Redis) -> Meter:
        """As they stand now."""
        info: Mapping[str, Any] = client.info("everything")
        evaluated = info.get("cmdstat_evalsha", {"calls": 0, "usec": 0})
        seconds = info["used_cpu_user_main_thread"] + info["used_cpu_sys_main_thread"]
        return cls(
            info["used_memory"],
            info["total_reads_processed"],
            info["total_net_input_bytes"],
            info["total_net_output_bytes"],
            seconds * 1e6,
            evaluated["calls"],
            evaluated["usec"],
        )

    def since(self, earlier: Meter, own: Meter) -> Meter:
        """The rise, without what reading the counters itself adds."""
        return Meter(
            *(now - then - read for now, then, read in zip(self, earlier, own, strict=True))
        )


class Watch:
    """One node's counters, read again and again."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        nothing = Meter(0, 0, 0, 0, 0, 0, 0)
        first, second = Meter.read(client), Meter.read(client)
        self._own = second.since(first, nothing)._replace(memory=0)
        self._last = Meter.read(client)

    def lap(self) -> Meter:
        """What the counters rose by since the last time."""
        now = Meter.read(self._client)
        risen = now.since(self._last, self._own)
        self._last = now
        return risen


def held(stage: Stage) -> Result:
    """A thousand locks that are held: their weight, and their way in and out."""
    from django.test import override_settings

    from django_redlock import redlock

    result = Result(
        "One held lock, on each node",
        f"Means over {HELD} locks of our threads API that are held at one time.",
    )
    node = stage.nodes[0]
    names = [f"bench:held:{number:04}" for number in range(HELD)]
    patient = stage.alias | {"NODE_TIMEOUT": 2}  # bytes are counted here, not time
    quiet = redlock.using(renew=False)
    with (
        override_settings(REDLOCK={"default": patient}),
        closing(node.client(socket_timeout=30)) as client,
    ):
        for name in names:  # connections, counters and buffers are there from now on
            quiet(name).acquire().release()
        watch = Watch(client)
        leases = [quiet(name).acquire() for name in names]
        taken = watch.lap()
        key = client.memory_usage(f"redlock:lock:{names[0]}", samples=0)
        watch.lap()
        for lease in leases:
            lease.release()
        freed = watch.lap()
    rows = {
        "bytes of memory": taken.memory / HELD,
        "of these, in the lock's key (MEMORY USAGE)": key,
        "bytes of memory that stay after the release": (taken.memory + freed.memory) / HELD,
        "messages to acquire": taken.messages / HELD,
        "messages to release": freed.messages / HELD,
        "scripts to acquire": taken.evals / HELD,
        "µs in the script to acquire": taken.scripts / HELD,
        "µs in the script to release": freed.scripts / HELD,
    }
    result.rows = [{"": what, "measured": value} for what, value in rows.items()]
    for what in ("messages to acquire", "messages to release"):
        value = rows[what]
        assert value is not None
        result.figures[f"{what}, to each node"] = Spread(value, value, value)
    return result


def traffic(stage: Stage) -> Result:
    """What acquire + release cost a node, for everybody."""
    result = Result("Acquire + release, for one node")
    count = max(20, 5 * stage.effort.pairs)
    with (
        Processes(stage, (PLAIN, SOCKETS, *LOCKS)) as processes,
        closing(stage.nodes[0].client(socket_timeout=30)) as client,
    ):
        for each in processes.present:
            processes.block(each, count // 5)
            watch = Watch(client)
            block = processes.block(each, count)
            risen = watch.lap()
            result.rows.append(
                {
                    "": each.label,
                    "messages": risen.messages / count,
                    "bytes received": risen.received / count,
                    "bytes sent": risen.sent / count,
                    "node's processor, µs": risen.processor / count,
                    "client's processor, µs": block.processor * 1e6 / count,
                    "failed": failures([block]),
                }
            )
    result.missing, result.versions = processes.missing, processes.versions
    return result

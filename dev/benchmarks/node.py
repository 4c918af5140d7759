"""What does a lock cost a node?"""

from __future__ import annotations

from contextlib import closing

import redis

from .clients import LOCKS, PLAIN, SOCKETS, Processes
from .measure import Result, Spread, failures
from .stage import Stage

HELD = 1000
Meter = dict[str, float]


def held(stage: Stage) -> Result:
    """A thousand locks that are held: their weight, and their way in and out."""
    from django.test import override_settings

    from django_redlock import redlock

    result = Result(
        "One held lock, on each node",
        f"Means over {HELD} locks of our threads API that are held at one time.",
    )
    names = [f"bench:held:{number:04}" for number in range(HELD)]
    patient = stage.alias | {"NODE_TIMEOUT": 2}  # bytes are counted here, not time
    quiet = redlock.using(renew=False)
    with (
        override_settings(REDLOCK={"default": patient}),
        closing(stage.nodes[0].client(socket_timeout=30)) as client,
    ):
        for name in names:  # connections, counters and buffers are there from now on
            quiet(name).acquire().release()
        watch = Watch(client)
        leases = [quiet(name).acquire() for name in names]
        taken = watch.lap(HELD)
        key = client.memory_usage(f"redlock:lock:{names[0]}", samples=0)
        watch.lap(HELD)
        for lease in leases:
            lease.release()
        freed = watch.lap(HELD)
    rows = {
        "bytes of memory": taken["memory"],
        "of these, in the lock's key (MEMORY USAGE)": key,
        "bytes of memory that stay after the release": taken["memory"] + freed["memory"],
        "messages to acquire": taken["messages"],
        "messages to release": freed["messages"],
        "scripts to acquire": taken["evals"],
        "µs in the script to acquire": taken["scripts"],
        "µs in the script to release": freed["scripts"],
    }
    result.rows = [{"": what, "measured": value} for what, value in rows.items()]
    for what, value in (("acquire", taken["messages"]), ("release", freed["messages"])):
        figure = f"messages to {what}, to each node"
        result.figure(figure, Spread(value, value, value), most=1)
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
            risen = watch.lap(count)
            result.rows.append(
                {
                    "": each.label,
                    "messages": risen["messages"],
                    "bytes received": risen["received"],
                    "bytes sent": risen["sent"],
                    "node's processor, µs": risen["processor"],
                    "client's processor, µs": block.processor * 1e6 / count,
                    "failed": failures([block]),
                }
            )
        processes.tell(result)
    return result


class Watch:
    """The counters of one node, read again and again."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        first, second = self._read(), self._read()
        self._own = {what: second[what] - first[what] for what in first} | {"memory": 0.0}
        self._last = self._read()

    def lap(self, count: int) -> Meter:
        """What the counters rose by since the last time, without the reading itself, by so many."""
        now, then = self._read(), self._last
        self._last = now
        return {what: (now[what] - then[what] - self._own[what]) / count for what in now}

    def _read(self) -> Meter:
        info = self._client.info("everything")
        evaluated = info.get("cmdstat_evalsha", {"calls": 0, "usec": 0})
        seconds = info["used_cpu_user_main_thread"] + info["used_cpu_sys_main_thread"]
        return {
            "memory": info["used_memory"],
            "messages": info["total_reads_processed"],
            "received": info["total_net_input_bytes"],
            "sent": info["total_net_output_bytes"],
            "processor": seconds * 1e6,  # of the thread that serves
            "evals": evaluated["calls"],
            "scripts": evaluated["usec"],
        }

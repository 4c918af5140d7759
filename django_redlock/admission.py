"""Whether a node may vote: what its INFO says, and how long it must still be mistrusted.

A node that lost its data would grant a name that somebody still holds. So a node younger than
the longest lease (and the clocks' disagreement) has no vote: ``MAX_TTL + CLOCK_SKEW + 1 s``,
the last because uptime is told in whole seconds. This is the "delayed restart" of "Distributed
Locks with Redis" (redis.io), made a rule of the client. A replica may lag behind its master
and a promoted one may have lost writes, so neither votes; a cluster node moves keys.

Read once per connection: a connection cannot outlive the process it reached.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

UPTIME: Final = re.compile(r"-?[0-9]{1,15}")  # and nothing that float() knows as well, as "nan"
LONGEST: Final = 100  # characters of a name that is kept and shown


class Facts(NamedTuple):
    """What a node says of itself.

    Attributes:
        run_id: new at every start of the server.
        software: name and version, e.g. ``valkey 9.1.2``.
        uptime: seconds, as told when the connection was opened.
        role: ``master`` or ``slave``.
        promoted: whether it was a replica once and holds a replica's data.
        cluster: whether it runs in cluster mode.
    """

    run_id: str
    software: str
    uptime: float
    role: str
    promoted: bool
    cluster: bool


def parse(info: bytes) -> Facts:
    """Read the server and replication sections of INFO.

    Raises:
        ValueError: it does not look like INFO of a Redis or Valkey server.
    """
    lines = info.decode("utf-8", "replace").splitlines()
    told = dict(line.split(":", 1) for line in lines if ":" in line)
    try:
        if not UPTIME.fullmatch(told["uptime_in_seconds"]) or len(told["run_id"]) > LONGEST:
            raise ValueError  # noqa: TRY301 - told below
        version = told.get("valkey_version") or told["redis_version"]
        mode = told.get("redis_mode") or told.get("server_mode", "standalone")
        return Facts(
            run_id=told["run_id"],
            software=f"{told.get('server_name', 'redis')} {version}"[:LONGEST],
            uptime=float(told["uptime_in_seconds"]),
            role=told["role"],
            promoted=told.get("second_repl_offset", "-1") != "-1",
            cluster=mode == "cluster",
        )
    except (KeyError, ValueError):
        msg = "its INFO is not that of a Redis or Valkey server"
        raise ValueError(msg) from None


def objection(facts: Facts) -> str:
    """Why this node can never vote as it is, or ""."""
    if facts.cluster:
        return "is a cluster node; Redlock needs independent masters"
    if facts.role != "master":
        return "is a replica; Redlock needs independent masters"
    if facts.promoted:
        return "is a promoted replica and may lack what its master had granted"
    return ""


def age(facts: Facts, earlier: Facts | None) -> float:
    """Seconds the node has surely been up; 0 when its own count cannot be right."""
    if facts.uptime < 0:
        return 0.0
    if earlier and earlier.run_id == facts.run_id and facts.uptime < earlier.uptime - 1:
        return 0.0  # the count went back: the node's clock was set
    return facts.uptime


def guard_left(age: float, guard: float) -> float:
    """Seconds until a node of this age may vote."""
    return max(0.0, guard - age)

"""Decide whether a node may vote, by its INFO and its clock, and how long the restart guard lasts.

A node that lost its data would grant a name that is still held. So a node younger than
the longest lease (and the clocks' disagreement) has no vote: ``MAX_TTL + CLOCK_SKEW + 1 s``,
the last because uptime is told in whole seconds. This is the "delayed restart" of "Distributed
Locks with Redis" (redis.io), made a rule of the client. A replica may lag behind its master
and a promoted one may have lost writes, so neither votes; a cluster node moves keys. With FAILOVER
a promoted one counts as emptied when a client first meets it (``admit.lua``): what its master had
granted is over when the guard is.

A node measures its age by its wall clock. A node that boots with a slow clock, which NTP then sets,
seems to be older than it is. So a node has no vote while its clock and this machine's disagree,
nor for the guard's seconds after its clock was seen to be set.

This is done once per connection. A connection cannot outlive the process that it reached, but its
role: a master that becomes a replica keeps its connections, has the other's data from then on, and
may be promoted again. So each grant compares the history of the server with that of the handshake
(``ServerInfo.history``); ``dev/models/failover.py`` searches it.
"""

from __future__ import annotations

import math
import re
from typing import Final, NamedTuple

from django_redlock.core.reasons import Reason, ReasonCode, because

from .faults import Refused

UPTIME: Final = re.compile(r"-?[0-9]{1,15}")  # float() would read more, e.g. "nan"
REPLID: Final = re.compile(r"[0-9a-f]{40}")
LONGEST: Final = 100  # characters of a name that is kept and shown
SKEW: Final = 5.0  # seconds: half of CLOCK_SKEW's default; the tokens need the other half
LEAST_SKEW: Final = 0.05  # NTP keeps machines nearer together; a smaller bound refuses healthy ones
RATE: Final = 0.01  # by which a node's clock may run faster than ours, twenty times NTP's slewing
LOOK_AGAIN: Final = 2.0  # seconds until a node whose clock disagreed is looked at again


class ServerInfo(NamedTuple):
    """What a node says of itself.

    Attributes:
        run_id: new at every start of the server.
        software: name and version, e.g. ``valkey 9.1.2``.
        uptime: seconds, as told when the connection was opened.
        role: ``master`` or ``slave``.
        promoted: whether it was a replica once and has a replica's data. A server forgets that
            when it has had no replica for its repl-backlog-ttl.
        replid: the id of its data's history, new at each promotion; "" if it tells none.
        cluster: whether it runs in cluster mode.
        clock: its wall clock, seconds since 1970.
        asked: on ``boottime``, before it was asked for that.
        alive: on ``boottime``, when its process was last known to live.
        young_at: on ``boottime``, before which it may have lost every grant: it was started after
            that, or its clock was set.
        off: seconds that its clock is ahead of this machine's (negative: behind), if that is more
            than may be; else 0.
    """

    run_id: str
    software: str
    uptime: float
    role: str
    promoted: bool
    cluster: bool
    replid: str = ""
    clock: float = math.nan
    asked: float = -math.inf
    alive: float = -math.inf
    young_at: float = -math.inf
    off: float = 0.0

    @property
    def history(self) -> str:
        """Return the id of its data's history if it was promoted; else "".

        Not of others: that of a master is new when it gets its first replica, which takes no grant.
        """
        return self.replid if self.promoted else ""


class Look(NamedTuple):
    """A look at a node's wall clock.

    Attributes:
        clock: what it says, seconds since 1970.
        sent, came: this machine's wall clock before the request and after the reply.
        asked, heard: ``boottime`` at these moments.
    """

    clock: float
    sent: float
    came: float
    asked: float
    heard: float


def skew_of(clock_skew: float) -> float:
    """Return by how many seconds a node's clock may differ from ours; CLOCK_SKEW 0: any number."""
    return max(clock_skew / 2, LEAST_SKEW) if clock_skew else math.inf


def parse(info: bytes) -> ServerInfo:
    """Read the server and replication sections of INFO.

    Raises:
        Refused: it does not look like INFO of a Redis or Valkey server.
    """
    rows = info.decode("utf-8", "replace").splitlines()
    facts = dict(row.split(":", 1) for row in rows if ":" in row)
    try:
        if not UPTIME.fullmatch(facts["uptime_in_seconds"]) or len(facts["run_id"]) > LONGEST:
            raise ValueError  # noqa: TRY301 - caught below
        version = facts.get("valkey_version") or facts["redis_version"]
        mode = facts.get("redis_mode") or facts.get("server_mode", "standalone")
        replid = facts.get("master_replid", "")
        if mode == "sentinel":  # it has no role
            raise Refused(because(ReasonCode.SENTINEL))
        return ServerInfo(
            run_id=facts["run_id"],
            software=f"{facts.get('server_name', 'redis')} {version}"[:LONGEST],
            uptime=float(facts["uptime_in_seconds"]),
            role=facts["role"],
            promoted=facts.get("second_repl_offset", "-1") != "-1",
            cluster=mode == "cluster",
            replid=replid if REPLID.fullmatch(replid) else "",
        )
    except (KeyError, ValueError):
        raise Refused(because(ReasonCode.STRANGE_INFO)) from None


def objection(facts: ServerInfo, *, failover: bool, only_node_of: str = "") -> Reason | None:
    """Return why this node can never vote as it is, or None.

    Args:
        failover: whether a promoted replica may vote when the restart guard is over.
        only_node_of: the alias whose single node it is: the sentence then names that setting.
    """
    if facts.cluster:
        return because(ReasonCode.CLUSTER)
    if facts.role != "master":
        return because(ReasonCode.REPLICA)
    if not facts.promoted or (failover and facts.replid):
        return None
    if only_node_of:
        return because(ReasonCode.PROMOTED, single_node_of=only_node_of)
    return because(ReasonCode.PROMOTED)


def clock_of(answer: object) -> float:
    """Read the reply to TIME.

    Raises:
        Refused: it has another form.
    """
    try:
        if isinstance(answer, list):
            seconds, micro = map(int, answer)
            return seconds + micro / 1_000_000
    except (TypeError, ValueError, OverflowError):
        pass
    raise Refused(because(ReasonCode.STRANGE_TIME))


def seen(facts: ServerInfo, look: Look, earlier: ServerInfo | None, skew: float) -> ServerInfo:
    """Return ``facts`` with what the clock tells, compared with an earlier connection."""
    facts = facts._replace(
        clock=look.clock, asked=look.asked, alive=look.asked, off=_off(look, skew)
    )
    if earlier is None:
        return facts
    if earlier.run_id != facts.run_id:
        return facts._replace(young_at=earlier.alive)
    if _was_set(facts, look, earlier, skew):
        return facts._replace(young_at=look.heard)
    return facts._replace(young_at=earlier.young_at)


def _off(look: Look, skew: float) -> float:
    """Return by how much the clock is wrong; the node read it between our two moments."""
    first, last = sorted((look.sent, look.came))
    if look.clock < first - skew:
        return look.clock - first
    if look.clock > last + skew:
        return look.clock - last
    return 0.0


def _was_set(facts: ServerInfo, look: Look, earlier: ServerInfo, skew: float) -> bool:
    """Tell whether a process's clock went back, or ahead by more than the time that passed.

    A clock that is set forward ends locks before their time, so the node may have forgotten some.
    """
    if facts.uptime < earlier.uptime - 1:
        return True
    passed = look.heard - earlier.asked  # at the most
    return facts.clock - earlier.clock > passed * (1 + RATE) + skew


def age(facts: ServerInfo, now: float) -> float:
    """Return the seconds that the node has surely been up; 0 if its own count must be wrong."""
    return max(0.0, min(facts.uptime, now - facts.young_at))


def guard_left(age: float, guard: float) -> float:
    """Return the seconds until a node of this age may vote."""
    return max(0.0, guard - age)


def wrong_clock(off: float, skew: float) -> Reason:
    """Return the reason of a node whose clock and this machine's disagree."""
    return because(ReasonCode.CLOCK, seconds=abs(off), skew=skew)


def guarded(left: float, only_node_of: str = "") -> Reason:
    """Return the reason of a node under the restart guard.

    Args:
        only_node_of: the alias whose single node it is: the sentence then names the setting that
            turns the guard off.
    """
    if only_node_of:
        return because(ReasonCode.RESTART_GUARD, seconds=left, only_node_of=only_node_of)
    return because(ReasonCode.RESTART_GUARD, seconds=left)


def duplicated(first: str) -> Reason:
    """Return the reason of a node that is listed twice."""
    return because(ReasonCode.DUPLICATE, first=first)

"""Whether a node may vote: what its INFO says, and how long it must still be mistrusted.

A node that lost its data would grant a name that somebody still holds. So a node younger than
the longest lease (and the clocks' disagreement) has no vote: ``MAX_TTL + CLOCK_SKEW + 1 s``,
the last because uptime is told in whole seconds. This is the "delayed restart" of "Distributed
Locks with Redis" (redis.io), made a rule of the client. A replica may lag behind its master
and a promoted one may have lost writes, so neither votes; a cluster node moves keys.

A node measures its age by its wall clock. One that boots with a slow clock, which NTP then sets,
seems to be older than it is. So a node has no vote while its clock and this machine's disagree,
nor for the guard's seconds after its clock was seen to be set.

Read once per connection: a connection cannot outlive the process it reached.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

UPTIME: Final = re.compile(r"-?[0-9]{1,15}")  # and nothing that float() knows as well, as "nan"
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
        promoted: whether it was a replica once and holds a replica's data.
        cluster: whether it runs in cluster mode.
        clock: its wall clock, seconds since 1970.
        asked: on ``boottime``, before it was asked for that.
        alive: on ``boottime``, when its process was last known to live.
        young_at: on ``boottime``, when it can have had nothing that was granted before, as far as
            we know: it had been started since, or its clock been set.
        off: seconds that its clock is ahead of this machine's (negative: behind), if that is more
            than may be; else 0.
    """

    run_id: str
    software: str
    uptime: float
    role: str
    promoted: bool
    cluster: bool
    clock: float = math.nan
    asked: float = -math.inf
    alive: float = -math.inf
    young_at: float = -math.inf
    off: float = 0.0


class Look(NamedTuple):
    """A look at a node's wall clock.

    Attributes:
        clock: what it says, seconds since 1970.
        sent, came: this machine's wall clock before the question and after the answer.
        asked, heard: ``boottime`` at these moments.
    """

    clock: float
    sent: float
    came: float
    asked: float
    heard: float


def skew_of(clock_skew: float) -> float:
    """Seconds by which a node's clock may differ from this machine's; CLOCK_SKEW 0: any number."""
    return max(clock_skew / 2, LEAST_SKEW) if clock_skew else math.inf


def parse(info: bytes) -> ServerInfo:
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
        return ServerInfo(
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


def objection(facts: ServerInfo) -> str:
    """Why this node can never vote as it is, or ""."""
    if facts.cluster:
        return "is a cluster node; Redlock needs independent masters"
    if facts.role != "master":
        return "is a replica; Redlock needs independent masters"
    if facts.promoted:
        return "is a promoted replica and may lack what its master had granted"
    return ""


def clock_of(answer: object) -> float:
    """Read the answer to TIME.

    Raises:
        ValueError: it is not one.
    """
    try:
        if isinstance(answer, list):
            seconds, micro = map(int, answer)
            return seconds + micro / 1_000_000
    except (TypeError, ValueError, OverflowError):
        pass
    msg = "its TIME is not that of a Redis or Valkey server"
    raise ValueError(msg)


def seen(facts: ServerInfo, look: Look, earlier: ServerInfo | None, skew: float) -> ServerInfo:
    """Add what its clock tells, beside what the node told at an earlier connection."""
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
    """By how much the clock is wrong; the node read it at some moment between the two of ours."""
    first, last = sorted((look.sent, look.came))
    if look.clock < first - skew:
        return look.clock - first
    if look.clock > last + skew:
        return look.clock - last
    return 0.0


def _was_set(facts: ServerInfo, look: Look, earlier: ServerInfo, skew: float) -> bool:
    """Whether the clock of one process went back, or ahead by more than the time that passed.

    A clock that is set forward ends locks before their time, so the node may have forgotten some.
    """
    if facts.uptime < earlier.uptime - 1:
        return True
    passed = look.heard - earlier.asked  # at the most
    return facts.clock - earlier.clock > passed * (1 + RATE) + skew


def age(facts: ServerInfo, now: float) -> float:
    """Seconds the node has surely been up; 0 when its own count cannot be right."""
    return max(0.0, min(facts.uptime, now - facts.young_at))


def guard_left(age: float, guard: float) -> float:
    """Seconds until a node of this age may vote."""
    return max(0.0, guard - age)


def ours_off(offs: Sequence[float], majority: int, skew: float) -> float:
    """Seconds that this machine's clock is ahead of the nodes' (negative: behind); 0 if it is not.

    It is the wrong one if a majority, of more than one node, disagrees with it alike.

    Args:
        offs: by how much each node's clock is ahead; 0: it agrees, or nobody knows.
    """
    wrong = sorted(off for off in offs if off)
    for low, high in zip(wrong, wrong[max(2, majority) - 1 :], strict=False):
        if low * high > 0 and high - low <= 2 * skew:
            return -(low + high) / 2
    return 0.0


def wrong_clock(off: float, ours: float, skew: float) -> str:
    """Why a node has no vote whose clock disagrees with this machine's."""
    if ours:
        return f"this machine's clock is {_apart(ours)} most nodes' clocks: let NTP set it"
    told = f"its clock is {_apart(off)} this machine's"
    return f"{told}: let NTP set the wrong one (CLOCK_SKEW allows {skew:g} s)"


def _apart(off: float) -> str:
    return f"{abs(off):.1f} s {'ahead of' if off > 0 else 'behind'}"

"""What the lock does not promise to bear: worlds outside the contract, in which it does break.

Each limit is a pair of profiles that differ in one circumstance: outside, a promise must be
seen broken within ``worlds`` worlds; inside, no promise is, in ``as_many``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from .checker import Broken, Violation
from .profiles import MAX_TTL, SKEW, Profile, profile
from .world import World


@dataclass(frozen=True, slots=True)
class Limit:
    """A line that the contract draws.

    Attributes:
        outside, inside: the worlds on either side of it.
        breaks: what is seen outside.
        worlds: within how many worlds it must be seen.
        as_many: so many worlds inside must show nothing.
    """

    name: str
    outside: Profile
    inside: Profile
    breaks: Broken
    worlds: int
    as_many: int = 60


EXPIRING: Final = replace(profile("expiring"), loss=0.0, seconds=2.0)
RESTARTS: Final = replace(profile("restarts"), clients=(3, 5), restarts=1.0, flush=0.0)
HELD: Final = replace(
    profile("rough"), clients=(3, 5), names=1, many=0.0, seconds=2.0, hold=0.9, think=0.01
)
BOOTING: Final = replace(profile("booting"), think=0.02)
FORGETFUL: Final = replace(RESTARTS, nodes=(1, 1, 3), hows=("empty",), think=0.01)
SKEWED: Final = replace(
    FORGETFUL,
    name="skewed",
    about="Counters are lost, and wall clocks go wrong by up to 10 × `CLOCK_SKEW` while "
    "connections are open.",
    wall=10 * SKEW,
)
PAUSED: Final = replace(HELD, clients=(2, 4), pause=0.15, wait=(0.5,), give=0.0)
AWAY: Final = replace(profile("minority"), name="majority-away", reachable=False)

LIMITS: Final = (
    Limit(
        "drift",
        replace(
            EXPIRING, name="drifting", about="Rates of clocks are wrong by up to 3 %.", rate=0.03
        ),
        replace(
            EXPIRING,
            name="drift-allowed",
            about="Rates of clocks are wrong by up to 0.5 %: a client's and a node's by 1 %.",
            rate=0.005,
        ),
        Broken.ALONE,
        20,
    ),
    Limit(
        "guard",
        replace(
            RESTARTS,
            name="unguarded",
            about="Nodes lose their data again and again, and vote at once.",
            hows=("empty",),
            guard=0.0,
        ),
        replace(
            RESTARTS,
            name="amnesia",
            about="Nodes lose their data again and again, and the guard is on.",
            hows=("empty",),
        ),
        Broken.ALONE,
        20,
    ),
    Limit(
        "short-guard",
        replace(
            RESTARTS,
            name="guarded-too-short",
            about="Several nodes lose their data, and the guard is a quarter of the longest ttl.",
            hows=("empty",),
            guard=MAX_TTL / 4,
        ),
        replace(
            RESTARTS,
            name="guarded",
            about="Several nodes lose their data, and the guard is as long as the longest ttl.",
            hows=("empty",),
            guard=MAX_TTL * 1.01,
            wall=0.0,
        ),
        Broken.ALONE,
        120,
    ),
    Limit(
        "boot",
        replace(
            BOOTING,
            name="booting-with-data",
            about="Nodes restart with an old snapshot that has our mark, and their slow clocks are "
            "set before anybody looks.",
            hows=("stale",),
        ),
        replace(
            BOOTING,
            name="booting-empty",
            about="They restart empty, and their slow clocks are set before or after.",
        ),
        Broken.ALONE,
        60,
    ),
    Limit(
        "clock-jump",
        replace(
            HELD,
            name="jumping",
            about="Clocks of nodes are set forward while a lock is held.",
            jumps=0.5,
            jump=(0.3, 1.0),
        ),
        replace(
            HELD,
            name="jumping-fenced",
            about="The same, looked at for fencing only.",
            jumps=0.5,
            jump=(0.3, 1.0),
            exclusive=False,
        ),
        Broken.ALONE,
        20,
    ),
    Limit(
        "vanishing",
        replace(
            HELD,
            name="vanishing",
            about="Keys are evicted or deleted by hand.",
            vanish=0.5,
        ),
        replace(
            HELD,
            name="vanishing-fenced",
            about="The same, looked at for fencing only.",
            vanish=0.5,
            exclusive=False,
        ),
        Broken.ALONE,
        20,
    ),
    Limit(
        "skew",
        SKEWED,
        replace(
            FORGETFUL,
            name="skew-allowed",
            about="Counters are lost, and wall clocks disagree by half of `CLOCK_SKEW` at most.",
            wall=SKEW / 4,
        ),
        Broken.TOKENS,
        150,
    ),
    Limit(
        "skew-kept",
        SKEWED,
        replace(
            FORGETFUL,
            name="counters-kept",
            about="Wall clocks are as wrong, and nodes restart with their counters.",
            wall=10 * SKEW,
            hows=("with data",),
        ),
        Broken.TOKENS,
        150,
    ),
    Limit(
        "paused",
        replace(
            PAUSED,
            name="paused",
            about="Holders are suspended between the look at their lease and their write.",
            row="naive",
        ),
        replace(
            PAUSED,
            name="paused-claiming",
            about="The same, and they claim the row with their fence, as in the README.",
            row="claimed",
        ),
        Broken.UPDATE,
        80,
    ),
    Limit(
        "paused-refusing",
        replace(
            PAUSED,
            name="paused-refusing",
            about="The same, and the row only refuses to be written with a lower fence.",
            row="refusing",
        ),
        replace(
            PAUSED,
            name="paused-claimed",
            about="The same, and they claim the row when they enter.",
            row="claimed",
        ),
        Broken.UPDATE,
        300,
    ),
    Limit(
        "majority-away",
        replace(
            AWAY,
            about="A majority of the nodes hangs or is down: nobody gets a lock.",
            absent="majority",
            reachable=True,
        ),
        replace(AWAY, name="minority-away", about="A minority is away.", reachable=True),
        Broken.OUTAGE,
        1,
    ),
)


def limit(name: str) -> Limit:
    """The limit of this name."""
    return next(limit for limit in LIMITS if limit.name == name)


def cross(limit: Limit, first: int = 0) -> tuple[int, Violation] | None:
    """After how many worlds outside the promise was broken, and how; None: it was not."""
    for count in range(1, limit.worlds + 1):
        try:
            World(first + count - 1, limit.outside).run()
        except Violation as violation:
            if violation.promise is limit.breaks:
                return count, violation
    return None

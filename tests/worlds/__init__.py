"""Worlds: a seeded simulation that drives the production algorithm through every misfortune.

    profile (here)  what may go wrong in a world, and how often
    network         nodes that restart, connections that delay and lose
    client          what a user of locks does, as a generator on top of the algorithm's
    world           virtual time, and the driver: it pauses, cancels and kills
    checker         what must be true after every event
    mutants         broken variants of the production code; each must be caught

A world is a function of its profile and its seed; a failing one prints how to play it again.
``python -m tests.worlds`` plays worlds and prints how soon each mutant is caught.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NODE_TIMEOUT: Final = 0.05  # seconds


@dataclass(frozen=True, slots=True)
class Profile:
    """What may go wrong in a world. Times in seconds, ``loss`` … as probabilities per message.

    Attributes:
        seconds: how long the world lasts.
        latency: mean time of one message.
        slow: probability that a message takes up to ``slowest`` instead.
        twice: probability that a request arrives a second time; no TCP does that, but the
            fencing argument claims not to need TCP.
        pause: probability that a client stands still at a step, for up to ``longest`` seconds.
        cancel, die: probability that an acquisition is cancelled, that a holder disappears.
        restarts: mean time between restarts of a node; 0 is never.
        wall: how far wall clocks may be wrong, either way.
        wishes: whether clients propose the time as a number at all. Without, numbers are small
            and close together, and only counting keeps them apart.
        ahead: how far one client's may be ahead, beyond all allowance.
        rate: how far rates of clocks may be wrong, either way.
        trusted: whether clocks can be relied on. If not, nodes' clocks jump and clients' stand
            nearly still: then only fencing is promised, and no counter is ever lost.
        think, hold: longest times between turns and of a hold, the latter in ttls.
        wait: what clients give ``acquire``.
        ttls: what clients choose from.
        extend, give, rest: probability that a holder prolongs, gives away, releases to a rest.
        names: how many names there are; pairs of them share a counter.
        many: probability of locking two names at once.
    """

    name: str
    nodes: tuple[int, ...] = (1, 2, 3, 3, 4, 5, 5, 6, 7)
    clients: tuple[int, int] = (2, 6)
    seconds: float = 3.0
    latency: float = 0.003
    slow: float = 0.04
    slowest: float = 0.4
    loss: float = 0.02
    twice: float = 0.0
    pause: float = 0.04
    longest: float = 0.6
    cancel: float = 0.08
    die: float = 0.01
    restarts: float = 0.0
    flush: float = 0.0
    wall: float = 0.04
    wishes: bool = True
    ahead: float = 0.0
    rate: float = 0.004
    trusted: bool = True
    think: float = 0.06
    hold: float = 0.4
    wait: tuple[float, ...] = (0.0, 0.1, 0.5)
    ttls: tuple[float, ...] = (0.2, 0.4, 0.8)
    extend: float = 0.3
    give: float = 0.08
    rest: float = 0.08
    names: int = 3
    many: float = 0.15

    @property
    def guard(self) -> float:
        """Seconds without a vote after a start: the longest ttl, the clocks' disagreement."""
        return MAX_TTL + SKEW


MAX_TTL: Final = 0.8
SKEW: Final = 0.2
SLACK: Final = 0.1

PROFILES: Final = (
    Profile("rough"),
    Profile("calm", seconds=1.5, latency=0.001, slow=0.0, loss=0.0, pause=0.0, cancel=0.0, die=0.0),
    Profile("restarts", seconds=4.0, restarts=1.5, flush=0.3, names=1, ttls=(0.4, 0.8)),
    Profile(
        "contended",
        nodes=(2, 3, 4, 5),
        clients=(4, 6),
        seconds=2.0,
        names=1,
        many=0.0,
        think=0.01,
        hold=0.1,
        wait=(0.1, float("inf")),
        wall=0.0005,
    ),
    Profile(
        "handovers",
        nodes=(1, 2, 3, 4, 5),
        names=1,
        many=0.0,
        give=0.5,
        extend=0.4,
        think=0.03,
        loss=0.05,
    ),
    Profile(
        "expiring",  # nobody releases early: the next holder comes right when the lease ends
        nodes=(1, 2, 3),
        clients=(3, 4),
        latency=0.0002,
        slow=0.0,
        pause=0.02,
        die=0.7,
        names=1,
        many=0.0,
        think=0.01,
        hold=1.5,
        wait=(float("inf"),),
        ttls=(0.8,),
        extend=0.1,
        give=0.0,
        rest=0.0,
        cancel=0.0,
    ),
    Profile(
        "tenacious",  # holders prolong again and again, through a bad network
        nodes=(3, 4, 5),
        clients=(4, 5),
        names=1,
        many=0.0,
        think=0.01,
        hold=0.9,
        wait=(0.5,),
        ttls=(0.1, 0.2, 0.3),
        extend=0.8,
        give=0.0,
        rest=0.3,
        loss=0.15,
        slow=0.15,
        slowest=0.15,
        pause=0.06,
        longest=0.2,
        cancel=0.02,
    ),
    Profile(
        "crowded",  # two pairs of names on two counters, all the time
        clients=(4, 6),
        seconds=2.0,
        names=4,
        many=0.4,
        think=0.01,
        hold=0.1,
        wait=(0.0, 0.3),
        wall=0.0,
        loss=0.05,
        slow=0.1,
    ),
    Profile("ahead", seconds=4.0, restarts=1.2, ahead=50.0, names=1, ttls=(0.2, 0.4)),
    Profile(
        "wishless",
        nodes=(3, 4, 5),
        clients=(3, 5),
        seconds=2.0,
        wishes=False,
        names=3,
        think=0.01,
        hold=0.1,
        many=0.3,
        loss=0.15,
        slow=0.1,
        slowest=0.1,
    ),
    Profile(
        "clockless",  # keys expire long before their owners think so
        nodes=(3,),
        clients=(2, 3),
        seconds=1.0,
        trusted=False,
        wishes=False,
        twice=0.9,
        latency=0.002,
        slow=0.05,
        slowest=0.05,
        pause=0.4,
        longest=0.08,
        names=1,
        many=0.0,
        think=0.003,
        hold=0.0,
        ttls=(0.01, 0.02),
        loss=0.05,
        cancel=0.0,
        give=0.0,
        extend=0.0,
        rest=0.0,
        wait=(0.5,),
    ),
)


def profile(name: str) -> Profile:
    """The profile of this name."""
    return next(profile for profile in PROFILES if profile.name == name)

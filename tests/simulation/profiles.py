"""What may go wrong in a world, and how often: all that the lock promises to bear."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

NODE_TIMEOUT: Final = 0.05  # seconds, as all of these
MAX_TTL: Final = 0.8
SKEW: Final = 0.2
SLACK: Final = 0.1
SOON: Final = 0.2  # a reservation and a few messages; less than waiting.LOOK_EVERY
LATE: Final = 1.3  # a look, and node timeouts


@dataclass(frozen=True, slots=True)
class Profile:
    """What may go wrong in a world. Times in seconds, ``loss`` … as probabilities per message.

    Attributes:
        about: the kind of worlds, in words.
        seconds: how long the world lasts.
        latency: mean time of one message.
        slow: probability that a message takes up to ``slowest`` instead.
        twice: probability that a request arrives a second time; no TCP does that, but the
            argument claims not to need TCP.
        slip: probability that an answer is left unread, so that the next question on its
            connection meets it: the connection is one answer out of step.
        pause: probability that a client stands still at a step, for up to ``longest`` seconds.
        cancel, die: probability that an acquisition is cancelled, that a holder disappears.
        absent: how many nodes hang or are down from beginning to end: ``minority``,
            ``majority`` or none.
        reachable: whether no client may ever be told that a majority could not be asked.
        restarts: mean time between restarts of a node; 0 is never.
        rolling: seconds after which the next node restarts empty, one after the other; 0 is never.
        flush: the part of these that empties the node and leaves it running.
        hows: what a restart may leave of the data.
        boots: how far behind a node's clock may be after a restart, until it is set right; then
            handshakes compare clocks. 0: clocks are right whenever a connection is opened.
        guard: for how long a node that was restarted or emptied has no vote.
        vanish: mean time between losses of one key, which nobody notices; 0 is never.
        wall: how far wall clocks may be wrong, either way.
        steps: mean time until a client's wall clock is set anew; 0 is never.
        jumps: mean time between jumps of a node's clock; 0 is never.
        jump: how far it jumps, at least and at most.
        wishes: whether clients propose the time as a number at all. Without, numbers are small
            and close together, and only counting keeps them apart.
        ahead: how far one client's wall clock may be ahead, beyond all allowance.
        rate: how far rates of clocks may be wrong, either way; a third is as wrong as may be.
        trusted: whether clients' clocks run at all like the world's. If not, they nearly stand
            still: the machine gets no time, so its owner believes for too long.
        exclusive: whether two holders are a violation. Without, only fencing is promised.
        think, hold: longest times between turns and of a hold, the latter in ttls.
        wait: what clients give ``acquire``.
        ttls: what clients choose from.
        extend, give, rest: probability that a holder prolongs, gives away, releases to a rest.
        names: how many names there are; pairs of them share a counter.
        many: probability of locking two names at once.
        row: how holders change what the name stands for: ``naive``, ``refusing`` lower fences
            on writes, or ``claimed`` at entry; "": they do not.
        limit: how many may hold a name at a time; 0: it is a plain lock.
        threads: how many clients share a process.
        dies_waiting: probability that one who stands in a queue dies there.
        stalls: mean time until the node of a queue hangs, for up to ``stall``; 0 is never.
        foreign: whether another program takes names, too.
        revokes: mean time until somebody takes a name away; 0 is never.
        deletes: probability that this deletes the key at once, as ``--now`` does.
        patience: longest time for which a name may be free while somebody waits; 0: no matter.
        orderly: by how much one who came later may have stood there less long and be served; 0:
            no matter.
    """

    name: str
    about: str
    nodes: tuple[int, ...] = (1, 2, 3, 3, 4, 5, 5, 6, 7)
    clients: tuple[int, int] = (2, 8)
    seconds: float = 3.0
    latency: float = 0.003
    slow: float = 0.04
    slowest: float = 0.4
    loss: float = 0.02
    twice: float = 0.0
    slip: float = 0.0
    pause: float = 0.04
    longest: float = 0.6
    cancel: float = 0.08
    die: float = 0.01
    absent: str = ""
    reachable: bool = False
    restarts: float = 0.0
    rolling: float = 0.0
    flush: float = 0.0
    hows: tuple[str, ...] = ("with data", "stale", "empty")
    boots: float = 0.0
    guard: float = MAX_TTL + SKEW
    vanish: float = 0.0
    wall: float = 0.04
    steps: float = 0.0
    jumps: float = 0.0
    jump: tuple[float, float] = (-0.5, 1.0)
    wishes: bool = True
    ahead: float = 0.0
    rate: float = 0.004
    trusted: bool = True
    exclusive: bool = True
    think: float = 0.06
    hold: float = 0.4
    wait: tuple[float, ...] = (0.0, 0.1, 0.5)
    ttls: tuple[float, ...] = (0.2, 0.4, 0.8)
    extend: float = 0.3
    give: float = 0.08
    rest: float = 0.08
    names: int = 3
    many: float = 0.15
    row: str = ""
    limit: int = 0
    threads: int = 1
    dies_waiting: float = 0.0
    stalls: float = 0.0
    stall: float = 0.6
    foreign: bool = False
    revokes: float = 0.0
    deletes: float = 0.0
    patience: float = 0.0
    orderly: float = 0.0


CALM: Final = Profile(
    "calm",
    "A network without faults. Nobody may be told of an outage.",
    clients=(2, 6),
    seconds=1.5,
    latency=0.001,
    slow=0.0,
    loss=0.0,
    pause=0.0,
    cancel=0.0,
    die=0.0,
    reachable=True,
)

TAKEN: Final[dict[str, Any]] = {
    "nodes": (1, 2, 3, 3, 5),
    "clients": (3, 5),
    "seconds": 2.0,
    "names": 2,
    "many": 0.2,
    "think": 0.02,
    "hold": 1.0,
    "wait": (0.5,),
    "ttls": (0.2, 0.4, 0.8),
    "extend": 0.8,
    "give": 0.1,
    "rest": 0.0,
    "loss": 0.08,
    "slow": 0.1,
    "cancel": 0.02,
}

PROFILES: Final = (
    Profile("rough", "Some of everything that a network and busy machines do.", seconds=2.0),
    CALM,
    Profile(
        "minority",
        "A minority of the nodes hangs or is down. Nobody may be told of an outage.",
        nodes=(3, 4, 5, 6, 7),
        seconds=1.0,
        latency=0.001,
        slow=0.0,
        loss=0.0,
        pause=0.0,
        cancel=0.0,
        die=0.0,
        absent="minority",
        reachable=True,
    ),
    Profile(
        "restarts",
        "Nodes restart with their data, an old snapshot or nothing, or are emptied.",
        clients=(2, 5),
        seconds=4.0,
        restarts=1.5,
        flush=0.3,
        names=1,
        ttls=(0.4, 0.8),
    ),
    Profile(
        "booting",
        "Nodes restart empty, with clocks that are up to 3 s behind and are set right soon.",
        nodes=(1, 1, 2, 3, 3),
        clients=(3, 4),
        seconds=4.0,
        restarts=2.0,
        hows=("empty",),
        boots=3.0,
        names=1,
        many=0.0,
        ttls=(0.8,),
        think=0.05,
        hold=0.9,
        wait=(0.0, 0.1),
    ),
    Profile(
        "contended",
        "All want the same name, all the time.",
        nodes=(2, 3, 4, 5),
        clients=(4, 8),
        seconds=1.5,
        names=1,
        many=0.0,
        think=0.01,
        hold=0.1,
        wait=(0.1, float("inf")),
        wall=0.0005,
    ),
    Profile(
        "handovers",
        "Half of the holders give their lease away, often to two takers.",
        clients=(2, 6),
        nodes=(1, 2, 3, 4, 5),
        names=1,
        many=0.0,
        seconds=2.0,
        give=0.5,
        extend=0.4,
        think=0.03,
        loss=0.05,
    ),
    Profile(
        "expiring",
        "Most holders die, and the next one comes at the moment when the lease ends.",
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
        "tenacious",
        "Holders prolong again and again, through a bad network.",
        nodes=(1, 2, 3),
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
        loss=0.1,
        slow=0.1,
        slowest=0.15,
        pause=0.15,
        longest=0.2,
        cancel=0.02,
    ),
    Profile(
        "crowded",
        "Two pairs of names on two counters, often locked together.",
        clients=(4, 8),
        seconds=1.5,
        names=4,
        many=0.4,
        think=0.01,
        hold=0.1,
        wait=(0.0, 0.3),
        wall=0.0,
        loss=0.05,
        slow=0.1,
    ),
    Profile(
        "ahead",
        "Nodes restart, and the wall clock of one client is 50 s ahead.",
        clients=(2, 5),
        seconds=4.0,
        restarts=1.2,
        ahead=50.0,
        names=1,
        ttls=(0.2, 0.4),
    ),
    Profile(
        "stepped",
        "Wall clocks of clients are set again and again, and machines are suspended.",
        clients=(3, 5),
        nodes=(1, 2, 3),
        seconds=2.0,
        steps=0.2,
        wall=0.5,
        pause=0.1,
        names=1,
        many=0.0,
        think=0.01,
        hold=1.2,
        wait=(float("inf"),),
        ttls=(0.4, 0.8),
    ),
    Profile(
        "repeated",
        "Requests arrive twice, the second time late.",
        clients=(2, 6),
        seconds=1.5,
        twice=0.3,
        loss=0.05,
        names=1,
        think=0.02,
        hold=0.3,
        many=0.0,
        give=0.2,
    ),
    Profile(
        "slipping",
        "Connections get out of step: a question meets the answer to another.",
        nodes=(1, 3, 3, 3),
        clients=(2, 4),
        seconds=2.0,
        latency=0.001,
        slow=0.0,
        pause=0.02,
        cancel=0.0,
        slip=0.25,
        names=1,
        many=0.0,
        think=0.01,
        hold=0.9,
        wait=(0.5,),
        loss=0.15,
        extend=0.8,
        give=0.0,
        rest=0.0,
        ttls=(0.1, 0.2, 0.3),
    ),
    Profile(
        "wishless",
        "Clients propose no number, so only counting keeps tokens apart.",
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
        "clockless",
        "Clocks cannot be relied on, most requests arrive twice; only fencing is promised.",
        nodes=(3,),
        clients=(2, 3),
        seconds=1.0,
        trusted=False,
        exclusive=False,
        jumps=0.5,
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
    Profile(
        "revoked",
        "Somebody takes locks away from holders that prolong, heal and hand over.",
        revokes=0.2,
        **TAKEN,
    ),
    Profile(
        "deleted",
        "The same, and keys are deleted at once: holders work on, on rows that they claim.",
        revokes=0.2,
        deletes=1.0,
        row="claimed",
        **TAKEN,
    ),
)


def profile(name: str) -> Profile:
    """The profile of this name."""
    return next(profile for profile in PROFILES if profile.name == name)

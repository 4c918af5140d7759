"""SET NX PX, one command for key and ttl: what Redis' documentation shows for one server."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

from dev.museum import faults
from dev.museum.cell import LOST, STUCK, TWO, Hold, Lock, Setup, client_of, fault, poll

if TYPE_CHECKING:
    from dev.museum.stage import Stage

# -- the recipes -----------------------------------------------------------------------------------

UNLOCK: Final = """
if redis.call("get", KEYS[1]) == ARGV[1] then
    return redis.call("del", KEYS[1])
end
return 0
"""


class SetDel:
    """SET NX PX to lock, DEL to unlock: the key of another client too."""

    def __init__(self, setup: Setup) -> None:
        self.redis = client_of(setup)
        self.key, self.ttl = setup.name, setup.milliseconds

    def acquire(self, wait: float) -> Hold | None:
        return poll(self.attempt, wait)

    def attempt(self) -> object:
        """Create the key with its ttl."""
        return self.redis.set(self.key, "locked", nx=True, px=self.ttl)

    def release(self) -> None:
        self.redis.delete(self.key)


class CompareAndDelete(SetDel):
    """SET NX PX with a random value, and a script that deletes the key only with that value."""

    def attempt(self) -> object:
        self.value = secrets.token_hex(16)
        return self.redis.set(self.key, self.value, nx=True, px=self.ttl)

    def release(self) -> None:
        """Delete the key if it is still our own."""
        self.redis.eval(UNLOCK, 1, self.key, self.value)


# -- a fault ---------------------------------------------------------------------------------------


@fault(ttl=faults.LONG, has_replica=True)
def failover(stage: Stage) -> None:
    """The master dies, and a replica that has everything takes its place."""
    first, second = stage.clients("AB")
    assert first.take(faults.SOON)
    first.read()
    stage.fail_over(is_lagging=False)
    faults.challenge(first, second)


# -- what is counted -------------------------------------------------------------------------------

DEL = Lock("set-del", "SET NX PX, then DEL", SetDel)
COMPARE = Lock("set-compare", "SET NX PX, compare and delete", CompareAndDelete)
NEVER_HEARD = "Replication is asynchronous: the new master has never heard of the key."
UNKNOWN = "The key is there, and no client knows that it has the lock, until the ttl is over."
CELLS = [
    *DEL.holds(*faults.USUAL),
    DEL.breaks(faults.paused, TWO, LOST, why=faults.NOT_TOLD),
    DEL.breaks(faults.late_release, TWO, LOST, why=faults.ANOTHERS),
    *COMPARE.holds(*faults.USUAL, faults.late_release, faults.clock_ahead, failover),
    COMPARE.breaks(faults.paused, TWO, LOST, why=faults.NOT_TOLD),
    COMPARE.breaks(faults.restarted, TWO, LOST, why=faults.FORGOTTEN),
    COMPARE.breaks(faults.failover_lagging, TWO, LOST, why=NEVER_HEARD),
    COMPARE.breaks(faults.lost_reply, STUCK, why=UNKNOWN),
]

"""SETNX, the first lock with Redis: the client that creates the key has the lock."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dev.museum import faults
from dev.museum.cell import LOST, STUCK, TWO, Hold, Lock, Setup, client_of, fault, poll

if TYPE_CHECKING:
    from dev.museum.stage import Stage

# -- the recipes -----------------------------------------------------------------------------------


class SetnxDel:
    """SETNX to lock, DEL to unlock. Nothing ends the lock of a client that died."""

    def __init__(self, setup: Setup) -> None:
        self.redis, self.key = client_of(setup), setup.name

    def acquire(self, wait: float) -> Hold | None:
        return poll(lambda: self.redis.setnx(self.key, 1), wait)

    def release(self) -> None:
        self.redis.delete(self.key)


class SetnxExpire(SetnxDel):
    """SETNX, and then EXPIRE, so that the lock of a client that died ends by itself."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self.point, self.seconds = setup.point, math.ceil(setup.ttl)

    def acquire(self, wait: float) -> Hold | None:
        """Create the key, and then say when it ends: two commands."""
        hold = super().acquire(wait)
        if hold is not None:
            self.point("between SETNX and EXPIRE")
            self.redis.expire(self.key, self.seconds)
        return hold


# -- a fault ---------------------------------------------------------------------------------------


@fault()
def killed_between(stage: Stage) -> None:
    """The holder is killed between SETNX and EXPIRE."""
    first, second = stage.clients("AB")
    first.halt_at("between SETNX and EXPIRE", "acquire", wait=faults.SOON)
    first.kill()
    second.take_a_turn(faults.SOON / 2)


# -- what is counted -------------------------------------------------------------------------------

DEL = Lock("setnx-del", "SETNX, then DEL", SetnxDel)
EXPIRE = Lock("setnx-expire", "SETNX, then EXPIRE", SetnxExpire)
UNKNOWN = "The server has made the key, and no client knows that it has the lock."
NO_EXPIRE = "The client does not know that it made the key, and sends no EXPIRE."
CELLS = [
    # Without a ttl it is safe as long as its server remembers, and waits as long as a holder does.
    *DEL.holds(faults.turns, faults.crowd, faults.paused, faults.clock_ahead),
    DEL.breaks(faults.killed, STUCK, why="Nobody deletes the key of a client that died."),
    DEL.breaks(faults.restarted, TWO, LOST, why=faults.FORGOTTEN),
    DEL.breaks(faults.lost_reply, STUCK, why=UNKNOWN),
    *EXPIRE.holds(*faults.USUAL),
    EXPIRE.breaks(
        killed_between, STUCK, why="The client died between two commands: its key has no ttl."
    ),
    EXPIRE.breaks(faults.paused, TWO, LOST, why=faults.NOT_TOLD),
    EXPIRE.breaks(faults.late_release, TWO, LOST, why=faults.ANOTHERS),
    EXPIRE.breaks(faults.lost_reply, STUCK, why=NO_EXPIRE),
]

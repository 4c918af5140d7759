"""SETNX with a time, and GETSET to take over: how locks got a ttl before SET could give one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from dev.museum import faults
from dev.museum.cell import LOST, STUCK, TWO, Hold, Lock, Setup, client_of, fault, poll

if TYPE_CHECKING:
    from dev.museum.stage import Stage

BETWEEN = "between GET and GETSET"

# -- the recipe ------------------------------------------------------------------------------------


class SetnxGetset:
    """The key's value is the time at which the lock ends, by the clock of the client that set it.

    A client that finds a time in the past writes its own with GETSET, which returns the value
    before. It has the lock if that is still the one that it found: nobody was faster.
    """

    def __init__(self, setup: Setup) -> None:
        self.redis = client_of(setup)
        self.key, self.ttl, self.point = setup.name, setup.ttl, setup.point

    def acquire(self, wait: float) -> Hold | None:
        return poll(self.attempt, wait)

    def attempt(self) -> bool:
        """Create the key, or take it over when its time has passed."""
        ends = time.time() + self.ttl
        if self.redis.setnx(self.key, ends):
            return True
        found = self.redis.get(self.key)
        if found is None or float(found) > time.time():
            return False
        self.point(BETWEEN)
        return bool(self.redis.getset(self.key, ends) == found)

    def release(self) -> None:
        self.redis.delete(self.key)


# -- the faults ------------------------------------------------------------------------------------


@fault()
def dies_ahead(stage: Stage) -> None:
    """A holder dies whose clock is 30 s ahead."""
    first, second = stage.client("A", ahead=faults.AHEAD), stage.client("B")
    assert first.take(faults.SOON)
    first.kill()
    second.take_a_turn(faults.SOON / 2)


@fault(ttl=2, patience=9)
def overwritten(stage: Stage) -> None:
    """A client that wants to take over is stopped before its GETSET.

    A dead client's time has passed. Another client is faster and has the lock when this one goes
    on, and writes the time that it made long ago.
    """
    dead, slow, fast = stage.clients("ABC")
    assert dead.take(faults.SOON)
    dead.kill()
    slow.halt_at(BETWEEN, "acquire", wait=faults.SOON)
    time.sleep(stage.ttl)  # the slower one's time passes too
    assert fast.take(faults.SOON)
    fast.read()
    slow.resume()
    if slow.has_it():
        slow.use()
        fast.write()
        slow.release()
    fast.release()


@fault(ttl=faults.LONG)
def three_at_once(stage: Stage) -> None:
    """Three want to take over a dead client's lock at once.

    All have found that its time has passed before one of them takes over.
    """
    dead, *waiters = stage.clients("ABCD")
    assert dead.take(faults.SOON)
    dead.kill()
    for waiter in waiters:
        waiter.ask("halt", at=BETWEEN)
        waiter.tell("work", times=1)
    for waiter in waiters:
        waiter.wait_until_stopped()
    for waiter in waiters:
        waiter.resume()
    for waiter in waiters:
        waiter.answer()


# -- what is counted -------------------------------------------------------------------------------

GETSET = Lock("setnx-getset", "SETNX with a time, and GETSET", SetnxGetset)
BY_ITS_CLOCK = "By the clock of the one that asks the holder's time has passed."
OFF = "The time that the dead client wrote is 30 s off by the clock of the others."
OVERWRITES = "A client that does not get the lock has overwritten the holder's time with its own."
CELLS = [
    *GETSET.holds(*faults.USUAL, three_at_once),
    GETSET.breaks(faults.paused, TWO, LOST, why=faults.NOT_TOLD),
    GETSET.breaks(faults.late_release, TWO, LOST, why=faults.ANOTHERS),
    GETSET.breaks(faults.clock_ahead, TWO, LOST, why=BY_ITS_CLOCK),
    GETSET.breaks(dies_ahead, STUCK, why=OFF),
    GETSET.breaks(overwritten, TWO, LOST, why=OVERWRITES),
]

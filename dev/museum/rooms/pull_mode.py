"""The pull-mode lock: a client asks again and again until its time is over.

It has five parameters: D, for how long a client asks; S, the pause between two tries; TTL; RN, the
name of the resource and so of the key; RV, a random value, the owner's. And, unnamed, a sixth: for
how long a client waits for a reply.
"""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

import redis

from dev.museum import faults, history
from dev.museum.cell import LOST, STARVED, STUCK, TWO, Hold, Lock, Setup, client_of, fault, poll

from .set_nx_px import UNLOCK

if TYPE_CHECKING:
    from dev.museum.stage import Stage

S = 0.1  # seconds

# -- the recipes -----------------------------------------------------------------------------------


class PullMode:
    """A SET whose reply does not come counts as a refusal, though the server may have done it."""

    def __init__(self, setup: Setup) -> None:
        self.redis = client_of(setup)
        self.setup, self.name = setup, setup.name

    def acquire(self, wait: float) -> Hold | None:
        """SET RN RV NX PX TTL, every S seconds, for D seconds."""
        self.value = secrets.token_hex(16)
        return poll(self.attempt, wait, S)

    def attempt(self) -> bool:
        px = self.setup.milliseconds
        try:
            return bool(self.redis.set(self.name, self.value, nx=True, px=px))
        except redis.TimeoutError:
            return self.is_ours()

    def is_ours(self) -> bool:
        """After a reply that did not come: another client's, it says."""
        return False

    def release(self) -> None:
        """Delete the key if its value is RV."""
        self.redis.eval(UNLOCK, 1, self.name, self.value)


class PullModeRecognising(PullMode):
    """After a reply that did not come it looks whether the key is its own; TTL counts from then."""

    def acquire(self, wait: float) -> Hold | None:
        hold = super().acquire(wait)
        return hold and Hold(time.monotonic() + self.setup.ttl)

    def is_ours(self) -> bool:
        self.setup.point("after a reply that did not come")
        return bool(self.redis.get(self.name) == self.value.encode())


# -- the faults ------------------------------------------------------------------------------------


@fault(ttl=faults.LONG)
def overtaken(stage: Stage) -> None:
    """Each time the lock is released the one that waits sleeps, and another one comes."""
    holder, newcomer, waiter = stage.clients("ABC")
    assert holder.take(faults.SOON)
    waiter.tell(
        "acquire", wait=faults.LONG / 2
    )  # it gives up long before the last holder's ttl is over
    stage.wait_for(lambda: stage.events()[-1].kind == history.ASKS, "C to ask")
    for _ in range(5):
        waiter.stop()  # as long as the hand-over takes: a sleep that no busy machine shortens
        holder.release()
        is_passed = newcomer.take()
        waiter.resume()
        if not is_passed:
            waiter.use_if_held()
            return
        holder, newcomer = newcomer, holder
    assert not waiter.has_it()
    holder.release()


@fault(ttl=faults.LONG)
def recognised_late(stage: Stage) -> None:
    """A reply is lost, and the client finds its own key when half of the ttl is over."""
    first, second = stage.client("A", is_proxied=True), stage.client("B")
    assert first.take_a_turn(faults.SOON)
    stage.lose_replies(first, [0])
    first.halt_at("after a reply that did not come", "acquire", wait=faults.SOON)
    server = stage.server()
    stage.wait_for(lambda: server.pttl("museum") < stage.ttl * 500, "half of the ttl to pass")
    first.resume()
    if first.has_it():
        first.read()
        assert second.take(faults.SOON)
        second.use()
        first.write()
        second.release()
        first.release()


# -- what is counted -------------------------------------------------------------------------------

PULL = Lock("pull-mode", "The pull-mode lock", PullMode)
RECOGNISING = Lock(
    "pull-recognising", "The pull-mode lock, which recognises its key", PullModeRecognising
)
NO_REFUSAL = "The client takes the timeout for a refusal, and waits for the end of its own key."
NO_QUEUE = "Nobody keeps the lock for a client that sleeps between two tries: who comes gets it."
COUNTED_LATE = "The server counts the ttl from the SET, and the client from when it found its key."
CELLS = [
    *PULL.holds(*faults.USUAL),
    PULL.breaks(faults.paused, TWO, LOST, why=faults.NOT_TOLD),
    PULL.breaks(faults.lost_reply, STUCK, why=NO_REFUSAL),
    PULL.breaks(overtaken, STARVED, why=NO_QUEUE),
    *RECOGNISING.holds(faults.turns, faults.lost_reply),
    RECOGNISING.breaks(recognised_late, TWO, LOST, why=COUNTED_LATE),
]

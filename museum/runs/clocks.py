"""What clocks do, and what locks do that take the time from their clients."""

from __future__ import annotations

import time

from museum.room import Room

from .holders import LONG, SOON
from .run import Run
from .servers import challenge

AHEAD = 30  # seconds


def ask_ahead(room: Room) -> None:
    """One has the lock; the clock of the one that asks is ahead."""
    first, second = room.client("A"), room.client("B", ahead=AHEAD)
    assert first.acquire(SOON)
    first.read()
    challenge(first, second)


def die_ahead(room: Room) -> None:
    """The clock of the holder is ahead, and it dies."""
    first, second = room.client("A", ahead=AHEAD), room.client("B")
    assert first.acquire(SOON)
    first.kill()
    second.take_a_turn(SOON / 2)


def overwrite_the_time(room: Room) -> None:
    """Two find that a dead client's time has passed, and the slower one stops before its GETSET.

    The faster one has the lock when the slower one goes on, and writes the time it made long ago.
    """
    dead, slow, fast = (room.client(who) for who in "ABC")
    assert dead.acquire(SOON)
    dead.kill()
    slow.ask("halt", at="between GET and GETSET")
    slow.tell("acquire", wait=SOON)
    slow.wait_until_stopped()
    time.sleep(room.ttl)  # the slower one's time passes too
    assert fast.acquire(SOON)
    fast.read()
    slow.go_on()
    if slow.answer()["held"]:
        slow.use()
        fast.write()
        slow.release()
    fast.release()


def take_over_at_once(room: Room) -> None:
    """Three find that a dead client's time has passed, all before one of them takes over."""
    dead, *waiters = (room.client(who) for who in "ABCD")
    assert dead.acquire(SOON)
    dead.kill()
    for waiter in waiters:
        waiter.ask("halt", at="between GET and GETSET")
        waiter.tell("work", times=1)
    for waiter in waiters:
        waiter.wait_until_stopped()
    for waiter in waiters:
        waiter.go_on()
    for waiter in waiters:
        waiter.answer()


ASKS_AHEAD = Run(
    "clock-ahead", "clock", ask_ahead, "the clock of one that asks is 30 s ahead", ttl=LONG
)
DIES_AHEAD = Run("dies-ahead", "clock", die_ahead, "a holder dies whose clock is 30 s ahead")
OVERWRITTEN = Run(
    "overwritten", "paused", overwrite_the_time,
    "a client that wants to take over is stopped before its GETSET", ttl=2, patience=9,
)  # fmt: skip
THREE_AT_ONCE = Run(
    "three-at-once", "load", take_over_at_once,
    "three want to take over a dead client's lock at once", ttl=LONG,
)  # fmt: skip

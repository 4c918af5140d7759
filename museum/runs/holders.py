"""What happens to holders: nothing, a crowd, a death, a pause."""

from __future__ import annotations

from collections.abc import Callable

from museum.client import Client
from museum.room import Room

from .run import Run

LONG = 6.0  # seconds of a ttl that no stall of a busy machine outlasts
SOON = 12.0  # seconds for which a second client waits


def take_turns(room: Room) -> None:
    """Two clients, one after the other, and then both at once."""
    first, second = room.client("A"), room.client("B")
    for client in (first, second, first):
        assert client.take_a_turn(SOON)
    assert first.acquire(SOON)
    assert not second.acquire(0)
    first.release()
    work([first, second], times=3)


def crowd(room: Room) -> None:
    """Four clients want it all the time."""
    work([room.client(who) for who in "ABCD"], times=8)


def work(clients: list[Client], times: int) -> None:
    """Let clients lock, read, write and release at once, so many times each."""
    for client in clients:
        client.tell("work", times=times, think=0.002)
    for client in clients:
        client.answer()


def kill_the_holder(room: Room) -> None:
    """One takes the lock and dies; the other one waits for it."""
    first, second = room.client("A"), room.client("B")
    assert first.acquire(SOON)
    first.kill()
    second.take_a_turn(SOON / 2)


def kill_at(where: str) -> Callable[[Room], None]:
    """Return a run in which the holder dies between two steps of its recipe."""

    def kill_between(room: Room) -> None:
        first, second = room.client("A"), room.client("B")
        first.ask("halt", at=where)
        first.tell("acquire", wait=SOON)
        first.wait_until_stopped()
        first.kill()
        second.take_a_turn(SOON / 2)

    return kill_between


def pause_the_holder(room: Room) -> None:
    """One takes the lock, reads and stops; the other one takes it after the ttl; the first writes.

    What the first one wrote is what it made of its old reading.
    """
    first, second = room.client("A"), room.client("B")
    assert first.acquire(SOON)
    first.read()
    first.stop()
    if second.acquire(SOON):
        second.use()
        first.go_on()
        first.write()
        second.release()
    else:
        first.go_on()
        first.write()
    first.release()


def stop_in_release(room: Room) -> None:
    """One has done its work, and stops before its release is sent; another one has the lock then.

    When the release has come, a third one asks.
    """
    first, second, third = (room.client(who) for who in "ABC")
    assert first.acquire(SOON)
    first.use()
    first.ask("halt", at="release")
    first.tell("release")
    first.wait_until_stopped()
    assert second.acquire(SOON)
    second.read()
    first.go_on()
    first.answer()
    if third.acquire(0):
        third.use()
        second.write()
        third.release()
    else:
        second.write()
    second.release()


def overtake(room: Room) -> None:
    """One waits. Each time the lock is released it sleeps, and another one comes and gets it."""
    holder, newcomer, waiter = (room.client(who) for who in "ABC")
    assert holder.acquire(SOON)
    waiter.tell("acquire", wait=LONG / 2)  # it gives up long before the last holder's ttl is over
    room.wait_until_asked(waiter)
    for _ in range(5):
        waiter.stop()  # as long as the hand-over takes: a sleep that no busy machine shortens
        holder.release()
        is_passed = newcomer.acquire(0)
        waiter.go_on()
        if not is_passed:
            break
        holder, newcomer = newcomer, holder
    else:
        assert not waiter.answer()["held"]
        holder.release()
        return
    if waiter.answer()["held"]:
        waiter.use()
        waiter.release()


TURNS = Run("turns", "none", take_turns, "two clients take turns", ttl=LONG, patience=1)
CROWD = Run("crowd", "load", crowd, "four clients want it all the time", ttl=LONG, patience=1)
KILLED = Run("killed", "killed", kill_the_holder, "the holder is killed")
PAUSED = Run("paused", "paused", pause_the_holder, "the holder is stopped (SIGSTOP) past its ttl")
KILLED_AFTER_SETNX = Run(
    "killed-between", "killed", kill_at("between SETNX and EXPIRE"),
    "the holder is killed between SETNX and EXPIRE",
)  # fmt: skip
STOPPED_IN_RELEASE = Run(
    "late-release", "paused", stop_in_release,
    "a client is stopped before its release is sent, and goes on when another one has the lock",
    ttl=LONG,
)  # fmt: skip
OVERTAKEN = Run(
    "overtaken", "load", overtake,
    "each time the lock is released the one that waits sleeps, and another one comes",
    ttl=LONG,
)  # fmt: skip

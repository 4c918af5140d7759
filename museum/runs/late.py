"""What comes late: a release, a write."""

from __future__ import annotations

from museum.room import Room

from .holders import SOON
from .run import Run
from .servers import SHORTLY, challenge


def release_late(room: Room) -> None:
    """A release to one server is held on its way until its client has locked that server again.

    The client reaches a bare majority, so each of its servers counts.
    """
    last = len(room.nodes) // 2
    first = room.client("A", without=range(last + 1, len(room.nodes)))
    second = room.client("B")
    assert first.take_a_turn(SOON)
    assert first.acquire(SOON)
    room.way(first, last).holding = 1
    first.release()
    room.wait_until_free(last)
    has_it = first.acquire(SHORTLY)
    room.let_go(first, last)
    if has_it or first.acquire(SOON):
        first.read()
        challenge(first, second)


def write_between(room: Room) -> None:
    """A paused holder goes on when its successor has read, and writes before the successor does."""
    first, second = room.client("A"), room.client("B")
    assert first.acquire(SOON)
    first.read()
    first.stop()
    assert second.acquire(SOON)
    second.read()
    first.go_on()
    first.write()
    second.write()
    for client in (second, first):
        client.release()


LATE_RELEASE = Run(
    "release-on-its-way", "replies", release_late,
    "a release arrives when its client has the lock again", ttl=2,
)  # fmt: skip
WRITES_BETWEEN = Run(
    "writes-between",
    "paused",
    write_between,
    "a paused holder writes between its successor's read and write",
)

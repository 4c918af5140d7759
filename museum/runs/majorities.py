"""What happens to several servers: splits, one restart or many, a clock that jumps."""

from __future__ import annotations

import time
from collections.abc import Callable

from museum.room import Room

from .holders import LONG, SOON
from .run import Run
from .servers import SHORTLY, challenge


def restart_one_of_all(room: Room) -> None:
    """All servers can be reached; one of those that gave the lock forgets it."""
    first, second = room.client("A"), room.client("B")
    assert first.acquire(SOON)
    first.read()
    room.restart_empty(len(room.nodes) // 2)
    challenge(first, second)


def restart_late(room: Room) -> None:
    """As a server restarts empty, but not before the ttl is over, as Redlock's page asks."""
    last = len(room.nodes) // 2
    first = room.client("A", without=range(last + 1, len(room.nodes)))
    second = room.client("B", without=range(last))
    assert first.acquire(SOON)
    first.use()
    room.kill_node(last)
    time.sleep(room.ttl)
    room.restart_empty(last)
    assert second.take_a_turn(SOON)


def restart_one_by_one(room: Room) -> None:
    """All servers restart while one has the lock, one after the other."""
    first, second = room.client("A"), room.client("B")
    assert first.acquire(SOON)
    first.read()
    for place in range(len(room.nodes)):
        room.restart_empty(place)
    challenge(first, second)


def split(room: Room) -> None:
    """One reaches the first server and no other, another one reaches all the others."""
    first = room.client("A", without=range(1, len(room.nodes)))
    second = room.client("B", without=[0])
    if first.acquire(SHORTLY):
        first.read()
        challenge(first, second)
    else:
        second.take_a_turn(SOON)


def jump(*, unseen: bool) -> Callable[[Room], None]:
    """Return a run in which a server's clock passes the ttl while one has a bare majority.

    Args:
        unseen: whether the other one's connections are older than that.
    """

    def jump_past_the_ttl(room: Room) -> None:
        last = len(room.nodes) // 2
        first = room.client("A", without=range(last + 1, len(room.nodes)))
        second = room.client("B", warm=unseen)  # one that is not is not connected either
        assert first.acquire(SOON)
        first.read()
        room.set_server_clock(last, 2 * int(room.ttl))
        room.wait_until_free(last)
        challenge(first, second)

    return jump_past_the_ttl


def hang(room: Room) -> None:
    """A holder's work hangs, and its process lives on."""
    first, second = room.client("A"), room.client("B")
    assert first.acquire(SOON)
    first.hang()
    second.take_a_turn(SOON / 2)


RESTARTED_ONE = Run(
    "restarted-one", "restart", restart_one_of_all,
    "one server restarts empty; the client could reach all", ttl=LONG,
)  # fmt: skip
RESTARTED_LATE = Run(
    "restarted-late", "restart", restart_late,
    "a server of the majority restarts empty, a ttl later", ttl=2,
)  # fmt: skip
ONE_BY_ONE = Run(
    "one-by-one", "restart", restart_one_by_one,
    "all servers restart empty, one after the other", ttl=2,
)  # fmt: skip
SPLIT = Run("split", "split", split, "one reaches a minority, another one the others", ttl=LONG)
JUMPS = Run(
    "server-clock", "jump", jump(unseen=True),
    "the clock of a server jumps past the ttl; the other client's connections are older",
    ttl=LONG, clocks=True,
)  # fmt: skip
JUMPED = Run(
    "server-clock-seen", "jump", jump(unseen=False),
    "the clock of a server jumps past the ttl; the other client connects after that",
    ttl=LONG, clocks=True,
)  # fmt: skip
HANGS = Run("hangs", "paused", hang, "a holder's work hangs, and its process lives on", patience=4)

"""What happens to servers: a minority dies, one forgets everything, a master fails over.

These runs serve any number of servers.
"""

from __future__ import annotations

from contextlib import suppress

from museum.client import Client, ClientError
from museum.room import Room

from .holders import LONG, SOON
from .run import Run

SHORTLY = 1.0  # seconds, less than a ttl: on a busy machine the first attempt may time out


def kill_a_minority(room: Room) -> None:
    """So many servers die as must not matter, while one has the lock."""
    first, second = room.client("A"), room.client("B")
    assert first.acquire(SOON)
    first.read()
    for place in range((len(room.nodes) - 1) // 2):
        room.kill_node(place)
    challenge(first, second)


def restart_empty(room: Room) -> None:
    """One takes the lock of a bare majority, and a server of that forgets it.

    The other one asks a majority too: the two have that server in common.
    """
    majority = len(room.nodes) // 2 + 1
    first = room.client("A", without=range(majority, len(room.nodes)))
    second = room.client("B", without=range(majority - 1))
    assert first.acquire(SOON)
    first.read()
    room.restart_empty(majority - 1)
    challenge(first, second)


def fail_over_to_the_last(room: Room) -> None:
    """The master dies when its replica has all that it had."""
    first, second = room.client("A"), room.client("B")
    assert first.acquire(SOON)
    first.read()
    room.fail_over(lagging=False)
    challenge(first, second)


def fail_over_to_a_lagging_one(room: Room) -> None:
    """The master dies before its replica has heard of the lock.

    Of several servers it is one of a bare majority.
    """
    majority = len(room.nodes) // 2 + 1
    first = room.client("A", without=range(majority, len(room.nodes)))
    second = room.client("B")
    assert room.replica is not None
    room.replica.lag()
    room.note("the replica lags")
    assert first.acquire(SOON)
    first.read()
    room.fail_over(lagging=True)
    challenge(first, second)


def challenge(first: Client, second: Client) -> None:
    """Let another one ask for a lock that the first one has, and has read under.

    If it gets it, both write, unless the first one knows that its time is over. Else the first one
    ends, and the other one takes its turn.
    """
    try:
        has_both = second.acquire(SHORTLY)
    except ClientError:  # too few servers reply
        has_both = False
    if has_both:
        second.use()
    if first.believes():
        first.write()
    with suppress(ClientError):  # its server may be another one now
        first.release()
    if has_both:
        second.release()
    else:
        second.take_a_turn(SOON)


MINORITY = Run(
    "minority", "minority", kill_a_minority, "a minority of the servers is killed", ttl=LONG,
    patience=1.5,
)  # fmt: skip
RESTARTED = Run(
    "restarted", "restart", restart_empty, "a server of the majority restarts empty", ttl=LONG
)
FAILOVER = Run(
    "failover", "failover", fail_over_to_the_last,
    "the master dies, and a replica that has everything takes its place", ttl=LONG, replica=True,
)  # fmt: skip
FAILOVER_LAGGING = Run(
    "failover-lagging", "failover", fail_over_to_a_lagging_one,
    "the master dies, and a replica that has not heard of the lock takes its place",
    ttl=LONG, replica=True,
)  # fmt: skip

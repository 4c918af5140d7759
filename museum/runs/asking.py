"""What happens while clients ask: late replies, a clock that is set right, votes that are split."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

from django_redlock.testing import EmbeddedNode
from museum.client import Client
from museum.room import Room

from .holders import LONG, SOON
from .run import Run

LOCKING = "set", "eval", "evalsha"
PATIENT = 30.0  # seconds for which a client waits for a server, where replies are held back


def stop_while_it_acquires(room: Room) -> None:
    """One stops while it asks, and the replies lie in its sockets until the ttl is over."""
    first, second = room.client("A", ways=True, timeout=PATIENT), room.client("B")
    places = ask_without_replies(room, first)
    first.stop()
    send_replies(room, first, places)
    acquire_after(room, second)
    second.read()
    first.go_on()
    has_both = bool(first.answer()["held"])
    if has_both:
        first.use()
    second.write()
    second.release()
    if has_both:
        first.release()


def set_the_clock_right(room: Room) -> None:
    """The clock of one is ahead, and is set right between its question and the replies."""
    first, second = room.client("A", ways=True, ahead=30, timeout=PATIENT), room.client("B")
    places = ask_without_replies(room, first)
    room.set_clock_right(first)
    send_replies(room, first, places)
    has_it = bool(first.answer()["held"])
    acquire_after(room, second)
    second.use()
    second.release()
    if has_it:
        first.release()


def acquire_after(room: Room, client: Client) -> None:
    """Let a client ask when the ttl of the one before is over: it has not waited by itself."""
    for place in range(len(room.nodes)):
        room.wait_until_free(place)
    assert client.acquire(SOON)


def ask_without_replies(room: Room, client: Client) -> Sequence[int]:
    """Let a client ask; return the places of the servers whose replies are held back.

    Of one server it hears at once, where there are more: a majority needs another one's reply.
    """
    warm_up(room, client)
    places = range(1, len(room.nodes)) or range(1)
    for place in places:
        room.way(client, place).delay = PATIENT
    room.note(f"replies to {client.who} are held back", client.who)
    client.tell("acquire", wait=0)
    room.wait_until_locked(places[0])
    return places


def send_replies(room: Room, client: Client, places: Sequence[int]) -> None:
    """Let the replies go."""
    for place in places:
        room.way(client, place).delay = 0.0
    room.note(f"replies to {client.who} are sent", client.who)


def split_the_votes(room: Room) -> None:
    """As many ask at once as there are servers, and each one gets another server first."""
    names = "ABCDE"[: len(room.nodes)]
    clients = [room.client(who, ways=True, timeout=PATIENT) for who in names]
    for client in clients:
        warm_up(room, client)
    for place, client in enumerate(clients):
        for other in range(len(clients)):
            room.way(client, other).holding = int(other != place)
    for client in clients:
        client.tell("work", times=1)
    for place in range(len(room.nodes)):
        room.wait_until_locked(place)
    room.note("each server has voted for another client")
    for client in clients:
        for place in range(len(clients)):
            room.way(client, place).let_go()
    for client in clients:
        client.answer()


def warm_up(room: Room, client: Client) -> None:
    """Let a client connect, and the servers know its scripts, until nothing is on its way.

    Some clients go on when a majority has replied. All servers are sent the same, and one at least
    is in both majorities, of the locks and of the releases: it has had all.
    """
    assert client.acquire(SOON)
    client.release()
    room.wait_for(lambda: len(set(map(commands, room.nodes))) == 1, SOON, "the last of the servers")


def commands(node: EmbeddedNode) -> int:
    """How many commands of locks a server has had."""
    with closing(node.client()) as asking:
        told = asking.info("commandstats")
    return sum(told.get(f"cmdstat_{each}", {"calls": 0})["calls"] for each in LOCKING)


def stop_the_woken(room: Room) -> None:
    """Two wait, and the first of them stops: the release wakes that one, and no other."""
    first, woken, second = (room.client(who) for who in "ABC")
    assert first.acquire(SOON)
    with closing(room.nodes[0].client()) as asking:

        def wait_for_waiters(count: int) -> None:
            blocked = "blocked_clients"
            room.wait_for(lambda: asking.info("clients")[blocked] == count, SOON, "a waiter")

        for count, waiter in enumerate((woken, second), 1):
            waiter.tell("acquire", wait=SOON)
            wait_for_waiters(count)
    woken.stop()
    first.release()
    if second.answer()["held"]:
        second.release()
    woken.kill()


STOPPED_IN_ACQUIRE = Run(
    "stopped-acquiring", "paused", stop_while_it_acquires,
    "a client is stopped past the ttl while the replies of the servers wait for it", ttl=2,
)  # fmt: skip
SET_RIGHT = Run(
    "clock-set-right", "clock", set_the_clock_right,
    "a client's clock is 30 s ahead, and is set right while it asks", ttl=2,
)  # fmt: skip
VOTES_SPLIT = Run(
    "votes-split", "load", split_the_votes,
    "three ask at once, and each gets one of three servers", ttl=LONG, patience=0.5,
)  # fmt: skip
WOKEN = Run(
    "woken", "paused", stop_the_woken,
    "the first of two that wait is stopped, and the release wakes it", ttl=LONG, patience=0.5,
)  # fmt: skip

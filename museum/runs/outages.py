"""A server that is down when clients ask, and one that somebody empties."""

from __future__ import annotations

from contextlib import suppress

from museum.client import ClientError
from museum.room import Room

from .asking import PATIENT, warm_up
from .holders import LONG, SOON
from .run import Run


def go_on_with_the_majority(room: Room) -> None:
    """The last of the servers is killed; then two take their turns."""
    clients = [room.client(who, timeout=PATIENT) for who in "AB"]
    for client in clients:
        warm_up(room, client)
    room.kill_node(len(room.nodes) - 1)
    with suppress(ClientError):  # it has told its user
        for client in clients:
            if not client.take_a_turn(SOON / 2):
                break


def empty(room: Room) -> None:
    """A third one empties the server, by what its library offers, while one has the lock."""
    first, second, third = (room.client(who) for who in "ABC")
    assert first.acquire(SOON)
    first.read()
    third.ask("call", what="empty")
    room.note("C has emptied the server", "C")
    assert second.acquire(SOON)
    second.use()
    first.write()
    second.release()
    first.release()


DOWN = Run(
    "down", "minority", go_on_with_the_majority,
    "one of three servers is down when clients ask",
)  # fmt: skip
EMPTIED = Run(
    "emptied", "restart", empty, "somebody else empties the server", ttl=LONG
)  # fmt: skip

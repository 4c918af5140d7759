"""Bound the requests that one connection may owe replies to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from django_redlock.core.protocol import UNDO

if TYPE_CHECKING:
    from .pending import Owed

# Bytes of requests without a reply, beyond which a connection takes no more, and beyond which it
# takes no undo either: that is kept, and sent later. Without any it takes a request of any size.
BACKLOG: Final = 65536
UNDO_BACKLOG: Final = 2 * BACKLOG
LOOP_BACKLOG: Final = 256 * 1024 * 1024  # of all tasks of an event loop together


class Busy(Protocol):
    """What is used of a ``Connection``."""

    backlog: int
    looped: bool

    def owes(self, nonce: bytes) -> bool:
        """Tell whether a request with this nonce has no reply yet."""


def has_room(connection: Busy, owed: Owed, size: int) -> bool:
    """Tell whether a connection takes a request of so many bytes."""
    if not connection.backlog:
        return True
    undoing = owed.command in UNDO
    room = UNDO_BACKLOG if undoing else BACKLOG
    if connection.backlog + size <= (LOOP_BACKLOG if connection.looped else room):
        return True
    return undoing and connection.owes(owed.nonce)  # another connection would overtake the grant

"""A request on one connection, whose vote a test hears."""

from __future__ import annotations

import time
from collections.abc import Callable

from django_redlock.core.protocol import Request, Vote
from django_redlock.nodes import replies
from django_redlock.nodes.connection import OnWire, pack


class Heard(OnWire):
    """A request to one node.

    Args:
        hear: called with the node's place and the vote.
    """

    def __init__(self, request: Request, hear: Callable[[int, Vote], object]) -> None:
        self.request = request
        self.command, self.nonce = request.command, request.nonce.encode()
        self.packed, self.since, self.count = pack(request, 0), time.monotonic(), request.count
        self.hear = hear  # type: ignore[method-assign,assignment]
        self.kept: list[int] = []

    def keep(self, place: int) -> None:
        """Note that a node has not carried out an undo."""
        self.kept.append(place)

    def vote_in(self, label: str, reply: object) -> Vote | None:
        """Return the vote in a reply."""
        return replies.vote(self.request, label, self.nonce, reply)

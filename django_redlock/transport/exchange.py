"""Carry one request over a set of connections, and read what the nodes reply."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from django_redlock.core.commands import YES, freed, number_in, waking_reply
from django_redlock.core.protocol import Command, Vote

from .pending import NO_EPOCH, pack

if TYPE_CHECKING:
    from django_redlock.core.protocol import Request

    from .connection_set import ConnectionSet, Way

READ_SIZE: Final = 65536
LARGEST: Final = 8192  # bytes of a request that every socket takes at once when it has no other
# An enum's member costs five times a name.
GRANT: Final = Command.GRANT
MARK: Final = Command.MARK


class Exchange:
    """One request by a set, and what the nodes reply.

    Attributes:
        start: ``time.monotonic`` when it began.
        size: bytes of the request.
        grants, takes: whether it takes a lock; or that, or marks a queued task.
        failed: the places of the nodes whose connection did not take it.
        heard: the places of those with the usual reply, the same from each.
        woke: of these, those where a release woke a waiter.
        number: what a grant has there.
        odd: what else has come, by place.
        lingers_until: ``time.monotonic`` until which an undo waits for the last ones, or None.
        missing: the places of those that are waited for, and have not replied.
    """

    __slots__ = (
        "_way",
        "failed",
        "grants",
        "heard",
        "lent",
        "lingers_until",
        "missing",
        "number",
        "odd",
        "request",
        "size",
        "start",
        "takes",
        "usual",
        "woke",
    )
    usual: bytes
    _way: Way

    def __init__(self, lent: ConnectionSet, request: Request) -> None:
        self.start = time.monotonic()
        self.lent = lent
        self.request = request
        self.grants = request.command is GRANT
        self.takes = self.grants or request.command is MARK
        self.size = 0
        self.failed: list[int] = []
        self.heard: list[int] = []
        self.woke: list[int] = []
        self.odd: dict[int, bytes] = {}
        self.number = 0
        self.lingers_until: float | None = None
        self.missing: tuple[int, ...] = ()

    def write(self) -> bool:
        """Write the request to each; return False if it is too long, and nothing was written."""
        request, lent = self.request, self.lent
        packed = pack(request, 0)
        self.size = len(packed)
        if self.size > LARGEST:
            return False
        self.usual = request.usual_reply()
        self._way = way = lent.way(request.first)
        self.missing = way.places
        if lent.late:  # a node that hangs would cost each request a moment
            nonce = request.nonce
            self.missing = tuple(place for place in way.places if lent.is_prompt(place, nonce))
        head = packed[: -len(NO_EPOCH)] if self.grants else b""
        for place, send, epoch in way.sends:
            data = head + epoch if head else packed
            try:
                whole = send(data) == len(data)
            except OSError:
                whole = False
            if not whole:
                self.failed.append(place)
        return True

    def wait(self, seconds: float, needed: int) -> bool:
        """Wait until the node may have replied after which so few are missing; read what has come.

        Each waking costs as much as many a reply, see ``BlockingRequest``. Return whether one came.
        """
        if not self.lent.poll(self.missing[needed - 1 :]).poll(seconds * 1000):
            return False
        self.read()
        return True

    def vote_at(self, place: int, label: str) -> Vote:
        """Return the vote of a node that replied as usual."""
        return (
            Vote(label, YES, self.number) if self.grants else freed(label, int(place in self.woke))
        )

    def leave(self) -> None:
        """Let the set expect what the nodes have not replied."""
        self.lent.expect(self.request, self.usual, self.start, self.size, heard=self.heard)

    def read(self) -> None:
        """Read what has come."""
        usual, heard, way, now = self.usual, self.heard, self._way, time.monotonic()
        late = self.lent.late
        missing = []
        for place in self.missing:
            try:
                data = way.recvs[place](READ_SIZE)
            except OSError:  # nothing has come; or the next one to read it is told why
                missing.append(place)
                continue
            way.connections[place].answered = now
            if data and data != usual and place in late:
                data = self.lent.settle(place, data)
                if not data:
                    missing.append(place)
                    continue
            if data == usual:
                heard.append(place)
            elif self.grants and not heard and (number := number_in(data, usual)):
                self.number, self.usual = number, data
                usual = data
                heard.append(place)
            elif not self.grants and data == waking_reply(usual):
                heard.append(place)
                self.woke.append(place)
            else:
                self.odd[place] = data
        self.missing = tuple(missing)

"""A request on the wire: its bytes, its caller, and what is called with the vote."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import hiredis

from django_redlock.core.protocol import UNDO, WITH_EPOCH, Command, Request, Vote

from .wire import replies, scripts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

NO_EPOCH: Final = b"$0\r\n\r\n"  # the empty last argument of a grant or heal: each connection's own


class Waiting(Protocol):
    """What an asker waits for, as an ``asyncio.Future``."""

    def done(self) -> bool:
        """Tell whether it waits no more; it may have been cancelled."""


class Asker:
    """The caller of a request: whether votes still count, and how to send the request again.

    Attributes:
        ask: the request.
        packed: its bytes for every node; b"" where they differ.
        start: ``time.monotonic`` when it was sent.
        over: whether the caller has heard enough, or was interrupted.

    Args:
        waiting: tells whether the caller waits, who may be cancelled; None where it cannot be.
    """

    __slots__ = ("_waiting", "ask", "over", "packed", "start")

    def __init__(
        self,
        ask: Request,
        start: float,
        waiting: Waiting | None = None,
        *,
        packed: bytes | None = None,
    ) -> None:
        self.ask = ask
        if packed is None:
            packed = b"" if ask.each is not None else pack(ask, 0)
        self.packed = packed
        self.start = start
        self.over = False
        self._waiting = waiting

    def leave(self) -> None:
        """Note that no vote counts any more."""
        self.over, self._waiting = True, None  # a task's future would keep its loop

    @property
    def gone(self) -> bool:
        """Tell whether no vote counts any more."""
        return self.over or (self._waiting is not None and self._waiting.done())

    @property
    def until(self) -> float:
        """Return the ``time.monotonic`` from which the keys that this undo deletes have expired."""
        return self.start + self.ask.lasts

    def again(self, hear: Callable[[int, Vote], object], now: float) -> PendingReply:
        """Return an undo to be sent (again) now; a name that it leaves taken is free no later."""
        ask = self.ask.later(now - self.start)
        return PendingReply(ask.command, ask.nonce.encode(), hear, now, pack(ask, 0), self)


class Owed(Protocol):
    """What a connection keeps of a request until the reply comes; see ``PendingReply``."""

    @property
    def command(self) -> Command:
        """The script."""

    @property
    def nonce(self) -> bytes:
        """What the reply echoes."""

    @property
    def hear(self) -> Callable[[int, Vote], object]:
        """What is called with the node's place and the vote."""

    @property
    def since(self) -> float:
        """The ``time.monotonic`` when it was sent."""

    @property
    def packed(self) -> bytes:
        """Its bytes."""

    @property
    def asker(self) -> Asker | None:
        """The caller."""

    @property
    def said(self) -> object:
        """The earlier reply of another node; one that equals it is the same vote. (): none."""

    def hear_again(self, place: int) -> None:
        """Note that the node at this place replied what is in ``said``."""

    def vote_in(self, label: str, answer: object) -> Vote | None:
        """Return the vote in a reply of the node with this label; None: it is to something else."""

    def alone(self) -> PendingReply:
        """Return the request as a tuple, to be sent once more or to be heard by another."""


class PendingReply(NamedTuple):
    """A request that has no reply yet.

    Attributes:
        hear: called once, with the node's place and the vote.
        since: ``time.monotonic`` when it was sent.
        packed: the request's bytes, as ``pack`` made them.
        asker: the caller; None if the request is not one of the algorithm.
        said: nothing: each reply is looked at.
    """

    command: Command
    nonce: bytes
    hear: Callable[[int, Vote], object]
    since: float
    packed: bytes
    asker: Asker | None = None
    said: tuple[()] = ()

    def vote_in(self, label: str, answer: object) -> Vote | None:
        """Return the vote in a reply of the node with this label; None: it is to something else."""
        if self.asker is None:
            return replies.plain_vote(self.command, label, self.nonce, answer)
        return replies.vote(self.asker.ask, label, self.nonce, answer)

    def hear_again(self, place: int) -> None:
        """Never called: no reply equals ``said``."""

    @property
    def asked(self) -> int:
        """Return how many names, or leases, the request is about."""
        return 1 if self.asker is None else self.asker.ask.count

    def alone(self) -> PendingReply:
        """Return the request itself."""
        return self


def undoing_until(owed: Iterable[Owed]) -> float:
    """Return the ``time.monotonic`` until which the reply to an undo is of interest."""
    undoing = [each.asker for each in tuple(owed) if each.command in UNDO]
    return max((asker.until for asker in undoing if asker is not None), default=-math.inf)


def nobody(place: int, vote: Vote) -> None:
    """Ignore a vote."""


def pack(ask: Request, place: int) -> bytes:
    """Return the bytes of a request for the node at that place."""
    keys, argv = ask.wire()
    parts = ("EVALSHA", scripts.DIGEST[ask.command], str(len(keys)), *keys, ask.nonce, *argv)
    if ask.command in WITH_EPOCH:
        parts += ("",)  # where each connection puts its node's epoch
    if ask.each is not None:
        parts += (str(ask.each[place]),)
    # Texts only: hiredis (3.5) turns numbers into text by a call in which a signal handler may
    # raise, does not look, and crashes the process.
    whole: bytes = hiredis.pack_command(parts)  # type: ignore[arg-type]
    return whole


def packed(*parts: str | int) -> bytes:
    """Return a command as it goes over the wire."""
    whole: bytes = hiredis.pack_command(tuple(map(str, parts)))  # type: ignore[arg-type] # see pack
    return whole


def parts(every: Iterable[Owed]) -> list[bytes]:
    """Return the bytes of requests in the pieces between which each node's epoch belongs."""
    pieces: list[bytes] = []
    piece: list[bytes] = []
    for owed in every:
        if owed.command in WITH_EPOCH:
            piece.append(owed.packed[: -len(NO_EPOCH)])
            pieces.append(b"".join(piece))
            piece.clear()
        else:
            piece.append(owed.packed)
    pieces.append(b"".join(piece))
    return pieces


def by_digest(owed: Owed) -> bool:
    """Tell whether the request names its script by the digest, not by the text."""
    return owed.packed.split(b"\r\n", 3)[2] == b"EVALSHA"


def in_full(owed: Owed) -> PendingReply:
    """Return the request with the text of its script in place of the digest, to be sent now."""
    text = scripts.TEXT[owed.command].encode()
    count, _, _, _, _, rest = owed.packed.split(b"\r\n", 5)
    whole = b"%b\r\n$4\r\nEVAL\r\n$%d\r\n%b\r\n%b" % (count, len(text), text, rest)
    return owed.alone()._replace(packed=whole, since=time.monotonic())


def load(command: Command, hear: Callable[[int, Vote], object]) -> PendingReply:
    """Return the request that gives a node the script of ``command``, to be sent now."""
    data = packed("SCRIPT", "LOAD", scripts.TEXT[command])
    return PendingReply(Command.LOAD, b"", hear, time.monotonic(), data)

"""A request on the wire: its bytes, its caller, and what is called with the vote."""

from __future__ import annotations

import functools
import math
import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import hiredis

from django_redlock.core.policy import milliseconds
from django_redlock.core.protocol import UNDO, Command, Request, Vote

from .wire import replies, scripts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

GRANT: Final = Command.GRANT  # an enum's member costs five times a name
RELEASE: Final = Command.RELEASE
NO_EPOCH: Final = b"$0\r\n\r\n"  # the empty last argument of a grant or heal: each connection's own


class Waiting(Protocol):
    """What an asker waits for, as an ``asyncio.Future``."""

    def done(self) -> bool:
        """Tell whether it waits no more; it may have been cancelled."""


class Asker:
    """The caller of a request: whether votes still count, and how to send the request again.

    Attributes:
        ask: the request.
        asked: how many names, or leases, it is about.
        packed: its bytes for every node; b"" where they differ.
        start: ``time.monotonic`` when it was sent.
        over: whether the caller has heard enough, or was interrupted.

    Args:
        waiting: tells whether the caller waits, who may be cancelled; None where it cannot be.
    """

    __slots__ = ("_waiting", "ask", "asked", "over", "packed", "start")

    def __init__(
        self,
        ask: Request,
        start: float,
        waiting: Waiting | None = None,
        *,
        packed: bytes | None = None,
    ) -> None:
        self.ask = ask
        self.asked = asked(ask)
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
        ask = self.ask
        if ask.command is Command.REST:
            rest, *names = ask.args
            assert isinstance(rest, int)
            left = max(1, rest - milliseconds(now - self.start))
            ask = ask._replace(args=(left, *names))
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
        asked = 1 if self.asker is None else self.asker.asked  # self.asked, without a call
        return replies.vote(label, self.command, self.nonce, answer, asked)

    def hear_again(self, place: int) -> None:
        """Never called: no reply equals ``said``."""

    @property
    def asked(self) -> int:
        """Return how many names, or leases, the request is about."""
        return 1 if self.asker is None else self.asker.asked

    def alone(self) -> PendingReply:
        """Return the request itself."""
        return self


def asked(ask: Request) -> int:
    """Return how many names, or leases, a request is about: its reply tells of no more."""
    command, keys, args = ask.command, ask.keys, ask.args
    if command is GRANT:
        return len(keys) - 3
    if command is RELEASE:
        return (len(keys) - 2) // 2
    if command is Command.EXTEND:
        return _grants(args)
    if command in (Command.SURVEY, Command.TASKS):
        return len(args) - 2 or int(args[1])
    if command is Command.INDEX:
        return int(args[0])
    others = {Command.HEAL: -2, Command.REST: -1, Command.COMPLETE: -1, Command.RETURN: 0}
    return len(keys) + others[command] if command in others else 1  # less the keys without a name


def _grants(args: tuple[str | int, ...]) -> int:
    place = count = 0
    while place < len(args):
        place, count = place + 3 + int(args[place + 2]), count + 1
    return count


def undoing_until(owed: Iterable[Owed]) -> float:
    """Return the ``time.monotonic`` until which the reply to an undo is of interest."""
    undoing = [each.asker for each in tuple(owed) if each.command in UNDO]
    return max((asker.until for asker in undoing if asker is not None), default=-math.inf)


def nobody(place: int, vote: Vote) -> None:
    """Ignore a vote."""


def pack(ask: Request, place: int) -> bytes:
    """Return the bytes of a request for the node at that place."""
    quick = QUICK.get((ask.command, len(ask.keys), len(ask.args)))
    if quick is not None:
        text = quick(ask)
        if text.isascii():  # else the lengths are wrong: they count bytes
            return text.encode()
    return pack_any(ask, place)


def pack_any(ask: Request, place: int) -> bytes:
    """Return the bytes of any request; ``pack`` is faster for the most frequent ones."""
    parts = ["EVALSHA", scripts.DIGEST[ask.command], len(ask.keys), *ask.keys, ask.nonce, *ask.args]
    if ask.command in replies.WITH_EPOCH:
        parts.append("")  # where each connection puts its node's epoch
    if ask.each is not None:
        parts.append(ask.each[place])
    return packed(*parts)


def _grant(ask: Request) -> str:
    """Return the text of a grant of one name; half the time of ``pack_any``."""
    f, h, w, k = ask.keys
    wall, slack, ttl, _, old, wakeup, news, field, name = map(str, ask.args)
    label = str.__str__(ask.args[3])  # its class may have another
    return (
        f"*18{GRANT_OF_ONE}{_items(f, h, w)}${len(k)}\r\n{k}\r\n"
        f"${len(ask.nonce)}\r\n{ask.nonce}\r\n${len(wall)}\r\n{wall}\r\n"
        f"{_items(slack, ttl, label)}${len(old)}\r\n{old}\r\n${len(wakeup)}\r\n{wakeup}\r\n"
        f"${len(news)}\r\n{news}\r\n${len(field)}\r\n{field}\r\n${len(name)}\r\n{name}\r\n"
        "$0\r\n\r\n"
    )


def _release(ask: Request) -> str:
    """Return the text of a release of one name."""
    h, w, k, q = ask.keys
    reserve, flags, name = map(str, ask.args)
    return (
        f"*11{RELEASE_OF_ONE}{_items(h, w)}${len(k)}\r\n{k}\r\n"
        f"${len(q)}\r\n{q}\r\n${len(ask.nonce)}\r\n{ask.nonce}\r\n${len(reserve)}\r\n{reserve}\r\n"
        f"${len(flags)}\r\n{flags}\r\n${len(name)}\r\n{name}\r\n"
    )


@functools.lru_cache(maxsize=256)
def _items(*texts: str) -> str:
    """Return the part of a request that is the same in most: few differ in these arguments."""
    return "".join([f"${len(text)}\r\n{text}\r\n" for text in texts])


GRANT_OF_ONE, RELEASE_OF_ONE = (
    f"\r\n$7\r\nEVALSHA\r\n$40\r\n{scripts.DIGEST[each]}\r\n$1\r\n4\r\n"
    for each in (GRANT, RELEASE)
)
QUICK: Final = {(GRANT, 4, 9): _grant, (RELEASE, 4, 3): _release}  # with their keys and arguments


def packed(*parts: str | int) -> bytes:
    """Return a command as it goes over the wire."""
    # Bytes only: hiredis (3.5) turns numbers into text by a call in which a signal handler may
    # raise, does not look, and crashes the process.
    encoded = tuple([part.encode() if isinstance(part, str) else b"%d" % part for part in parts])
    whole: bytes = hiredis.pack_command(encoded)  # type: ignore[arg-type]
    return whole


def parts(every: Iterable[Owed]) -> list[bytes]:
    """Return the bytes of requests in the pieces between which each node's epoch belongs."""
    pieces: list[bytes] = []
    piece: list[bytes] = []
    for owed in every:
        if owed.command in replies.WITH_EPOCH:
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

"""A question on the wire: its bytes, who is told the vote, and who asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import hiredis

from django_redlock.core.policy import milliseconds
from django_redlock.core.protocol import Command, Request, Vote

from .wire import replies as answers
from .wire import scripts

if TYPE_CHECKING:
    from collections.abc import Callable


class Asker:
    """Who asked a question of the nodes: whether the votes still count, and how to ask again.

    Attributes:
        ask: the question.
        asked: how many names, or tenancies, it is about.
        start: ``time.monotonic`` when it was asked.
        over: whether the asker has heard enough, or was interrupted.

    Args:
        cancelled: tells whether the asker was cancelled; None where it cannot be.
    """

    __slots__ = ("_cancelled", "ask", "asked", "over", "start")

    def __init__(
        self, ask: Request, start: float, cancelled: Callable[[], bool] | None = None
    ) -> None:
        self.ask = ask
        self.asked = answers.asked(ask)
        self.start = start
        self.over = False
        self._cancelled = cancelled

    def leave(self) -> None:
        """Note that no vote counts any more."""
        self.over, self._cancelled = True, None  # a task's future would keep its loop

    @property
    def gone(self) -> bool:
        """Whether no vote counts any more."""
        return self.over or (self._cancelled is not None and self._cancelled())

    @property
    def until(self) -> float:
        """``time.monotonic`` from which the nodes have dropped by themselves what this undoes."""
        return self.start + self.ask.lasts

    def again(self, hear: Callable[[int, Vote], object], now: float) -> PendingReply:
        """What undoes, to be sent (once more) now; what it leaves for a time ends no later."""
        ask = self.ask
        if ask.command is Command.REST:
            rest, *names = ask.args
            assert isinstance(rest, int)
            left = max(1, rest - milliseconds(now - self.start))
            ask = ask._replace(args=(left, *names))
        return PendingReply(ask.command, ask.nonce.encode(), hear, now, pack(ask, 0), self)


class PendingReply(NamedTuple):
    """A question whose answer is outstanding, and who is told the vote, once.

    Attributes:
        hear: called with the node's place and the vote.
        since: ``time.monotonic`` when it was sent.
        packed: the question's bytes, as ``pack`` made them.
        asker: who asked; None where nobody asks the algorithm's questions.
    """

    command: Command
    nonce: bytes
    hear: Callable[[int, Vote], object]
    since: float
    packed: bytes
    asker: Asker | None = None


def nobody(place: int, vote: Vote) -> None:
    """Hear a vote that nobody waits for."""


def pack(ask: Request, place: int) -> bytes:
    """The bytes of a question for the node at that place."""
    words = ["EVALSHA", scripts.DIGEST[ask.command], len(ask.keys), *ask.keys, ask.nonce, *ask.args]
    if ask.command is Command.GRANT:
        words.append("")  # where each channel puts its node's epoch
    if ask.each is not None:
        words.append(ask.each[place])
    return packed(*words)


def packed(*words: str | int) -> bytes:
    """A command as it goes over the wire."""
    # Bytes only: hiredis (3.5) turns numbers into text by a call in which a signal handler may
    # raise, does not look, and crashes the process.
    encoded = tuple([word.encode() if isinstance(word, str) else b"%d" % word for word in words])
    whole: bytes = hiredis.pack_command(encoded)  # type: ignore[arg-type]
    return whole

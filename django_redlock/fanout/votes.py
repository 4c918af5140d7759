"""One question to the nodes and what came of it so far, whoever carries it to them."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Final, TypeAlias

from django_redlock import events
from django_redlock.core.protocol import UNDO, Answer, Command, Request, Vote
from django_redlock.core.quorum import majority_of
from django_redlock.transport.pending import Asker, PendingReply, pack

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_redlock.transport.connection import Connection
    from django_redlock.transport.node import Node

Hear: TypeAlias = "Callable[[int, Vote], object]"

LEAST_LINGER: Final = 0.001  # seconds, of undoing
LEAST_WORTH: Final = 0.01  # seconds, of what the asker says is worth waiting for
HANDSHAKE: Final = 4  # node timeouts without a sign of a node that is being connected …
PATIENCE: Final = 20  # … and those that a question may last, however slow this machine is
VOTING: Final = frozenset({Command.GRANT, Command.RAISE, Command.EXTEND})


class VoteCollector:
    """An ``Request`` with its ballot.

    Attributes:
        undoing: whether it takes back what an earlier one did; then every node is worth asking.
        ballot: the votes heard, by place; None where none was.
        asked: the places of the nodes to ask.
        start: ``time.monotonic`` when it began.
        asker: what the connections know of who asked.
        majority: more than half of the nodes.
    """

    __slots__ = (
        "_owed",
        "_packed",
        "ask",
        "asked",
        "asker",
        "ballot",
        "majority",
        "nodes",
        "nonce",
        "start",
        "undoing",
    )

    def __init__(
        self, nodes: Sequence[Node], ask: Request, cancelled: Callable[[], bool] | None = None
    ) -> None:
        self.nodes = nodes
        self.ask = ask
        self.nonce = ask.nonce.encode()
        self.undoing = ask.command in UNDO
        self.ballot: list[Vote | None] = [None] * len(nodes)
        self.asked: Sequence[int] = _places(len(nodes), ask.first)
        self.majority = majority_of(len(nodes))
        self.start = time.monotonic()
        self.asker = Asker(ask, self.start, cancelled)
        self._packed = b""
        self._owed: PendingReply | None = None
        if ask.to is not None and len(ask.to) < len(nodes):
            self.asked = [place for place in self.asked if place in ask.to]
            for place in set(range(len(nodes))) - ask.to:
                self.lose(place, "")

    def needed(self) -> int:
        """How many more votes there must be, at least, before anything can be clear.

        As long as a majority has not voted, it may still decide either way.
        """
        return self.ballot.count(None) - self.majority + 1

    def linger(self, now: float) -> float:
        """Seconds to wait for more, having heard enough: as long again."""
        least = LEAST_LINGER if self.undoing else LEAST_WORTH
        return max(now - self.start, least)

    def owed(self, place: int, hear: Hear, now: float) -> PendingReply:
        """What this node will owe; the same for all nodes, where they are asked alike."""
        owed = self._owed
        if owed is None or owed.hear is not hear or self.ask.each is not None:
            if not self._packed or self.ask.each is not None:
                self._packed = pack(self.ask, place)
            command, packed = self.ask.command, self._packed
            owed = self._owed = PendingReply(command, self.nonce, hear, now, packed, self.asker)
        return owed

    def touches(self, place: int) -> bool:
        """Whether this node may have what the question undoes."""
        return self.undoing and (self.ask.touched is None or place in self.ask.touched)

    def keep(self, place: int) -> None:
        """Have the node undo it as soon as it can be asked, if there is something to undo."""
        if self.touches(place):
            self.nodes[place].undo_later(self.asker)

    def lose(self, place: int, why: str, *, sent: bool = False) -> None:
        """Note that this node gives no vote."""
        self.ballot[place] = Vote(self.nodes[place].label, Answer.UNKNOWN, why=why, sent=sent)
        if why and events.nodes_watched():
            self._tell(place, None, why)

    def barred(self, place: int, channel: Connection) -> bool:
        """Whether the node may not vote on this; then its vote is lost already."""
        node = self.nodes[place]
        if not (channel.guarded or node.duplicate_of) or self.ask.command not in VOTING:
            return False
        why = node.objection(channel, self.start)
        if why:
            self.lose(place, why)
        return bool(why)

    def votes(self) -> list[Vote]:
        """The ballot, with a lost vote for each node that was not heard."""
        self.asker.leave()
        if None in self.ballot:
            waited = time.monotonic() - self.start
            # Else it was the asker who did not wait, or who waited for a connection.
            silent = waited >= self.nodes[0].timeout and not self.ask.decided(self.ballot)
            for place, vote in enumerate(self.ballot):
                if vote is None:
                    if silent:
                        self.lose(place, f"no answer within {waited:.3f} s", sent=True)
                    else:
                        self.ballot[place] = self.nodes[place].unheard
        return list(self.ballot)  # type: ignore[arg-type] # none is None

    # -- figures --------------------------------------------------------------------------------

    def timed(self, hear: Hear, *, late: bool = False) -> Hear:
        """``hear``; and if somebody watches the nodes, one who times the answers as well.

        Args:
            late: whether answers are also read at once when the question is over. Else they
                are read at the next use of the connection, which says nothing of the node.
        """
        return self._timing(hear, late=late) if events.nodes_watched() else hear

    def _timing(self, hear: Hear, *, late: bool) -> Hear:
        sent = time.monotonic()

        def hear_and_tell(place: int, vote: Vote) -> None:
            over, seconds = self.asker.over, time.monotonic() - sent
            hear(place, vote)
            if vote.answer is Answer.UNKNOWN:
                if not over:
                    self._tell(place, None, vote.why)
            elif late or not over:
                self._tell(place, seconds)

        return hear_and_tell

    def _tell(self, place: int, seconds: float | None, why: str = "") -> None:
        node = self.nodes[place]
        events.tell_of_node(events.NodeTiming(node.alias, node.label, seconds, why))


@functools.cache
def _places(size: int, first: int) -> tuple[int, ...]:
    return (*range(first, size), *range(first))

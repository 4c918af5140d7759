"""One request to N nodes, without I/O: whom to ask, whose connection to wait for, what is enough.

A thread (``threads``) or an event loop (``loops``) tells a ``VoteCollector`` of connections, votes
and the time, and does what it decides. A thread has its connections for itself, and the tasks of an
event loop share theirs. So one rule differs between the two: which nodes are prompt.
"""

from __future__ import annotations

import enum
import functools
import math
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

from django_redlock import events
from django_redlock.core.commands import Acquire, Release
from django_redlock.core.protocol import UNDO, Answer, Command, Request, Vote
from django_redlock.core.quorum import majority_of
from django_redlock.core.reasons import ReasonCode, because

from . import replies
from .connection import Asker, PendingReply, pack
from .faults import no_answer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Mapping, Sequence

    from django_redlock.core.reasons import Reason

    from .connection import Connection
    from .node import Node


Hear: TypeAlias = "Callable[[int, Vote], object]"

LEAST_LINGER: Final = 0.001  # seconds, of undoing
LEAST_WORTH: Final = 0.01  # seconds, of what the asker says is worth waiting for
HANDSHAKE: Final = 4  # node timeouts without a sign of a node that is being connected …
PATIENCE: Final = 20  # … and those that a request may last, while this machine runs
NOWHERE: Final = frozenset[int]()
HEAL: Final = Command.HEAL  # an enum's member costs five times a name
VOTING: Final = frozenset({Command.GRANT, Command.RAISE, Command.EXTEND, HEAL})


class Verdict(enum.Enum):
    """What to do next."""

    LISTEN = enum.auto()  # the outcome is open
    LINGER = enum.auto()  # it is clear, but a moment more is worth it: see ``linger``
    OVER = enum.auto()


LISTEN, LINGER, OVER = Verdict  # a member looked up on the class costs a call


class VoteCollector(ABC):
    """One request and its votes.

    Args:
        nodes: all nodes of the group.
        request: what is asked of them.
        timeout: the node timeout, in seconds.
        waiting: tells whether the asker waits, who may be cancelled; None where it cannot be.
        clock: ``time.monotonic``, or another one in tests.

    Attributes:
        votes: those heard, by place, or None.
        asked: the places of the nodes to ask, in order.
        undoing: whether it takes back what an earlier request did.
        touched: the places of the nodes that may have what the request undoes.
        urgent: whether there is no majority without the nodes that are being connected.
        unheard: the connections over which a node was asked that has not answered, by place.
        coming: the places whose connection a loop waits for, while it listens to others.
        needed: how many votes must still come until fewer than a majority are missing. Before that
            nothing can be clear.
        lingering: whether the outcome is clear.
        lingers_until: ``time.monotonic`` until which more is worth waiting for then.
        start: ``time.monotonic`` when it began.
        packed: the bytes of the request for every node; b"" where they differ.
        over: whether no vote counts any more.
        majority: more than half of the nodes.
    """

    late = False  # whether answers are also read at once when the request is over
    __slots__ = (
        *("_asker", "_patient", "_waiting", "asked", "clock", "coming", "lingering"),
        *("lingers_until", "majority", "needed", "nodes", "nonce", "over", "packed", "request"),
        *("start", "timeout", "touched", "undoing", "unheard", "urgent", "votes"),
    )

    def __init__(
        self,
        nodes: Sequence[Node],
        request: Request,
        timeout: float,
        waiting: asyncio.Future[Any] | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.nodes = nodes
        self.request, self.timeout = request, timeout
        self.nonce = request.nonce.encode()
        self.undoing = request.command in UNDO
        self.touched: Collection[int] = ()
        self.votes: list[Vote | None] = [None] * len(nodes)
        self.majority, self.asked = _plan(len(nodes), request.first)
        self.needed = self.majority
        self.lingers_until = math.inf
        self.urgent = self.lingering = False
        self.unheard: dict[int, Connection] = {}
        self.coming = NOWHERE
        self._patient: Collection[int] = ()  # the places of nodes that were not known to be down
        self.clock, self.start = clock, clock()
        self.packed = b"" if request.each is not None else pack(request, 0)
        self.over, self._waiting = False, waiting
        self._asker: Asker | None = None
        if request.to is not None and len(request.to) < len(nodes):
            self.asked = [place for place in self.asked if place in request.to]
            for place in set(range(len(nodes))) - request.to:
                self.lose(place, None)
        if self.undoing:
            self.touched = self.asked if request.touched is None else request.touched

    @property
    def asker(self) -> Asker:
        """What connections know of the request; made when one asks, for few ever do."""
        if self._asker is None:
            self._asker = Asker(self.request, self.start, self._waiting, packed=self.packed)
            self._asker.over = self.over
        return self._asker

    # -- whom to ask ----------------------------------------------------------------------------

    def awaits(self, place: int) -> bool:
        """Return whether to wait for a node, before it is connected.

        A lease of a bare majority ends with the first of its nodes. So all nodes are waited for,
        but one that is in trouble only if it is needed.
        """
        node = self.nodes[place]
        if not node.down:
            self._patient = (*self._patient, place)
        return self.urgent or not node.down_reason

    def handshake_left(self, place: int, waited: float, silent: float) -> float:
        """Return for how many seconds more to wait for a node that is being connected.

        That is one node timeout. While there is no majority without the nodes that are being
        connected, one that was not known to be down gets longer: until it has given no sign for
        ``HANDSHAKE`` node timeouts, and ``PATIENCE`` node timeouts in all at the most.

        Args:
            waited: seconds, without those in which this machine did not run.
            silent: of these, the seconds since the node gave a sign.
        """
        left = self.timeout - waited
        if self.urgent and place in self._patient:
            patience = HANDSHAKE * self.timeout - silent
            left = max(left, min(patience, PATIENCE * self.timeout - waited))
        return left

    def is_silent(self, seconds: float) -> bool:
        """Return whether a node with no sign for so long is one that is not waited for again."""
        return seconds >= self.timeout / 2

    def owed(self, connections: Mapping[int, Connection], now: float) -> dict[int, PendingReply]:
        """Return what the nodes with a connection will owe, by place; but not those asked before.

        A node that may not vote on this has lost its vote.
        """
        request, asker, hear = self.request, self.asker, self._hear()
        heals = request.command is HEAL
        if request.still is not None and not request.still():
            for place in connections:
                self.lose(place, None)
            return {}
        if events.node_watchers:
            hear = timed(self.nodes, asker, hear, late=self.late)
        pending = PendingReply(request.command, self.nonce, hear, now, asker.packed, asker)
        found = {}
        for place, connection in connections.items():
            if self.votes[place] is not None or place in self.unheard:
                continue
            node = self.nodes[place]
            if (connection.guarded or node.duplicate_of) and request.command in VOTING:
                why = node.objection(connection, self.start)
                if why:
                    self.lose(place, why)
                    continue
            own = request.each is not None  # each node is asked something else
            if heals and node.has_unanswered(request.nonce):
                # The unanswered grant may still be carried out. If an adopter then comes and goes,
                # this heal would put the nonce there a second time, for a second adopter to have.
                self.lose(place, because(ReasonCode.GRANT_UNANSWERED))
                continue
            found[place] = pending._replace(packed=pack(request, place)) if own else pending
        return found

    @abstractmethod
    def _hear(self) -> Hear:
        """Return what is called with each vote."""

    def lose(self, place: int, why: Reason | None, *, sent: bool = False) -> None:
        """Note that this node gives no vote."""
        self.votes[place] = Vote(self.nodes[place].label, Answer.UNKNOWN, reason=why, sent=sent)
        if why and events.node_watchers:
            tell(self.nodes[place], None, why)

    def keep(self, place: int) -> None:
        """Entrust what this node is to undo to its next connection."""
        if place in self.touched:
            self.nodes[place].undo_later(self.asker)

    def unreachable(self, place: int) -> None:
        """Note that a node has no connection; it undoes as soon as it has one."""
        node = self.nodes[place]
        self.lose(place, node.why_unasked)
        self.keep(place)

    def not_sent(self, place: int, fault: Reason | None) -> None:
        """Note that a connection did not take the request; with a fault it may have arrived."""
        self.lose(place, fault or because(ReasonCode.BACKLOG), sent=bool(fault))
        self.keep(place)

    def is_unanswered(self, place: int) -> bool:
        """Return whether a node may have what an interrupted request was to undo."""
        vote = self.votes[place]
        return place in self.touched and (vote is None or vote.answer is Answer.UNKNOWN)

    def keep_unanswered(self) -> None:
        """Entrust to their next connections what the nodes have not confirmed."""
        self.forget()
        for place in filter(self.is_unanswered, self.asked):
            self.keep(place)

    # -- when it is enough ----------------------------------------------------------------------

    def verdict(self) -> Verdict:
        """Return whether to go on."""
        if not (self.unheard or self.coming):
            return OVER
        self.needed = self.votes.count(None) - self.majority + 1
        if self.lingering:
            return LINGER if self._is_worth_more() else OVER
        if self.needed > 0 or not self.request.decided(self.votes):
            return LISTEN
        worth = self._is_worth_more()
        self.lingers_until = self._end_of_linger() if worth else self.start
        self.lingering = True  # last: an interruption between the two would leave no end
        return LINGER if worth else OVER

    def _end_of_linger(self) -> float:
        if self.coming:  # a node that is being connected has its whole time
            return self.start + self.timeout
        now = self.clock()
        return now + self.linger(now)

    def _is_worth_more(self) -> bool:
        """Return whether nodes that are only a little late are worth a moment."""
        if self.coming:
            return True
        if self.undoing:
            return self._prompt()
        worth = self.request.worth
        return worth is not None and worth(self.votes)

    @abstractmethod
    def _prompt(self) -> bool:
        """Return whether a prompt node has not answered yet.

        Undoing waits for prompt nodes, so that the name is free on all of them when it returns.
        """

    def linger(self, now: float) -> float:
        """Return the seconds to wait for more, once the outcome is clear: as long again."""
        least = LEAST_LINGER if self.undoing else LEAST_WORTH
        return max(now - self.start, least)

    def is_short_of_votes(self) -> bool:
        """Return whether too few nodes have answered, so that another one matters."""
        heard = [vote for vote in self.votes if vote and vote.answer is not Answer.UNKNOWN]
        return not self.undoing and len(heard) < self.majority

    def reopen(self, place: int) -> None:
        """Expect a vote after all, of a node that was given up."""
        self.votes[place] = None
        self.lingering = False

    def forget(self) -> None:
        """Refer to no connection or caller any more, so that no cycle is left as garbage."""
        self.unheard.clear()
        self.over, self._waiting = True, None
        if self._asker is not None:
            self._asker.leave()

    def result(self) -> list[Vote]:
        """Return the votes, with an unknown one for each node that was not heard."""
        if None in self.votes:
            waited = self.clock() - self.start
            # Else the asker did not wait, or waited for a connection.
            silent = waited >= self.timeout and not self.request.decided(self.votes)
            for place, vote in enumerate(self.votes):
                if vote is None:
                    if silent:
                        self.lose(place, no_answer(waited), sent=True)
                    else:
                        self.votes[place] = self.nodes[place].unheard
        self.forget()
        return list(self.votes)  # type: ignore[arg-type] # none is None


@functools.cache
def _plan(size: int, first: int) -> tuple[int, Sequence[int]]:
    return majority_of(size), (*range(first, size), *range(first))


YES: Final = Answer.YES  # an enum's member costs five times a name
NOTHING: Final = ()  # what no reply equals


class ThreadCollector(VoteCollector):
    """The request of a thread, which has its connections for itself.

    Attributes:
        prompt: the places of the nodes that owed nothing when they were asked. These are prompt:
            a node that owes an answer already may hang, and would cost every release a moment.
    """

    __slots__ = ("prompt",)

    def __init__(
        self,
        nodes: Sequence[Node],
        request: Request,
        timeout: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(nodes, request, timeout, clock=clock)
        self.prompt: set[int] = set()

    def _hear(self) -> Hear:
        return self.votes.__setitem__

    def _prompt(self) -> bool:
        return not self.prompt.isdisjoint(self.unheard)


class Driver(Protocol):
    """What carries the requests of tasks to the nodes."""

    def follow(self, collector: TaskCollector, verdict: Verdict) -> None:
        """Do what a verdict says."""


class TaskCollector(VoteCollector):
    """The request of a task, over connections that owe other tasks something at most times.

    A node is prompt if it had not been silent for longer than the majority took to answer.

    Connections may keep it in place of a ``PendingReply`` for each of them (``connection.Owed``).
    Then a reply that equals ``said`` is a YES without another look: to a grant, the first YES,
    nonce and number; to a release, that the names are free and nobody waited.

    Args:
        answered: the task's future.

    Attributes:
        answered: the future, until it has the votes; None from then on.
        driver: is told when a vote has changed the verdict.
        command: of the request.
        said: the reply that is known to be a YES; nothing equals it as long as there is none.
    """

    __slots__ = ("_number", "answered", "command", "driver", "said")
    late = True  # a loop reads what comes when the request is over

    def __init__(
        self,
        nodes: Sequence[Node],
        request: Request,
        timeout: float,
        answered: asyncio.Future[list[Vote]],
        driver: Driver | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(nodes, request, timeout, answered, clock=clock)
        self.answered: asyncio.Future[list[Vote]] | None = answered
        self.driver = driver
        self.command: Command = request.command
        self.said: object = NOTHING
        self._number = 0  # in ``said``, of a grant
        if isinstance(request, Release):
            self.said = [self.nonce, request.done, 0]

    # -- in the stream of each connection -------------------------------------------------------

    @property
    def since(self) -> float:
        """Return the ``time.monotonic`` when it was sent."""
        return self.start

    def vote_in(self, label: str, answer: object) -> Vote | None:
        """Return the vote in a reply of the node with this label; None: it is to something else."""
        request = self.request
        vote = replies.vote(request, label, self.nonce, answer)
        if self.said is NOTHING and vote and vote.answer is YES and isinstance(request, Acquire):
            self._number, self.said = vote.fence, answer
        return vote

    def alone(self) -> PendingReply:
        """Return the request as a tuple, to be sent once more or to be heard by another."""
        return PendingReply(
            self.command, self.nonce, self.hear, self.start, self.packed, self.asker
        )

    # -- hearing --------------------------------------------------------------------------------

    def _hear(self) -> Hear:
        return self.hear

    def hear(self, place: int, vote: Vote) -> None:
        """Note a vote."""
        answered = self.answered
        if answered is None:
            return
        if answered.done():
            self.forget()
            self.answered = None
            return
        self.votes[place] = vote
        self.unheard.pop(place, None)
        if len(self.unheard) >= self.majority:  # nothing can be clear yet
            return
        before, verdict = self.lingering, self.verdict()
        driver = self.driver
        if driver is not None and (verdict is OVER or self.lingering is not before):
            driver.follow(self, verdict)

    def hear_again(self, place: int) -> None:
        """Note that the node at this place replied what is in ``said``."""
        if self.answered is not None:
            node, number = self.nodes[place], self._number
            self.hear(place, Vote(node.label, YES, number) if number else node.freed)

    def forget(self) -> None:
        """Refer to no connection or caller any more; but to the future, which is told last."""
        super().forget()
        self.driver = None

    def end(self) -> None:
        """Give the future the votes; what still refers to the request keeps no event loop."""
        votes = self.result()
        if self.answered is not None and not self.answered.done():
            self.answered.set_result(votes)
        self.answered = None

    def _prompt(self) -> bool:
        patience = LEAST_LINGER  # of all; a clock is read for few
        for each in self.unheard.values():
            silent = each.silent_for(self.start)
            if silent > patience:
                patience = self.linger(self.clock())
            if silent <= patience:
                return True
        return False


def tell(node: Node, seconds: float | None, why: Reason | None = None) -> None:
    """Tell how long a node took, or (None) why it gave no vote."""
    events.tell_of_node(events.NodeTiming(node.alias, node.label, seconds, why))


def timed(
    nodes: Sequence[Node], asker: Asker, hear: Callable[[int, Vote], object], *, late: bool
) -> Callable[[int, Vote], object]:
    """Return ``hear`` with a clock that starts now.

    Args:
        late: whether answers are also read at once when the request is over. Else they are read
            at the next use of the connection, which says nothing of the node.
    """
    sent = time.monotonic()

    def hear_and_tell(place: int, vote: Vote) -> None:
        node, over, seconds = nodes[place], asker.over, time.monotonic() - sent
        hear(place, vote)
        if vote.answer is Answer.UNKNOWN:
            if not over:
                tell(node, None, vote.reason)
        elif late or not over:
            tell(node, seconds)

    return hear_and_tell

"""One request to N nodes, without I/O: whom to ask, what counts, when it is enough, what is undone.

A *driver* tells an ``Exchange`` of connections, votes and the time, and does what it decides:
``link`` polls on the thread that asks, and ``loops`` is called by an event loop. The usual way
is a branch of the same exchange: a request has one *usual* reply, which nearly every node sends, so
replies are compared with its bytes, and parsed only if they differ.

A thread has its connections for itself, and the tasks of an event loop share theirs. So one rule
differs between the two: which nodes are prompt.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import math
import time
import weakref
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from django_redlock import events
from django_redlock.core.commands import DIGITS, number_at
from django_redlock.core.protocol import TAKING, UNDO, Answer, Command, Request, Vote
from django_redlock.core.quorum import majority_of
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.interruption import gone, remove

from . import replies
from .connection import OnWire, SentAgain, pack
from .faults import no_answer
from .node import Undo

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Collection, Mapping, Sequence

    from django_redlock.core.reasons import Reason

    from .background import ListeningTime
    from .connection import Connection
    from .node import ConnectAttempt, Node


LEAST_LINGER: Final = 0.001  # seconds, of undoing
LEAST_WORTH: Final = 0.01  # seconds, of what the asker says is worth waiting for
HANDSHAKE: Final = 4  # node timeouts without a sign of a node that is being connected …
PATIENCE: Final = 20  # … and those that a request may last, while this machine runs
NOTHING: Final[Mapping[int, Any]] = MappingProxyType({})
NO_LINK: Final = -1  # what does not take names needs none
FEW_LATE: Final = 1024  # nonces that are not worth tidying …
MOST_LATE: Final = 65_536  # … and those that are kept
# An enum's member costs five times a name.
YES: Final = Answer.YES
GRANT: Final = Command.GRANT
EXTEND: Final = Command.EXTEND
HEAL: Final = Command.HEAL
VOTING: Final = frozenset({GRANT, Command.RAISE, EXTEND, HEAL})


class Verdict(enum.Enum):
    """What to do next."""

    LISTEN = enum.auto()  # the outcome is open
    LINGER = enum.auto()  # it is clear, but a moment more is worth it: see ``linger``
    OVER = enum.auto()


LISTEN, LINGER, OVER = Verdict  # a member looked up on the class costs a call


class Exchange(OnWire):
    """One request and its votes.

    The connections over which it was written keep it (``Connection.owed``) until the node has
    replied; they may do so long after it is over.

    Args:
        nodes: all nodes of the group.
        request: what is asked of them.
        timeout: the node timeout, in seconds.
        answered: of a task, its future.
        clock: ``time.monotonic``, or another one in tests.

    Attributes:
        votes: those heard, by index, or None.
        asked: the indexes of the nodes to ask, in order.
        undoing: whether it takes back what an earlier request did.
        touched: the indexes of the nodes that may have what the request undoes.
        majority: more than half of the nodes.
        votes_to_quorum: number of votes still missing for a decision.
        unheard: the connections over which a node was asked that has not replied, by index.
        prompt: of a thread, the indexes of the nodes that owed no reply when they were asked, or
            only that to the grant that is undone. A node that owes more may hang, and would cost
            every release a moment. None: a task cannot know; see ``_is_prompt_one_missing``.
        urgent: whether there is no majority without the nodes that are being connected.
        coming: the connections that a loop waits for while it listens to others, by index.
        lingering: whether the outcome is clear.
        lingers_until: ``time.monotonic`` until which more is worth waiting for then.
        start: ``time.monotonic`` when it began.
        over: whether no vote counts any more.
        answered: the task's future, until it has the votes.
        late: the exchanges of the group to which not all nodes have replied.
        missing: when it is over, the indexes of the nodes that may still do what they were asked to
            take, with a weak reference to the connection, or ``gone``: that has ended.
        link: who carries it: the number of a thread's link, or of the connections of a task's loop.
        undone: the undo that was sent over other connections before all nodes had replied: where a
            reply comes, it is sent once more.
        follow: of a task, called with the exchange and the verdict when a vote has changed it.
        begins: how the usual reply to a grant begins; the first one shows the number behind it.
        number: that number.
    """

    # What most exchanges leave as it is.
    urgent = lingering = over = False
    lingers_until = math.inf
    prompt: tuple[int, ...] | None = None
    coming: Mapping[int, ConnectAttempt] = NOTHING
    touched: Collection[int] = ()
    begins = b""
    number = 0
    answered: asyncio.Future[Any] | None = None
    follow: Callable[[Exchange, Verdict], object] | None = None
    clock: Callable[[], float] = staticmethod(time.monotonic)
    link = NO_LINK
    undone: Exchange | None = None
    missing: Mapping[int, Callable[[], Connection | None]] = NOTHING
    _patient: Collection[int] = ()  # the indexes of nodes that were not known to be down
    _timed = 0.0  # ``time.monotonic`` when it was sent, while somebody watches the nodes
    _written = False

    def __init__(
        self,
        nodes: Sequence[Node],
        request: Request,
        timeout: float,
        answered: asyncio.Future[Any] | None = None,
        *,
        late: LateExchanges | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.nodes, self.request, self.timeout = nodes, request, timeout
        self.command, self.nonce = request.command, request.nonce.encode()
        self.undoing = request.command in UNDO
        self.votes: list[Vote | None] = [None] * len(nodes)
        self.majority, self.asked = _plan(len(nodes), request.first)
        self.votes_to_quorum = self.majority
        self.unheard: dict[int, Connection] = {}
        self.late = LateExchanges() if late is None else late
        if clock is not None:
            self.clock = clock
        if answered is not None:
            self.answered = answered
        self.start = self.since = self.clock()
        self.packed = b"" if request.each is not None else pack(request, 0)
        if request.command is GRANT:
            self.begins = request.usual_reply()
        else:
            self.usual = request.usual_reply()
        if request.to is not None and len(request.to) < len(nodes):
            self.asked = [index for index in self.asked if index in request.to]
            for index in set(range(len(nodes))) - request.to:
                self.lose(index, None)
        if self.undoing:
            self.touched = self.asked if request.touched is None else request.touched

    # -- in the stream of each connection -------------------------------------------------------

    @property
    def count(self) -> int:  # type: ignore[override] # read for few
        return self.request.count

    @property
    def until(self) -> float:  # type: ignore[override] # as above
        undo = self if self.undoing else self.undone
        return undo.start + undo.request.lasts if undo else -math.inf

    @property
    def gone(self) -> bool:  # type: ignore[override] # as above
        return self.over or (self.answered is not None and self.answered.done())

    @property
    def is_open(self) -> bool:
        """Whether a task waits for the votes."""
        return self.answered is not None and not self.answered.done()

    def vote_in(self, label: str, reply: object) -> Vote | None:
        return replies.vote(self.request, label, self.nonce, reply)

    def learn(self, data: bytes, pos: int) -> bytes:
        begins = self.begins
        if not begins or not data.startswith(begins, pos):
            return b""
        end = pos + len(begins)
        if number := number_at(data, end):
            self.number, self.usual = number, data[pos : end + DIGITS + 2]
            return self.usual
        return b""

    def usual_vote(self, index: int) -> Vote:
        """Return the vote in the usual reply of the node at this index, to an extension."""
        return self.request.usual_vote(self.nodes[index].label)

    # -- whom to ask ----------------------------------------------------------------------------

    def awaits(self, index: int) -> bool:
        """Return whether to wait for a node, before it is connected.

        A lease of a bare majority ends with the first of its nodes. So all nodes are waited for,
        and a node in trouble only if the majority needs it. How patient to be with the node is
        noted here as well: see ``handshake_left``.
        """
        node = self.nodes[index]
        if not node.down:
            self._patient = (*self._patient, index)
        trouble = node.down if self.request.patience else node.down_reason
        return self.urgent or not trouble

    def handshake_left(self, index: int, waited: float, silent: float) -> float:
        """Return for how many seconds more to wait for a node that is being connected.

        That is one node timeout. While there is no majority without the nodes that are being
        connected, one that was not known to be down gets longer: until it has given no sign for
        ``HANDSHAKE`` node timeouts, and ``PATIENCE`` node timeouts in all at the most. A request
        may be more patient, with all nodes that were not known to be down.

        Args:
            waited: seconds, without those in which this machine did not run.
            silent: of these, the seconds since the node gave a sign.
        """
        left = self.timeout - waited
        if index in self._patient:
            left = max(left, self.request.patience - waited)
            if self.urgent:
                patience = HANDSHAKE * self.timeout - silent
                left = max(left, min(patience, PATIENCE * self.timeout - waited))
        return left

    def left_to_connect(
        self, attempts: Mapping[int, ConnectAttempt], listening: ListeningTime
    ) -> tuple[float, int]:
        """Return for how many seconds more to wait for a connection, and the index of that node."""
        waited = listening.waited
        lefts = (
            (self.handshake_left(index, waited, listening.silence(each.heard)), index)
            for index, each in attempts.items()
        )
        return max(lefts, default=(0.0, -1))

    def next_wait(self, listening: ListeningTime) -> float:
        """Return for how many seconds to wait next; 0: it is enough, or too late.

        A node may be silent for one node timeout, which counts from its last reply: behind many
        other requests one that is busy has longer, and one that hangs has not. Who wakes up late
        could hear no node: silence counts anew then, for if the whole machine was paused, so were
        nodes on it. In all that is ``PATIENCE`` node timeouts at the most, and what the request
        allows besides.
        """
        now, wait = self.clock(), 0.0
        for connection in self.unheard.values():
            if listening.late > self.timeout / 4:
                connection.heard = now
            if not connection.fault:  # else the end of it was not heard: an interruption
                wait = max(wait, self.timeout - connection.silent_for(now))
        left, _ = self.left_to_connect(self.coming, listening)
        if left > 0:
            wait = max(wait, listening.part(left))
        if self.lingering:
            wait = min(wait, self.lingers_until - now)
        longest = PATIENCE * self.timeout + self.request.patience - listening.waited
        return max(0.0, min(wait, longest))

    def is_silent(self, seconds: float) -> bool:
        """Return whether a node with no sign for so long is one that is not waited for again."""
        return seconds >= self.timeout / 2

    def ask(self, connections: Mapping[int, Connection], now: float) -> dict[int, OnWire]:
        """Return what to write to the nodes with a connection, by index; not to those asked before.

        A node that may not vote on this has lost its vote.
        """
        request = self.request
        if request.still is not None and not request.still():
            for index in connections:
                self.lose(index, None)
            return {}
        if events.node_watchers:
            self._timed = time.monotonic()
        found: dict[int, OnWire] = {}
        for index, connection in connections.items():
            if self.votes[index] is not None or index in self.unheard:
                continue
            node = self.nodes[index]
            if (connection.guarded or node.duplicate_of or self.command is HEAL) and (
                why := self._objection(index, connection)
            ):
                self.lose(index, why)
                continue
            if request.each is not None:  # each node is asked something else
                found[index] = SentAgain(self, pack(request, index), now)
            else:  # a node's silence counts from when it was asked, and others may be asked later
                found[index] = SentAgain(self, self.packed, now) if self._written else self
        if not self._written:
            self._written, self.since = True, now
        return found

    def _objection(self, index: int, connection: Connection) -> Reason | None:
        if self.command is HEAL and self.late.has(self.request.nonce, index):
            # The unanswered grant may still be carried out. If an adopter then comes and goes, this
            # heal would put the nonce there a second time, for a second adopter to have.
            return because(ReasonCode.GRANT_UNANSWERED)
        if self.command not in VOTING:
            return None
        return self.nodes[index].objection(connection, self.start)

    def lose(self, index: int, why: Reason | None, *, sent: bool = False) -> None:
        """Note that this node gives no vote."""
        self.votes[index] = Vote(self.nodes[index].label, Answer.UNKNOWN, reason=why, sent=sent)
        if why and events.node_watchers:
            tell(self.nodes[index], None, why)

    def keep(self, index: int) -> None:
        self.nodes[index].undo_later(Undo(self.request, self.start))

    def entrust(self, index: int) -> None:
        """Entrust what this node may have to undo to its next connection."""
        if index in self.touched:
            self.keep(index)

    def unreachable(self, index: int) -> None:
        """Note that a node has no connection; it undoes as soon as it has one."""
        self.lose(index, self.nodes[index].why_unasked)
        self.entrust(index)

    def not_sent(self, index: int, fault: Reason | None) -> None:
        """Note that a connection did not take the request; with a fault it may have arrived."""
        self.lose(index, fault or because(ReasonCode.BACKLOG), sent=bool(fault))
        self.entrust(index)

    def keep_unanswered(self) -> None:
        """Entrust to their next connections what the nodes have not confirmed."""
        self.forget()
        for index in self.asked:
            vote = self.votes[index]
            if index in self.touched and (vote is None or vote.answer is Answer.UNKNOWN):
                self.keep(index)

    # -- hearing --------------------------------------------------------------------------------

    def hear(self, index: int, vote: Vote) -> None:
        """Note a vote."""
        if self._timed:
            self._tell(index, vote)
        if self.over:
            self.strike(index)
            return
        if self.answered is not None and self.answered.done():
            self.forget()
            self.answered = None
            return
        self.votes[index] = vote
        self.unheard.pop(index, None)
        # A thread looks for itself; and while so many are missing nothing can be clear.
        if self.follow is None or len(self.unheard) >= self.majority:
            return
        before, verdict = self.lingering, self.verdict()
        if verdict is OVER or self.lingering is not before:
            self.follow(self, verdict)

    def hear_usual(self, index: int) -> None:
        """Note the vote in the usual reply."""
        if self.over and not self._timed:
            self.strike(index)
            return
        node = self.nodes[index]
        if self.command is GRANT:
            self.hear(index, Vote(node.label, YES, self.number))
        else:
            self.hear(index, node.agreed if self.command is not EXTEND else self.usual_vote(index))

    def cut(self, index: int, vote: Vote) -> None:
        """Note the vote of a node whose connection has ended: what was asked may still arrive."""
        if self.over:
            return
        if self.command in TAKING:
            self.missing = {**self.missing, index: gone}
        self.hear(index, vote)

    def strike(self, index: int) -> None:
        """Note that a node has replied at last, or will never: its connection has ended."""
        if index in self.missing:
            self.missing.pop(index, None)  # type: ignore[attr-defined] # only NOTHING is immutable
            if self.undone:
                self.undone.entrust(index)
            if not self.missing:
                self.late.strike(self)

    def _tell(self, index: int, vote: Vote) -> None:
        """Tell those who watch the nodes how long this one took.

        A thread reads what comes when the request is over at the next use of the connection: that
        says nothing of the node.
        """
        if vote.answer is Answer.UNKNOWN:
            if not self.over:
                tell(self.nodes[index], None, vote.reason)
        elif self.prompt is None or not self.over:
            tell(self.nodes[index], time.monotonic() - self._timed)

    # -- when it is enough ----------------------------------------------------------------------

    def verdict(self) -> Verdict:
        """Return whether to go on."""
        if not (self.unheard or self.coming):
            return OVER
        self.votes_to_quorum = self.votes.count(None) - self.majority + 1
        if self.lingering:
            return LINGER if self._is_worth_more() else OVER
        if self.votes_to_quorum > 0 or not self.request.decided(self.votes):
            return LISTEN
        worth = self._is_worth_more()
        self.lingers_until = self._end_of_linger() if worth else self.start
        self.lingering = True
        return LINGER if worth else OVER

    def _end_of_linger(self) -> float:
        if self.coming:  # a node that is being connected has its whole time
            return self.start + self.timeout
        now = self.clock()
        return now + self.linger(now)

    def _is_worth_more(self) -> bool:
        """Return whether nodes that are only a little late are worth a moment.

        Undoing waits for prompt nodes, so that the name is free on all of them when it returns.
        """
        if self.coming:
            return True
        if self.undoing:
            return self._is_prompt_one_missing()
        worth = self.request.worth
        return worth is not None and worth(self.votes)

    def _is_prompt_one_missing(self) -> bool:
        """Return whether a prompt node has not replied yet.

        The connections of tasks owe other tasks something at most times. There a node is prompt if
        it had not been silent for longer than the majority took to reply.
        """
        if self.prompt is not None:
            return not self.unheard.keys().isdisjoint(self.prompt)
        patience = LEAST_LINGER  # of all; a clock is read for few
        for each in self.unheard.values():
            silent = each.silent_for(self.start)
            if silent > patience:
                patience = self.linger(self.clock())
            if silent <= patience:
                return True
        return False

    def linger(self, now: float) -> float:
        """Return the seconds to wait for more, once the outcome is clear: as long again."""
        return max(now - self.start, LEAST_LINGER if self.undoing else LEAST_WORTH)

    def is_short_of_votes(self) -> bool:
        """Return whether too few nodes have replied, so that another one matters."""
        heard = [vote for vote in self.votes if vote and vote.answer is not Answer.UNKNOWN]
        return not self.undoing and len(heard) < self.majority

    def reopen(self, index: int) -> None:
        """Expect a vote after all, of a node that was given up."""
        self.votes[index] = None
        self.lingering = False

    def forget(self) -> None:
        """Refer to no connection or batch any more, so that no cycle is left as garbage."""
        self.unheard.clear()
        self.over, self.follow = True, None

    def result(self) -> list[Vote]:
        """Return the votes, with an unknown one for each node that was not heard."""
        if (self.unheard or self.missing) and self.command in TAKING:
            here = {index: weakref.ref(each) for index, each in self.unheard.items()}
            self.missing = {**here, **self.missing} if self.missing else here
            self.late.add(self)
        if None in self.votes:
            waited = self.clock() - self.start
            # Else the asker did not wait, or waited for a connection.
            silent = waited >= self.timeout and not self.request.decided(self.votes)
            for index, vote in enumerate(self.votes):
                if vote is None:
                    if silent:
                        self.lose(index, no_answer(waited), sent=True)
                    else:
                        self.votes[index] = self.nodes[index].not_waited_for
        self.forget()
        return list(self.votes)  # type: ignore[arg-type] # none is None

    def end(self) -> None:
        """Give a task's future the votes; what still refers to the exchange keeps no event loop."""
        votes = self.result()
        if self.answered is not None and not self.answered.done():
            with contextlib.suppress(RuntimeError):  # its event loop is closed, so nobody waits
                self.answered.set_result(votes)
        self.answered = None  # last: if this is interrupted, the timer ends it once more


class LateExchanges(dict[str, list[Exchange]]):
    """The exchanges to which not all nodes have replied, of what takes names, by nonce.

    An undo goes behind such an exchange, or once more when the node replies; and a heal goes to no
    such node: what the node was asked then may still be carried out. Who reads the reply strikes
    the node out (``Exchange.strike``). Threads and tasks share it; each change is one step.
    """

    def __init__(self) -> None:
        super().__init__()
        self._many = FEW_LATE

    def add(self, exchange: Exchange) -> None:
        """Note an exchange."""
        self.setdefault(exchange.request.nonce, []).append(exchange)
        if len(self) > self._many:
            self._tidy_up()

    def strike(self, exchange: Exchange) -> None:
        """Forget an exchange, to which all nodes have replied."""
        remove(exchange, self.get(exchange.request.nonce, []))

    def has(self, nonce: str, index: int) -> bool:
        """Return whether a node may still be about to take names for this nonce.

        Of a connection that has ended nobody hears. A node is left out once for that: what was on
        its way has arrived, or is lost, when the next renewal asks.
        """
        found = False
        for each in tuple(self.get(nonce, ())):
            if index in each.missing:
                found, connection = True, each.missing.get(index, gone)()
                if connection is None or connection.fault:
                    each.strike(index)
        return found

    def _tidy_up(self) -> None:
        for nonce in [nonce for nonce, exchanges in tuple(self.items()) if not exchanges]:
            self.pop(nonce, None)
        for nonce in tuple(self)[: max(0, len(self) - MOST_LATE)]:
            self.pop(nonce, None)
        self._many = max(FEW_LATE, min(2 * len(self), MOST_LATE))


@functools.cache
def _plan(size: int, first: int) -> tuple[int, Sequence[int]]:
    return majority_of(size), (*range(first, size), *range(first))


def tell(node: Node, seconds: float | None, why: Reason | None = None) -> None:
    """Tell how long a node took, or (None) why it gave no vote."""
    events.tell_of_node(events.NodeTiming(node.alias, node.label, seconds, why))

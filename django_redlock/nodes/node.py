"""One node: its connections, the undos it has not carried out, its vote, and its status.

Nothing here is locked: who takes a connection, or an undo, out of its list or dictionary has it.

A connection is of one link, loop or other caller at a time, or spare. One with an overdue reply is
stalled: while a node has one, the node is *silent*, gets no new requests, and costs no time. When
the reply arrives after all, the node is back. A loop keeps its connection, and says the same
(``LoopConnection.silent``).

Later calls try an unreachable node again, in a short-lived background thread, because redis-py's
handshake blocks. So they do with a node whose newest connection was told that it leads to a wrong
server, as after a failover behind the address.

A release may find no connection to the node, lose its connection, or get an error as the reply. The
name would then be taken on that node until its ttl is over. So the undo is kept until the node has
replied, or its keys have expired; a background thread sends it, unless a connection that is checked
out before carries it.
"""

from __future__ import annotations

import logging
import math
import select
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from django_redlock.core.policy import boottime
from django_redlock.core.protocol import Answer, Vote
from django_redlock.core.reasons import Reason, ReasonCode, because, code_of, describe
from django_redlock.interruption import Latch, aloud, drain, first, remove

from . import replies
from .admission import SKEW, ServerInfo, duplicated, guarded, wrong_clock
from .background import WorkerThreads, new_poll
from .connection import Connection, OnWire, close_as_silent, pack, silence, undoing_until
from .faults import (
    CLOSED,
    GUARD_OVER,
    SURPLUS,
    TAKES_NO_MORE,
    no_answer,
    why_unreached,
)
from .handshake import open_connection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from django_redlock.core.protocol import Command, Request, Wire

    from .address import Address


logger = logging.getLogger("django_redlock")

# Connecting.
LEAST_BACKOFF: Final = 0.05  # seconds between two tries of a node that is down …
MOST_BACKOFF: Final = 2.0  # … growing to this
OPEN_TIMEOUT: Final = 1.0  # seconds for each step of a handshake, in the background
LONGEST_ATTEMPT: Final = 10 * OPEN_TIMEOUT
MOST_ATTEMPTS: Final = 8  # at the same time: more threads would slow down all others
# Idle connections.
SPARE: Final = 64  # kept for a node, and links of a group
UNDOS_FIRST: Final = 32_768  # bytes of undos sent before a request: both must have room
LONGEST_TORN: Final = 1.0  # seconds for which an undo may still come after an interruption
# Undos that are kept.
MOST: Final = 65_536  # for one node …
MOST_BYTES: Final = 32 * 1024 * 1024  # … and about how much memory their names may take
LEAST_PAUSE: Final = 0.05  # seconds before a node that replied with an error is asked again …
MOST_PAUSE: Final = 2.0  # … growing to this
SETTLE_EVERY: Final = 0.25  # seconds after which replies are read for which no caller waits
LONGEST_REPLY: Final = 1.0  # seconds that a node may take for a reply for which no caller waits


class NodeStatus(NamedTuple):
    """The status of a node, for people.

    Attributes:
        label: ``host:port/db``.
        voting: whether it votes now.
        reason: why not; None if it does.
        software, role: as the node said; "" if it was never reached.
        uptime: seconds, or None.
        round_trip: seconds of one small command when the connection was opened, or None.
        guard_left: seconds left of the restart guard.
        clock_off: seconds that its clock is ahead of this machine's (negative: behind), where it
            has no vote because of that; else 0.
    """

    label: str
    voting: bool
    reason: Reason | None = None
    software: str = ""
    role: str = ""
    uptime: float | None = None
    round_trip: float | None = None
    guard_left: float = 0.0
    clock_off: float = 0.0

    @property
    def code(self) -> str:
        """Return the reason's code, for programs; "" if the node votes."""
        return code_of(self.reason)

    @property
    def why(self) -> str:
        """Return the reason as a sentence, for people; "" if the node votes."""
        return describe(self.reason)


class ConnectAttempt:
    """An attempt to connect to a node.

    Attributes:
        done: set when the attempt has ended.
        awaited: whether the caller still waits for it.
        wanted: ``time.monotonic`` when the caller asked for it.
        heard: ``time.monotonic`` when the node last gave a sign, or else when it was first asked
            for one; None while the thread that connects has not begun.
        then: called by the thread that connects when it is done.
    """

    def __init__(self, then: Callable[[ConnectAttempt], object] | None) -> None:
        self.done = Latch()
        self._came: list[Connection] = []
        self.awaited = True
        self.wanted = time.monotonic()
        self.heard: float | None = None
        self.then = then

    def bring(self, connection: Connection) -> None:
        """Note that the attempt has succeeded."""
        self._came.append(connection)

    def take(self) -> Connection | None:
        """Return the connection, to the first who asks; None: the attempt failed, or it is gone."""
        return first(drain(self._came.pop))

    def progress(self) -> None:
        """Note that the node has given a sign, or is asked for the first one now."""
        self.heard = time.monotonic()


class Node:
    """One master. All methods may be called by any thread.

    Attributes:
        label: ``host:port/db``.
        alias: under which its group is configured, or "".
        timeout: seconds that the node may take to reply.
        down_reason: why callers do not wait for the node; None if they do.
        unconnected, unopened: the reason while connecting takes too long; why it failed, or None.
        undos: the undos that the node has not carried out.
        duplicate_of: the label of an earlier node that is the same server, or "".
        facts: what it said of itself at the last connection.
        not_waited_for: its vote where a request was decided without it.
        agreed: its YES that says nothing else.
        threads: those that connect to it and send what it has not undone.
    """

    def __init__(
        self,
        address: Address,
        *,
        index: int,
        fences: str,
        guard: float,
        timeout: float,
        welcomed: Callable[[], None],
        skew: float = SKEW,
        failover: bool = False,
        alias: str = "",
        alone: bool = False,
    ) -> None:
        self.label, self.timeout = address.label, timeout
        self.unconnected = because(ReasonCode.CONNECTING, seconds=timeout)
        self.alias = alias
        self.not_waited_for = Vote(
            self.label, Answer.UNKNOWN, reason=because(ReasonCode.NOT_WAITED_FOR)
        )
        self.agreed = Vote(self.label, Answer.YES)
        self._address = address
        self._index = index
        self._fences = fences
        self._guard = guard
        self._skew = skew
        self._failover = failover
        self._welcomed = welcomed
        self._only_node_of = alias if alone else ""
        self.facts: ServerInfo | None = None
        self._opened_here: weakref.WeakSet[Connection] = weakref.WeakSet()
        self.reset()

    def reset(self) -> None:
        """Close and forget every socket, as a forked child must; its parent's stay as they are."""
        self._free: list[Connection] = []
        self._stalled: list[Connection] = []
        self.undos = UndoQueue(self)
        self.threads = WorkerThreads()
        self.down_reason: Reason | None = None
        self.unopened: Reason | None = None
        for connection in tuple(self._opened_here):
            connection.socket.close()  # sends nothing, not even the end of the stream
        self._opened_here = weakref.WeakSet()
        self._attempts: weakref.WeakSet[ConnectAttempt] = weakref.WeakSet()
        self._backoff = 0.0
        self._tried = self._retry_at = self._failed_at = float("-inf")
        self._turned_away = float("-inf")  # time.monotonic
        self._last: Connection | None = None
        self.duplicate_of = ""

    def close(self) -> None:
        """Close every connection that is not in use."""
        for connection in drain(self._free.pop, self._stalled.pop):
            connection.close(CLOSED)

    @property
    def down(self) -> bool:
        """Tell whether the node is down for a reason other than a pending connect."""
        return self.down_reason not in (None, self.unconnected)

    @property
    def why_unasked(self) -> Reason:
        """Return why a request went without a connection to the node."""
        return self.down_reason or self.unopened or self.unconnected

    # -- checking out and in ---------------------------------------------------------------------

    @property
    def is_bare(self) -> bool:
        """Whether no connection is here, idle or stalled."""
        return not (self._free or self._stalled)

    def take(self, now: float) -> Connection | None:
        """Return a connection for a new request, or None: see ``down_reason``, or open one.

        Kept undos are sent first: the key of an earlier attempt may be in the way.
        """
        connection = self._take(now)
        if connection is not None and self.undos.kept:
            self.undos.send(connection.send, now, most=UNDOS_FIRST)
        return connection

    def _take(self, now: float) -> Connection | None:
        if self._stalled:
            self._read_stalled(now)
        while not self._stalled:
            try:
                connection = self._free.pop()
            except IndexError:
                return None
            if not (connection.owed or connection.guarded or connection.fault):
                return connection
            if (silent := connection.silent_for(now)) > self.timeout:
                connection.read()
                silent = silence(connection, now, self.timeout)
            if connection.fault:
                continue
            if silent > self.timeout:
                self._stalled.append(connection)
                self.down_reason = no_answer(silent)
            elif connection.guarded and now >= connection.votes_from:
                connection.close(GUARD_OVER)
            else:
                return connection
        return None

    def is_behind(self, nonce: bytes) -> bool:
        """Return whether a stalled connection owes the reply to a request of this nonce."""
        return any(each.owes(nonce) for each in tuple(self._stalled))

    def take_behind(self, nonce: str) -> Connection | None:
        """Return a stalled connection to undo ``nonce`` on: the one that has its grant, if any.

        A node that hangs has the undo in its kernel, even if this process goes.
        """
        stalled = tuple(self._stalled)
        for connection in (*(each for each in stalled if each.owes(nonce.encode())), *stalled):
            if self.take_silent(connection):
                return connection
        return None

    def take_silent(self, connection: Connection) -> bool:
        """Take this connection, if it is stalled here; return whether it was."""
        return remove(connection, self._stalled)

    def is_back(self) -> bool:
        """Return whether a node that was known to be down has a connection again."""
        if self._stalled:
            self._read_stalled(time.monotonic())
        return not self.down_reason

    def replies(self) -> None:
        """Note that a connection owes no overdue reply, even if another one failed."""
        if self.down_reason and not self._stalled:
            self.down_reason = None

    def stall(self, connection: Connection, now: float) -> None:
        """Take a connection back on which a reply is overdue: the node is silent."""
        self._stalled.append(connection)
        self.down_reason = self.down_reason or no_answer(connection.silent_for(now))
        if undoing_until(connection.owed) > now:
            self.work_on_undos()

    def give(self, connection: Connection, now: float) -> None:
        """Take a connection back, which may still owe replies."""
        if connection.unsent and not (connection.fault or connection.flush()):
            connection.close(TAKES_NO_MORE)
        if connection.fault:
            return
        if silence(connection, now, self.timeout) > self.timeout:
            self.stall(connection, now)
            return
        if connection.owed and undoing_until(connection.owed) > now:
            self.work_on_undos()
        self.replies()
        self._keep(connection)

    def _keep(self, connection: Connection) -> None:
        if len(self._free) < SPARE:
            self._free.append(connection)
        else:
            connection.close(SURPLUS)

    def _read_stalled(self, now: float) -> None:
        """Read each stalled connection; one that owes nothing more is free."""
        for connection in _read_each(self._stalled, tuple(self._stalled)):
            if connection.owed:
                self._stalled.append(connection)
                continue
            if not connection.fault:
                self._free.append(connection)
            self.down_reason = None
        silent = [each.silent_for(now) for each in tuple(self._stalled)]
        if silent:
            self.down_reason = no_answer(max(silent))

    def settle(self, now: float) -> bool:
        """Read the idle connections; return whether the reply to an undo is still missing.

        That reply may be an error, or never come since the connection is broken: then the undo is
        sent once more, even if no caller uses the connection again.
        """
        self._read_stalled(now)
        doubtful = [each for each in tuple(self._free) if each.owed or each.fault]
        for connection in _read_each(self._free, doubtful):
            if not connection.fault:
                self._free.insert(0, connection)
        idle = (*self._free, *self._stalled)
        return any(connection.owed and undoing_until(connection.owed) > now for connection in idle)

    def undo_later(self, undo: Undo) -> None:
        """Send an undo that the node has not carried out once more, as soon as possible."""
        self.undos.add(undo)
        self.work_on_undos()

    def work_on_undos(self) -> None:
        """Have a background thread send the undos, and read for them, until there are none."""
        self.threads.offer("undo", self.undos.work, again=False)

    # -- eligibility ----------------------------------------------------------------------------

    def objection(self, connection: Connection, now: float) -> Reason | None:
        """Return why a request that changes locks has no vote over this connection, or None."""
        if connection.facts.off:
            return wrong_clock(connection.facts.off, self._skew)
        if now < connection.votes_from:
            return guarded(connection.votes_from - now, self._only_node_of)
        return duplicated(self.duplicate_of) if self.duplicate_of else None

    # -- opening --------------------------------------------------------------------------------

    def open(
        self, now: float, *, urgent: bool, then: Callable[[ConnectAttempt], object] | None = None
    ) -> ConnectAttempt | None:
        """Begin to connect in the background; return None while it is too early to try again.

        Args:
            urgent: whether the caller waits for this node, so that it is tried again soon.
        """
        self._note_turned_away()
        if self.down or (self.down_reason and not urgent):
            due = self._tried + LEAST_BACKOFF if urgent else self._retry_at
            # A thread that connects may be stuck: do not wait for it for ever.
            trying = len(self._attempts) > 0 and now < self._tried + LONGEST_ATTEMPT
            if trying or now < due:
                return None
        self._tried = now
        attempt = ConnectAttempt(then)
        self._attempts.add(attempt)
        try:
            if self.threads.offer("open", partial(self._open, attempt), most=MOST_ATTEMPTS):
                return attempt
        except BaseException:  # no thread may have begun: the next call must not wait for that
            self._attempts.discard(attempt)
            self.forgo(attempt)
            raise
        self._attempts.discard(attempt)
        self.unopened = because(ReasonCode.NO_THREAD)
        return None

    def _open(self, attempt: ConnectAttempt) -> None:
        connection = None
        try:
            if not self._is_answered(attempt):
                connection = self._connect(attempt.progress)
        finally:
            self._opened(attempt, connection)

    def _is_answered(self, attempt: ConnectAttempt) -> bool:
        """Tell whether this attempt is no longer needed, or another one failed meanwhile."""
        forgone = not attempt.awaited and attempt.then is None
        needless = forgone and bool(self._free)
        return needless or self._failed_at >= attempt.wanted

    def _opened(self, attempt: ConnectAttempt, connection: Connection | None) -> None:
        self._attempts.discard(attempt)
        if connection is not None:
            self._welcome(connection)
            self.undos.send(connection.send, time.monotonic())
            attempt.bring(connection)
            if not attempt.awaited:
                self.forgo(attempt)
        attempt.done.set()
        if attempt.then is not None:
            try:
                attempt.then(attempt)
            except RuntimeError:  # the event loop of the caller has been closed
                self.forgo(attempt)

    def _connect(self, progress: Callable[[], object]) -> Connection | None:
        progress()
        try:
            return open_connection(
                self._address,
                index=self._index,
                fences=self._fences,
                guard=self._guard,
                skew=self._skew,
                earlier=self._earlier(),
                timeout=max(OPEN_TIMEOUT, self.timeout),
                failover=self._failover,
                only_node_of=self._only_node_of,
                progress=progress,
            )
        except Exception as error:  # noqa: BLE001 - a provider of credentials may raise anything
            self._failed_at = time.monotonic()  # also for attempts that were wanted before
            self._back_off(self._failed_at)
            self.down_reason = self.unopened = why_unreached(error, tls=self._address.tls)
            return None

    def _back_off(self, now: float) -> None:
        self._backoff = min(MOST_BACKOFF, max(LEAST_BACKOFF, 2 * self._backoff))
        self._retry_at = now + self._backoff

    def _note_turned_away(self) -> None:
        """Count it as a failure to connect, once, that the newest connection was turned away.

        An older one says nothing of where the address leads now.
        """
        last = self._last
        if last is not None and last.turned_away:
            last.turned_away, self._turned_away = False, time.monotonic()
            self._back_off(self._turned_away)
            self.down_reason = last.fault

    def _earlier(self) -> ServerInfo | None:
        """Return what the node said at the last connection, and when its process last replied."""
        facts, last = self.facts, self._last
        if facts is None or last is None:
            return facts
        heard = boottime() - (time.monotonic() - last.answered)
        return facts._replace(alive=max(facts.alive, heard))

    def _welcome(self, connection: Connection) -> None:
        self._note_turned_away()
        self.facts, self._last = connection.facts, connection
        self._opened_here.add(connection)
        self._welcomed()
        self._read_stalled(connection.opened)  # what has come need not be asked again
        self.down_reason = self.unopened = None
        if connection.opened > self._turned_away + 2 * MOST_BACKOFF:  # else it may be once more
            self._backoff = 0.0
        for stalled in drain(self._stalled.pop):  # dead sockets: the node replies on a new one
            close_as_silent(stalled)

    def connection(self, *, at_least: float, last: bool) -> Connection | None:
        """Return a connection for the background, opened if needed; None: it is too early to try.

        Args:
            at_least: ``time.monotonic`` before which the node is not to be asked.
            last: whether there is no later try: then a node that is down is tried at once.
        """
        now = time.monotonic()
        if now < at_least:
            return None
        connection = self.take(now)
        self._note_turned_away()
        if connection is None and (last or now >= self._retry_at):
            connection = self._connect(bool)
            if connection is not None:
                self._welcome(connection)
        return connection

    def forgo(self, attempt: ConnectAttempt) -> None:
        """Stop waiting for an attempt; its connection will serve a later call."""
        attempt.awaited = False
        if (connection := attempt.take()) is not None:
            self._keep(connection)

    def suspect(self, attempt: ConnectAttempt) -> None:
        """Let no caller wait for the node: it has given no sign while a thread listened."""
        if not (attempt.done.is_set() or self._free):
            self.down_reason = self.down_reason or self.unconnected

    # -- telling --------------------------------------------------------------------------------

    def state(self, now: float) -> NodeStatus:
        """Return the status as it is known now, without asking the node."""
        self._note_turned_away()
        last, reason = self._last, self.down_reason
        if self.duplicate_of and not reason:
            reason = duplicated(self.duplicate_of)
        if last is None:
            reason = reason or because(ReasonCode.NEVER_REACHED)
            return NodeStatus(self.label, voting=False, reason=reason)
        off = last.facts.off
        guard_left = 0.0 if off else max(0.0, last.votes_from - now)
        if reason:
            off = 0.0
        elif off:
            reason = wrong_clock(off, self._skew)
        if not reason and guard_left > 0:
            reason = guarded(guard_left)
        return NodeStatus(
            self.label,
            voting=not reason,
            reason=reason,
            software=last.facts.software,
            role=last.facts.role,
            uptime=last.facts.uptime + now - last.opened,
            round_trip=last.round_trip,
            guard_left=guard_left,
            clock_off=off,
        )


def _read_each(idle: list[Connection], some: Iterable[Connection]) -> Iterator[Connection]:
    """Yield some of the connections of a list, each taken out of it first, and read then."""
    for connection in some:
        if remove(connection, idle):
            connection.read()
            yield connection


# -- undos ----------------------------------------------------------------------------------------


class Undo(NamedTuple):
    """An undo that a node has not carried out.

    Attributes:
        start: ``time.monotonic`` when it was to be sent at first.
    """

    request: Request
    start: float

    @property
    def until(self) -> float:
        """Return the ``time.monotonic`` from which the keys that it deletes have expired."""
        return self.start + self.request.lasts

    @property
    def what(self) -> What:
        """Return what it asks for: of one nonce there may be several, each of its own worth."""
        return self.request.nonce, self.request.command, self.request.wire()


What: TypeAlias = "tuple[str, Command, Wire]"


class SentUndo(OnWire):
    """An undo that is sent once more, now. Retrying cannot delay the ttl."""

    gone = True

    def __init__(self, undo: Undo, node: Node, now: float) -> None:
        request = undo.request.later(now - undo.start)
        self.command, self.count = request.command, request.count
        self.nonce = request.nonce.encode()
        self.since, self.until, self.packed = now, undo.until, pack(request, 0)
        self._undo, self._node, self._request = undo, node, request

    def vote_in(self, label: str, reply: object) -> Vote | None:
        return replies.vote(self._request, label, self.nonce, reply)

    def hear(self, _: int, vote: Vote) -> None:
        self._node.undos.heard(vote)

    def keep(self, _: int) -> None:
        self._node.undo_later(self._undo)


class UndoQueue:
    """The undos kept for one node, in the order in which they were kept; none twice.

    When a connection ends, a grant without a reply may still be on its way: in a proxy, or in a
    packet that TCP sends again. Its undo takes another connection, and may be there first. The name
    is then taken on this node until its ttl is over: nobody holds it by that grant.

    Attributes:
        kept: by what they ask for.
        dropped: how many were given up since the queue was last empty, because it was full.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.kept: dict[What, Undo] = {}
        self._bytes = 0
        self._from = -math.inf  # time.monotonic before which nothing is sent, after an error
        self._pause = 0.0
        self.dropped = 0

    def add(self, undo: Undo) -> None:
        """Keep an undo; if there are too many, drop the oldest: its keys expire first.

        Of two that ask for the same the later one stays, which is of interest for longer. It is
        kept as a new object: a thread that has just sent the earlier one does not remove it.
        """
        what, size = undo.what, _size(undo)
        there = self.kept.get(what)
        if there is None:
            self._bytes += size
        self.kept[what] = Undo(*(there if there and there.start > undo.start else undo))
        before = self.dropped
        while (len(self.kept) > MOST or self._bytes > MOST_BYTES) and (old := self._oldest()):
            self._remove(old)
            self.dropped += 1
        if self.dropped and not before:
            self._warn(
                "%s: too many releases wait for this node; some names stay taken there until "
                "their ttl is over"
            )

    def send(self, put: Callable[[OnWire], bool], now: float, *, most: float = math.inf) -> None:
        """Send what a connection takes; the rest is kept for the next one.

        Two threads may do so at the same time, and send an undo twice: that does no harm.

        Args:
            most: bytes.
        """
        while most > 0 and now >= self._from and (undo := self._oldest()) is not None:
            if now < undo.until:
                owed = SentUndo(undo, self._node, now)
                if not put(owed):
                    return
                most -= len(owed.packed)
            self._remove(undo)

    def _oldest(self) -> Undo | None:
        return first(self.kept.values())

    def _remove(self, undo: Undo) -> None:
        what, size, dropped = undo.what, _size(undo), 0
        found = self.kept.pop(what, None)
        if found is undo:
            self._bytes -= size
        elif found is not None:  # it was kept again meanwhile, and goes to the end
            self.kept.setdefault(what, found)
        if not self.kept:
            dropped, self._bytes, self.dropped = self.dropped, 0, 0
        if dropped:
            self._warn("%s: %d releases were given up while it could not be asked", dropped)

    def _warn(self, text: str, *more: object) -> None:
        label = self._node.label
        aloud(logger.warning, text, label, *more, extra={"redlock_node": label})

    def heard(self, vote: Vote) -> None:
        """Take the vote on an undo; after an error (full, loading, busy …) wait before the next."""
        if vote.answer is not Answer.UNKNOWN:
            self._pause, self._from = 0.0, -math.inf
        else:
            self._pause = min(MOST_PAUSE, max(LEAST_PAUSE, 2 * self._pause))
            self._from = time.monotonic() + self._pause

    def hurry(self) -> None:
        """Let what is kept be sent at once, also after an error."""
        self._from = -math.inf

    # -- in the background ----------------------------------------------------------------------

    def work(self) -> None:
        """Send all undos until they are carried out; runs in a background thread.

        When its work is to end, it sends what the node takes at once.
        """
        threads = self._node.threads
        while time.monotonic() < threads.until:
            ending = threads.until < math.inf
            self._drop_ended(time.monotonic())
            if not self.kept:
                threads.pause(SETTLE_EVERY)
                if not (self.kept or self._node.settle(time.monotonic())):
                    return
                continue
            connection = self._node.connection(at_least=self._from, last=ending)
            if connection is None:
                if ending:
                    return
                threads.pause(LEAST_PAUSE)
                continue
            try:
                self._converse(connection)
            finally:
                self._node.give(connection, time.monotonic())
            if ending:
                return

    def _drop_ended(self, now: float) -> None:
        while (undo := self._oldest()) is not None and now >= undo.until:
            self._remove(undo)

    def _converse(self, connection: Connection) -> None:
        """Send and read until there is no more to do, or the node does not reply."""
        poll = new_poll()
        while not connection.fault:
            now = time.monotonic()
            self.send(connection.send, now)
            if not connection.owed or connection.silent_for(now) > LONGEST_REPLY:
                return
            poll.register(
                connection.fileno, select.POLLIN | (select.POLLOUT if connection.unsent else 0)
            )
            poll.poll(LONGEST_REPLY * 1000)
            connection.read()


def _size(undo: Undo) -> int:
    """Return about how many bytes the names of an undo take."""
    return 512 + 2 * sum(map(len, undo.request.keys))

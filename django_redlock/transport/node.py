"""One node: opening connections in the background, eligibility to vote, and status.

Later calls try an unreachable node again, in a short-lived background thread, because redis-py's
handshake blocks. ``pool`` has the open connections.
"""

from __future__ import annotations

import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from django_redlock.core.policy import boottime
from django_redlock.core.protocol import Answer, Vote
from django_redlock.core.reasons import Reason, ReasonCode, because, code_of, describe
from django_redlock.interruption import drain

from .admission import SKEW, duplicated, guarded, wrong_clock
from .attempt import ConnectAttempt
from .handshake import open_connection
from .pool import Pool
from .silence import close_as_silent
from .wire.refusals import why_unreached

if TYPE_CHECKING:
    from collections.abc import Callable

    from .address import Address
    from .admission import ServerInfo
    from .connection import Connection

LEAST_BACKOFF: Final = 0.05  # seconds between two tries of a node that is down …
MOST_BACKOFF: Final = 2.0  # … growing to this
OPEN_TIMEOUT: Final = 1.0  # seconds for each step of a handshake, in the background
LONGEST_ATTEMPT: Final = 10 * OPEN_TIMEOUT
MOST_ATTEMPTS: Final = 8  # at the same time: more threads would slow down all others


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


class Node(Pool):
    """One master. All methods may be called by any thread.

    Attributes:
        alias: under which its group is configured, or "".
        duplicate_of: the label of an earlier node that is the same server, or "".
        facts: what it said of itself at the last connection.
        ours_off: seconds that this machine's clock is ahead of most nodes' (negative: behind).
        unheard: its vote where a request was decided without it.
        freed: its vote where it has released and found no waiter.
    """

    def __init__(
        self,
        address: Address,
        *,
        place: int,
        fences: str,
        guard: float,
        timeout: float,
        welcomed: Callable[[], None],
        skew: float = SKEW,
        alias: str = "",
        alone: bool = False,
    ) -> None:
        super().__init__(address.label, timeout)
        self.alias = alias
        self.unheard = Vote(self.label, Answer.UNKNOWN, reason=because(ReasonCode.NOT_WAITED_FOR))
        self.freed = Vote(self.label, Answer.YES)
        self._address = address
        self._place = place
        self._fences = fences
        self._guard = guard
        self._skew = skew
        self.ours_off = 0.0
        self._welcomed = welcomed
        self._only_node_of = alias if alone else ""
        self.facts: ServerInfo | None = None
        self._opened_here: weakref.WeakSet[Connection] = weakref.WeakSet()
        self.reset()

    def reset(self) -> None:
        """Close and forget every socket, as a forked child must; its parent's stay as they are."""
        super().reset()
        for connection in tuple(self._opened_here):
            connection.socket.close()  # sends nothing, not even the end of the stream
        self._opened_here = weakref.WeakSet()
        self._attempts: weakref.WeakSet[ConnectAttempt] = weakref.WeakSet()  # or interrupted
        self._backoff = 0.0
        self._tried = self._retry_at = self._failed_at = float("-inf")
        self._last: Connection | None = None
        self.duplicate_of = ""

    # -- eligibility ----------------------------------------------------------------------------

    def objection(self, connection: Connection, now: float) -> Reason | None:
        """Return why a request that changes locks has no vote over this connection, or None."""
        if connection.facts.off:
            return self._wrong_clock(connection.facts.off)
        if now < connection.votes_from:
            return guarded(connection.votes_from - now, self._only_node_of)
        return duplicated(self.duplicate_of) if self.duplicate_of else None

    def _wrong_clock(self, off: float) -> Reason:
        return wrong_clock(off, self.ours_off, self._skew)

    # -- opening --------------------------------------------------------------------------------

    def open(
        self, now: float, *, urgent: bool, then: Callable[[ConnectAttempt], object] | None = None
    ) -> ConnectAttempt | None:
        """Begin to connect in the background; return None while it is too early to try again.

        Args:
            urgent: whether there is no majority without this node.
        """
        with self._lock:
            if self.down or (self.down_reason and not urgent):
                due = self._tried + LEAST_BACKOFF if urgent else self._retry_at
                # An interruption may have lost an attempt: do not wait for it for ever.
                trying = len(self._attempts) > 0 and now < self._tried + LONGEST_ATTEMPT
                if trying or now < due:
                    return None
            self._tried = now
            attempt = ConnectAttempt(then)
            self._attempts.add(attempt)
        if self._workers.offer("open", partial(self._open, attempt), most=MOST_ATTEMPTS):
            return attempt
        with self._lock:
            self._attempts.discard(attempt)
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
        with self._lock:
            forgone = not attempt.awaited and attempt.then is None
            needless = forgone and bool(self._free)
        return needless or self._failed_at >= attempt.wanted

    def _opened(self, attempt: ConnectAttempt, connection: Connection | None) -> None:
        with self._lock:
            self._attempts.discard(attempt)
            if connection is not None:
                self._welcome(connection)
                self.undos.send(connection.send, time.monotonic())
                if attempt.awaited:
                    attempt.connection = connection
                else:
                    self._keep(connection)
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
                place=self._place,
                fences=self._fences,
                guard=self._guard,
                skew=self._skew,
                earlier=self._earlier(),
                timeout=max(OPEN_TIMEOUT, self.timeout),
                progress=progress,
            )
        except Exception as error:  # noqa: BLE001 - a provider of credentials may raise anything
            with self._lock:
                self._failed_at = time.monotonic()  # also for attempts that were wanted before
                self._backoff = min(MOST_BACKOFF, max(LEAST_BACKOFF, 2 * self._backoff))
                self._retry_at = self._failed_at + self._backoff
                self.down_reason = self.unopened = why_unreached(error, tls=self._address.tls)
            return None

    def _earlier(self) -> ServerInfo | None:
        """Return what the node said at the last connection, and when its process last replied."""
        facts, last = self.facts, self._last
        if facts is None or last is None:
            return facts
        heard = boottime() - (time.monotonic() - last.answered)
        return facts._replace(alive=max(facts.alive, heard))

    def _welcome(self, connection: Connection) -> None:
        self.facts, self._last = connection.facts, connection
        self._opened_here.add(connection)
        self._welcomed()
        self.down_reason, self.unopened, self._backoff = None, None, 0.0
        connection.undone = self.undo_later
        for stalled in drain(self._stalled.pop):  # dead sockets: the node replies on a new one
            close_as_silent(stalled)

    def connection(self, *, at_least: float) -> Connection | None:
        """Return a connection for the background, opened if needed; None: it is too early to try.

        Args:
            at_least: ``time.monotonic`` before which the node is not to be asked.
        """
        now = time.monotonic()
        if now < at_least:
            return None
        connection = self.take(now)
        if connection is None and now >= self._retry_at:
            connection = self._connect(bool)
            if connection is not None:
                with self._lock:
                    self._welcome(connection)
        return connection

    def forgo(self, attempt: ConnectAttempt) -> None:
        """Stop waiting for an attempt; its connection will serve a later call."""
        with self._lock:
            attempt.awaited = False
            connection, attempt.connection = attempt.connection, None
            if connection is not None:
                self._keep(connection)

    def suspect(self, attempt: ConnectAttempt) -> None:
        """Let no caller wait for the node: it has given no sign while a thread listened."""
        with self._lock:
            if not (attempt.done.is_set() or self._free):
                self.down_reason = self.down_reason or self.unconnected

    # -- telling --------------------------------------------------------------------------------

    def state(self, now: float) -> NodeStatus:
        """Return the status as it is known now, without asking the node."""
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
            reason = self._wrong_clock(off)
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

"""One node as this process knows it: connecting to it, whether it may vote, and what is told of it.

A node that cannot be reached is tried again by a short-lived thread, in the background of later
calls, because redis-py's handshake blocks. Its open connections are the ``pool``'s.
"""

from __future__ import annotations

import math
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from django_redlock.core.policy import boottime
from django_redlock.core.protocol import Answer, Vote

from .admission import SKEW, wrong_clock
from .attempt import ConnectAttempt
from .handshake import open_channel
from .pool import Pool
from .wire.refusals import describe

if TYPE_CHECKING:
    from collections.abc import Callable

    from .address import Address
    from .admission import ServerInfo
    from .connection import Connection

LEAST_BACKOFF: Final = 0.05  # seconds between two tries of a node that is down …
MOST_BACKOFF: Final = 2.0  # … growing to this
OPEN_TIMEOUT: Final = 1.0  # seconds for each step of a handshake, in the background
LONGEST_OPENING: Final = 10 * OPEN_TIMEOUT
MOST_OPENING: Final = 8  # at the same time: more threads would keep all others from working


class NodeStatus(NamedTuple):
    """What is known of a node, for people.

    Attributes:
        label: ``host:port/db``.
        voting: whether it votes now.
        why: why not, or "".
        software, role: as it said, "" if it was never reached.
        uptime: seconds, or None.
        round_trip: seconds of one small command when the connection was opened, or None.
        guard_left: seconds of the restart guard, 0 when over.
        clock_off: seconds that its clock is ahead of this machine's (negative: behind), where it
            has no vote because of that; else 0.
    """

    label: str
    voting: bool
    why: str
    software: str = ""
    role: str = ""
    uptime: float | None = None
    round_trip: float | None = None
    guard_left: float = 0.0
    clock_off: float = 0.0


class Node(Pool):
    """One master. All methods may be called by any thread.

    Attributes:
        alias: under which its group is configured, or "".
        twin: the label of an earlier node that is the same server, or "".
        facts: what it said when last connected.
        ours_off: seconds that this machine's clock is ahead of most nodes' (negative: behind).
        unheard: its vote where the asker had heard enough without it.
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
        self.unheard = Vote(self.label, Answer.UNKNOWN, why="not waited for")
        self._address = address
        self._place = place
        self._fences = fences
        self._guard = guard
        self._skew = skew
        self.ours_off = 0.0
        self._welcomed = welcomed
        self._unguard = unguard(alias) if alone and alias else ""
        self.facts: ServerInfo | None = None
        self.reset()

    def reset(self) -> None:
        """Forget every socket, as a forked child must; they are closed without a farewell."""
        super().reset()
        self._openings: weakref.WeakSet[ConnectAttempt] = weakref.WeakSet()  # or interrupted
        self._backoff = 0.0
        self._tried = self._retry_at = self._failed_at = float("-inf")
        self._last: Connection | None = None
        self.duplicate_of = ""

    # -- eligibility ----------------------------------------------------------------------------

    def objection(self, channel: Connection, now: float) -> str:
        """Why the node has no vote on a question of change, asked over this channel; or ""."""
        if channel.facts.off:
            return self._wrong_clock(channel.facts.off)
        if now < channel.votes_from:
            return guarded(channel.votes_from - now) + self._unguard
        return duplicated(self.duplicate_of) if self.duplicate_of else ""

    def _wrong_clock(self, off: float) -> str:
        return wrong_clock(off, self.ours_off, self._skew)

    # -- opening --------------------------------------------------------------------------------

    def open(
        self, now: float, *, urgent: bool, then: Callable[[ConnectAttempt], object] | None = None
    ) -> ConnectAttempt | None:
        """Begin to connect, in the background; None while it is too early to try again.

        Args:
            urgent: whether there is no majority without this node.
        """
        with self._lock:
            if self.down or (self.down_reason and not urgent):
                due = self._tried + LEAST_BACKOFF if urgent else self._retry_at
                # An interruption may have swallowed an opening: do not wait for it for ever.
                trying = len(self._openings) > 0 and now < self._tried + LONGEST_OPENING
                if trying or now < due:
                    return None
            self._tried = now
            opening = ConnectAttempt(then)
            self._openings.add(opening)
        if self._crew.offer("open", partial(self._open, opening), most=MOST_OPENING):
            return opening
        with self._lock:
            self._openings.discard(opening)
        return None

    def _open(self, opening: ConnectAttempt) -> None:
        channel = None
        try:
            if not self._is_answered(opening):
                channel = self._connect(opening.progress)
        finally:
            self._opened(opening, channel)

    def _is_answered(self, opening: ConnectAttempt) -> bool:
        """Whether a failure since has said what it would, or nobody has a use for it any more."""
        with self._lock:
            forgone = not opening.awaited and opening.then is None
            needless = forgone and bool(self._free)
        return needless or self._failed_at >= opening.wanted

    def _opened(self, opening: ConnectAttempt, channel: Connection | None) -> None:
        with self._lock:
            self._openings.discard(opening)
            if channel is not None:
                self._welcome(channel)
                self.undos.send(channel.send, time.monotonic())
                if opening.awaited:
                    opening.channel = channel
                else:
                    self._keep(channel)
        opening.done.set()
        if opening.then is not None:
            try:
                opening.then(opening)
            except RuntimeError:  # the event loop that waited has been closed
                self.forgo(opening)

    def _connect(self, progress: Callable[[], object]) -> Connection | None:
        progress()
        try:
            return open_channel(
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
                self._failed_at = time.monotonic()  # so have all that were wanted before
                self._backoff = min(MOST_BACKOFF, max(LEAST_BACKOFF, 2 * self._backoff))
                self._retry_at = self._failed_at + self._backoff
                self.down_reason = describe(error, tls=self._address.tls)
            return None

    def _earlier(self) -> ServerInfo | None:
        """What it said when last connected, and when its process was last heard."""
        facts, last = self.facts, self._last
        if facts is None or last is None:
            return facts
        heard = boottime() - (time.monotonic() - last.answered)
        return facts._replace(alive=max(facts.alive, heard))

    def _welcome(self, channel: Connection) -> None:
        self.facts, self._last = channel.facts, channel
        self._welcomed()
        self.down_reason, self._backoff = "", 0.0
        channel.undone = self.undo_later
        for silent in self._stalled:  # their sockets are dead: the node answers on a new one
            silent.close("no answer")
        self._stalled.clear()

    def connection(self, *, at_least: float) -> Connection | None:
        """A channel for the background, opened if it must be; None: it is too early to try.

        Args:
            at_least: ``time.monotonic`` before which the node is not to be asked.
        """
        now = time.monotonic()
        if now < at_least:
            return None
        channel = self.take(now)
        if channel is None and now >= self._retry_at:
            channel = self._connect(bool)
            if channel is not None:
                with self._lock:
                    self._welcome(channel)
        return channel

    def forgo(self, opening: ConnectAttempt, *, silent: bool = False) -> None:
        """Stop waiting; what still comes of it serves a later call.

        Args:
            silent: whether the node has given no sign though somebody listened.
        """
        with self._lock:
            opening.awaited = False
            if opening.channel is not None:
                self._keep(opening.channel)
                opening.channel = None
            elif silent and not opening.done.is_set() and not self._free:
                self.down_reason = self.down_reason or self.unconnected

    def suspect(self, opening: ConnectAttempt) -> None:
        """Count the node as down, if it was asked to connect and has given no sign in time."""
        if opening.patience_ends(self.timeout, math.inf) <= time.monotonic():
            self.down_reason = self.down_reason or self.unconnected

    # -- telling --------------------------------------------------------------------------------

    def state(self, now: float) -> NodeStatus:
        """What is known now, without asking the node."""
        last, why = self._last, self.down_reason
        if self.duplicate_of and not why:
            why = duplicated(self.duplicate_of)
        if last is None:
            return NodeStatus(self.label, voting=False, why=why or "never reached")
        off = last.facts.off
        guard_left = 0.0 if off else max(0.0, last.votes_from - now)
        if why:
            off = 0.0
        elif off:
            why = self._wrong_clock(off)
        if not why and guard_left > 0:
            why = guarded(guard_left)
        return NodeStatus(
            self.label,
            voting=not why,
            why=why,
            software=last.facts.software,
            role=last.facts.role,
            uptime=last.facts.uptime + now - last.opened,
            round_trip=last.round_trip,
            guard_left=guard_left,
            clock_off=off,
        )


def guarded(left: float) -> str:
    """Why a node under the restart guard has no vote."""
    return f"restart guard: started or emptied a short while ago, {left:.1f} s left"


def unguard(alias: str) -> str:
    """What to do about the guard of a single node, where a lock need not hold at any price."""
    place = f"REDLOCK[{alias!r}]"
    return f" (if this single node's locks only save work, set 'RESTART_GUARD': False in {place})"


def duplicated(first: str) -> str:
    """Why a node that is listed twice has no second vote."""
    return f"is the same server as {first}; list every node once"

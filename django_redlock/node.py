"""One node as this process knows it: its open channels, its troubles, and when to try again.

A channel belongs to one caller at a time; between calls it lies in ``_free``. A channel whose
answer is overdue lies ``_aside``: while one is there the node is *silent*, gets no new
questions, and costs nothing; when the answers arrive after all, the node is back. A node that
cannot be reached is tried again by a short-lived thread, in the background of later calls,
because redis-py's handshake blocks.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from .admission import SKEW, wrong_clock
from .background import Crew
from .complaints import describe
from .handshake import open_channel
from .opening import Opening
from .owed import nobody
from .protocol import Answer, Vote, boottime
from .undo_queue import UndoQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from .addresses import Address
    from .admission import Facts
    from .channel import Channel
    from .owed import Asker

SPARE: Final = 64  # idle channels kept per node
LEAST_BACKOFF: Final = 0.05  # seconds between two tries of a node that is down …
MOST_BACKOFF: Final = 2.0  # … growing to this
UNDOS_FIRST: Final = 32_768  # bytes that may go before a question, which is to be taken, too
LONGEST_SPOILED: Final = 1.0  # seconds for which an undo may still come after an interruption
OPEN_TIMEOUT: Final = 1.0  # seconds for each step of a handshake, in the background
LONGEST_OPENING: Final = 10 * OPEN_TIMEOUT
MOST_OPENING: Final = 8  # at the same time: more threads would keep all others from working


class NodeState(NamedTuple):
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


class Node:
    """One master. All methods may be called by any thread.

    Attributes:
        label: ``host:port/db``.
        alias: under which its group is configured, or "".
        timeout: seconds that it may take to answer.
        trouble: why it is not to be waited for, or "".
        twin: the label of an earlier node that is the same server, or "".
        facts: what it said when last connected.
        ours_off: seconds that this machine's clock is ahead of most nodes' (negative: behind).
        unheard: its vote where the asker had heard enough without it.
        unconnected: its trouble while it is only slow to be connected.
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
        self.label = address.label
        self.alias = alias
        self.unheard = Vote(self.label, Answer.LOST, why="not waited for")
        self._address = address
        self._place = place
        self._fences = fences
        self._guard = guard
        self._skew = skew
        self.ours_off = 0.0
        self.timeout = timeout
        self.unconnected = f"no connection within {timeout:g} s"
        self._welcomed = welcomed
        self._unguard = unguard(alias) if alone and alias else ""
        self.facts: Facts | None = None
        self.reset()

    def reset(self) -> None:
        """Forget every socket, as a forked child must; they are closed without a farewell."""
        self._lock = threading.RLock()  # re-entrant: a signal handler may lock, too
        self._free: list[Channel] = []
        self._aside: list[Channel] = []
        self._owing: dict[str, Channel] = {}
        self._lent: weakref.WeakSet[Channel] = weakref.WeakSet()  # to event loops
        self.undos = UndoQueue(self)
        self._openings: weakref.WeakSet[Opening] = weakref.WeakSet()  # one may be interrupted
        self._crew = Crew()
        self._backoff = 0.0
        self._tried = self._retry_at = self._failed_at = float("-inf")
        self._last: Channel | None = None
        self.trouble = self.twin = ""

    def close(self) -> None:
        """Close every connection that nobody is using."""
        with self._lock:
            idle = [*self._free, *self._aside, *self._owing.values()]
            self._free, self._aside, self._owing = [], [], {}
        for channel in idle:
            channel.undone = None
            channel.close("closed")

    @property
    def down(self) -> bool:
        """Whether it is known to be down; else it may be this machine that is slow to connect."""
        return self.trouble not in ("", self.unconnected)

    # -- lending channels -----------------------------------------------------------------------

    def take(self, now: float) -> Channel | None:
        """A channel for a new question, or None: see ``trouble``, or open one.

        What is still to be undone goes first: it may be our own key that is in the way.
        """
        channel = self._take(now)
        if channel is not None and self.undos:
            self.undos.send(channel.send, now, most=UNDOS_FIRST)
        return channel

    def _take(self, now: float) -> Channel | None:
        with self._lock:
            if self._aside:
                self._look_aside(now)
            while self._free and not self._aside:
                channel = self._free.pop()
                if not (channel.owed or channel.guarded or channel.fault):
                    return channel
                if channel.silent_for(now) > self.timeout:
                    channel.read()
                if channel.fault:
                    continue
                if channel.silent_for(now) > self.timeout:
                    self._aside.append(channel)
                    self.trouble = "no answer"
                elif channel.guarded and now >= channel.votes_from:
                    channel.close("the restart guard is over: look again")
                else:
                    return channel
        return None

    def take_behind(self, nonce: str, now: float) -> tuple[Channel | None, bool]:
        """A channel to undo ``nonce`` on, and whether it is the caller's alone.

        Behind the grant, if that is still unanswered: overtaking it would undo nothing.
        """
        with self._lock:
            channel = self._owing.pop(nonce, None)
            if channel is not None and not channel.fault and _owes(channel, nonce):
                for shelf in (self._free, self._aside):
                    if channel in shelf:
                        shelf.remove(channel)
                        return channel, True
                return channel, bool(channel.spoiled)
            channel = self._lent_owing(nonce)
            if channel is not None:
                return channel, False
            channel = self.take(now)
            if channel is None and self._aside:
                channel = self._aside.pop()  # it comes back there: see give()
            return channel, True

    def elsewhere(self, nonce: str, mine: Channel | None) -> Channel | None:
        """Another channel than a loop's own, to undo ``nonce`` behind its unanswered grant."""
        if nonce not in self._owing and len(self._lent) <= (mine is not None):
            return None
        with self._lock:
            channel = self._owing.pop(nonce, None)
            if channel is not None and not (channel.fault or channel.spoiled or channel is mine):
                return channel if _owes(channel, nonce) else None
            return self._lent_owing(nonce, mine)

    def _lent_owing(self, nonce: str, mine: Channel | None = None) -> Channel | None:
        if not self._lent:  # looking through it is slow
            return None
        for channel in self._lent:
            if channel is not mine and not channel.fault and _owes(channel, nonce):
                return channel
        return None

    def lend(self, channel: Channel) -> None:
        """Note that an event loop has the channel."""
        with self._lock:
            self._lent.add(channel)

    def take_back(self, channel: Channel) -> None:
        """Note that it has it no more."""
        with self._lock:
            self._lent.discard(channel)

    def give(self, channel: Channel, nonce: str | None, now: float) -> None:
        """Take a channel back; ``nonce``: a grant that it may still owe an answer for."""
        owes = nonce is not None and bool(channel.owed) and _owes(channel, nonce)
        if channel.spoiled and not owes:
            channel.close("interrupted")
        if channel.unsent and not (channel.fault or channel.flush()):
            channel.close("takes no more data")
        if channel.fault:
            return
        if channel.owed and channel.undoing_until() > now:
            self._crew.offer("undo", self.undos.work, again=False)
        with self._lock:
            if owes and nonce is not None:
                self._remember(nonce, channel)
            if channel.spoiled:
                return
            if channel.silent_for(now) > self.timeout:
                self._aside.append(channel)
                self.trouble = self.trouble or "no answer"
                return
            if not self._aside:
                self.trouble = ""  # it answers, whatever became of further connections
            self._keep(channel)

    def _keep(self, channel: Channel) -> None:
        if len(self._free) < SPARE:
            self._free.append(channel)
        else:
            channel.close("more connections than needed")

    def _remember(self, nonce: str, channel: Channel) -> None:
        if channel.spoiled:
            self._close_spoiled()
        if len(self._owing) >= 4 * SPARE:
            self._owing = {
                nonce: channel
                for nonce, channel in self._owing.items()
                if not channel.fault and _owes(channel, nonce)
            }
        self._owing[nonce] = channel

    def _close_spoiled(self) -> None:
        """Close what was kept for an undo that did not come: it was interrupted, too."""
        latest = time.monotonic() - LONGEST_SPOILED
        for nonce, channel in tuple(self._owing.items()):
            if channel.spoiled and channel.spoiled < latest:
                del self._owing[nonce]
                channel.close("interrupted")

    def _look_aside(self, now: float) -> None:
        for channel in tuple(self._aside):
            channel.read()
            if channel.fault or not channel.owed:
                self._aside.remove(channel)
                if not channel.fault:
                    self._free.append(channel)
                self.trouble = ""
        if self._aside:
            silent = max(channel.silent_for(now) for channel in self._aside)
            self.trouble = f"no answer for {silent:.2f} s"

    def objection(self, channel: Channel, now: float) -> str:
        """Why the node has no vote on a question of change, asked over this channel; or ""."""
        if channel.facts.off:
            return self._wrong_clock(channel.facts.off)
        if now < channel.votes_from:
            return guarded(channel.votes_from - now) + self._unguard
        return twinned(self.twin) if self.twin else ""

    def _wrong_clock(self, off: float) -> str:
        return wrong_clock(off, self.ours_off, self._skew)

    def settle(self, now: float) -> bool:
        """Read the idle connections; whether an answer to something that undoes is missing still.

        That answer may be an error, or never come since the connection is broken: then it is
        to be undone once more, though nobody may ever use the connection again.
        """
        with self._lock:
            self._look_aside(now)
            for channel in tuple(self._free):
                if channel.owed:
                    channel.read()
                if channel.fault:
                    self._free.remove(channel)
            idle = (*self._free, *self._aside)
        return any(channel.owed and channel.undoing_until() > now for channel in idle)

    # -- opening --------------------------------------------------------------------------------

    def open(
        self, now: float, *, urgent: bool, then: Callable[[Opening], object] | None = None
    ) -> Opening | None:
        """Begin to connect, in the background; None while it is too early to try again.

        Args:
            urgent: whether there is no majority without this node.
        """
        with self._lock:
            if self.down or (self.trouble and not urgent):
                due = self._tried + LEAST_BACKOFF if urgent else self._retry_at
                # An interruption may have swallowed an opening: do not wait for it for ever.
                trying = len(self._openings) > 0 and now < self._tried + LONGEST_OPENING
                if trying or now < due:
                    return None
            self._tried = now
            opening = Opening(then)
            self._openings.add(opening)
        if self._crew.offer("open", partial(self._open, opening), most=MOST_OPENING):
            return opening
        with self._lock:
            self._openings.discard(opening)
        return None

    def _open(self, opening: Opening) -> None:
        channel = None
        try:
            if not self._is_answered(opening):
                channel = self._connect(opening.progress)
        finally:
            self._opened(opening, channel)

    def _is_answered(self, opening: Opening) -> bool:
        """Whether a failure since has said what it would, or nobody has a use for it any more."""
        with self._lock:
            forgone = not opening.awaited and opening.then is None
            needless = forgone and bool(self._free)
        return needless or self._failed_at >= opening.wanted

    def _opened(self, opening: Opening, channel: Channel | None) -> None:
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

    def _connect(self, progress: Callable[[], object]) -> Channel | None:
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
                self.trouble = describe(error, tls=self._address.tls)
            return None

    def _earlier(self) -> Facts | None:
        """What it said when last connected, and when its process was last heard."""
        facts, last = self.facts, self._last
        if facts is None or last is None:
            return facts
        heard = boottime() - (time.monotonic() - last.answered)
        return facts._replace(alive=max(facts.alive, heard))

    def _welcome(self, channel: Channel) -> None:
        self.facts, self._last = channel.facts, channel
        self._welcomed()
        self.trouble, self._backoff = "", 0.0
        channel.undone = self.undo_later
        for silent in self._aside:  # their sockets are dead: the node answers on a new one
            silent.close("no answer")
        self._aside.clear()

    def undo_later(self, asker: Asker) -> None:
        """Have something undone that the node has not answered, as soon as it can be asked."""
        nonce = asker.ask.nonce
        channel = self._owing.pop(nonce, None)
        if channel is not None and not channel.fault and _owes(channel, nonce):
            sent = channel.send(asker.again(nobody, time.monotonic()))
            if channel.spoiled:
                channel.close("interrupted")
            elif sent:
                return
        self.undos.add(asker)
        self._crew.offer("undo", self.undos.work, again=False)

    def connection(self, *, at_least: float) -> Channel | None:
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

    def forgo(self, opening: Opening, *, silent: bool = False) -> None:
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
                self.trouble = self.trouble or self.unconnected

    def suspect(self, opening: Opening) -> None:
        """Count the node as down, if it was asked to connect and has given no sign in time."""
        if opening.patience_ends(self.timeout, math.inf) <= time.monotonic():
            self.trouble = self.trouble or self.unconnected

    # -- telling --------------------------------------------------------------------------------

    def state(self, now: float) -> NodeState:
        """What is known now, without asking the node."""
        last, why = self._last, self.trouble
        if self.twin and not why:
            why = twinned(self.twin)
        if last is None:
            return NodeState(self.label, voting=False, why=why or "never reached")
        off = last.facts.off
        guard_left = 0.0 if off else max(0.0, last.votes_from - now)
        if why:
            off = 0.0
        elif off:
            why = self._wrong_clock(off)
        if not why and guard_left > 0:
            why = guarded(guard_left)
        return NodeState(
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


def twinned(first: str) -> str:
    """Why a node that is listed twice has no second vote."""
    return f"is the same server as {first}; list every node once"


def _owes(channel: Channel, nonce: str) -> bool:
    return channel.owes(nonce.encode())

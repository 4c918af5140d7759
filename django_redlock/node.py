"""One node as this process knows it: its open channels, its troubles, and when to try again.

A channel belongs to one caller at a time; between calls it lies in ``_free``. A channel whose
answer is overdue lies ``_aside``: while one is there the node is *silent*, gets no new
questions, and costs nothing; when the answers arrive after all, the node is back. A node that
cannot be reached is tried again by a short-lived thread, in the background of later calls,
because redis-py's handshake blocks.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from .background import Crew
from .channel import again
from .complaints import describe
from .handshake import open_channel
from .latches import Latch
from .protocol import Answer, Vote

if TYPE_CHECKING:
    from collections.abc import Callable

    from .addresses import Address
    from .admission import Facts
    from .channel import Channel, Owed

SPARE: Final = 64  # idle channels kept per node
LEAST_BACKOFF: Final = 0.05  # seconds between two tries of a node that is down …
MOST_BACKOFF: Final = 2.0  # … growing to this
MOST_UNDONE: Final = 4096  # questions that undo, kept until there is a connection
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
    """

    label: str
    voting: bool
    why: str
    software: str = ""
    role: str = ""
    uptime: float | None = None
    round_trip: float | None = None
    guard_left: float = 0.0


class Opening:
    """A connection on its way; ``channel`` is there once ``done`` is set, if it worked.

    Attributes:
        awaited: whether whoever wanted it still waits.
        wanted: when, on ``time.monotonic``.
        then: called by the thread that connects when it is done.
    """

    def __init__(self, then: Callable[[Opening], object] | None) -> None:
        self.done = Latch()
        self.channel: Channel | None = None
        self.awaited = True
        self.wanted = time.monotonic()
        self.then = then


class Node:
    """One master. All methods may be called by any thread.

    Attributes:
        label: ``host:port/db``.
        alias: under which its group is configured, or "".
        timeout: seconds that it may take to answer.
        trouble: why it is known to be down, or "".
        twin: the label of an earlier node that is the same server, or "".
        facts: what it said when last connected.
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
        alias: str = "",
    ) -> None:
        self.label = address.label
        self.alias = alias
        self.unheard = Vote(self.label, Answer.LOST, why="not waited for")
        self._address = address
        self._place = place
        self._fences = fences
        self._guard = guard
        self.timeout = timeout
        self._welcomed = welcomed
        self.facts: Facts | None = None
        self.reset()

    def reset(self) -> None:
        """Forget every socket, as a forked child must; they are closed without a farewell."""
        self._lock = threading.RLock()  # re-entrant: a signal handler may lock, too
        self._free: list[Channel] = []
        self._aside: list[Channel] = []
        self._owing: dict[str, Channel] = {}
        self._lent: weakref.WeakSet[Channel] = weakref.WeakSet()  # to event loops
        self._undone: deque[Owed] = deque(maxlen=MOST_UNDONE)  # for the next connection
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

    # -- lending channels -----------------------------------------------------------------------

    def take(self, now: float) -> Channel | None:
        """A channel for a new question, or None: see ``trouble``, or open one."""
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
                return channel, channel.spoiled
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
        if channel.fault:
            return
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
        if len(self._owing) >= 4 * SPARE:
            self._owing = {
                nonce: channel
                for nonce, channel in self._owing.items()
                if not channel.fault and _owes(channel, nonce)
            }
        self._owing[nonce] = channel

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
        if now < channel.votes_from:
            return guarded(channel.votes_from - now)
        return twinned(self.twin) if self.twin else ""

    # -- opening --------------------------------------------------------------------------------

    def open(
        self, now: float, *, urgent: bool, then: Callable[[Opening], object] | None = None
    ) -> Opening | None:
        """Begin to connect, in the background; None while it is too early to try again."""
        with self._lock:
            if self.trouble:
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
                channel = self._connect()
        finally:
            self._opened(opening, channel)

    def _is_answered(self, opening: Opening) -> bool:
        """Whether a failure since has said what it would, or nobody has a use for it any more."""
        with self._lock:
            forgone = not opening.awaited and opening.then is None
            needless = forgone and bool(self._free) and not self._undone
        return needless or self._failed_at >= opening.wanted

    def _opened(self, opening: Opening, channel: Channel | None) -> None:
        with self._lock:
            self._openings.discard(opening)
            if channel is not None:
                self._welcome(channel)
                while self._undone:
                    channel.send(self._undone.popleft()._replace(since=time.monotonic()))
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

    def _connect(self) -> Channel | None:
        try:
            return open_channel(
                self._address,
                place=self._place,
                fences=self._fences,
                guard=self._guard,
                earlier=self.facts,
                timeout=max(OPEN_TIMEOUT, self.timeout),
            )
        except Exception as error:  # noqa: BLE001 - a provider of credentials may raise anything
            with self._lock:
                self._failed_at = time.monotonic()  # so have all that were wanted before
                self._backoff = min(MOST_BACKOFF, max(LEAST_BACKOFF, 2 * self._backoff))
                self._retry_at = self._failed_at + self._backoff
                self.trouble = describe(error)
            return None

    def _welcome(self, channel: Channel) -> None:
        self.facts, self._last = channel.facts, channel
        self._welcomed()
        self.trouble, self._backoff = "", 0.0
        channel.undone = self.undo_again
        for silent in self._aside:  # their sockets are dead: the node answers on a new one
            silent.close("no answer")
        self._aside.clear()

    def undo_again(self, undone: list[Owed]) -> None:
        """Put these questions once more: their connection broke before an answer.

        The node may have acted or not; undoing twice harms nobody. They go over the next
        connection that is opened, at the latest one of their own, which is closed at once.
        """
        with self._lock:
            self._undone.extend(owed._replace(hear=again) for owed in undone)
        self.open(time.monotonic(), urgent=False, then=_hang_up)

    def entrust(self, opening: Opening, owed: Owed) -> None:
        """Have something undone, which nobody waits for, as soon as there is a connection."""
        with self._lock:
            if opening.channel is None:
                self._undone.append(owed)
            else:
                opening.channel.send(owed)

    def forgo(self, opening: Opening) -> None:
        """Stop waiting; what still comes of it serves a later call."""
        with self._lock:
            opening.awaited = False
            if opening.channel is not None:
                self._keep(opening.channel)
                opening.channel = None
            elif not opening.done.is_set() and not self._free:
                self.trouble = self.trouble or f"no connection within {self.timeout:g} s"

    # -- telling --------------------------------------------------------------------------------

    def state(self, now: float) -> NodeState:
        """What is known now, without asking the node."""
        last, why = self._last, self.trouble
        if self.twin and not why:
            why = twinned(self.twin)
        if last is None:
            return NodeState(self.label, voting=False, why=why or "never reached")
        guard_left = max(0.0, last.votes_from - now)
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
        )


def _hang_up(opening: Opening) -> None:
    """Close a connection that has served its purpose; the node still reads what it was sent."""
    if opening.channel is not None:
        opening.channel.close("was opened to undo what is undone")


def guarded(left: float) -> str:
    """Why a node under the restart guard has no vote."""
    return f"restart guard: started or emptied a short while ago, {left:.1f} s left"


def twinned(first: str) -> str:
    """Why a node that is listed twice has no second vote."""
    return f"is the same server as {first}; list every node once"


def _owes(channel: Channel, nonce: str) -> bool:
    wanted = nonce.encode()
    return any(owed.nonce == wanted for owed in tuple(channel.owed))

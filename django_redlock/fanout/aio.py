"""One question of a task on its way to the nodes, over the connections of its event loop.

A node is silent when it owes an answer and has given none for the node timeout. The time of a
question counts from there, not from its own start: behind a thousand others it may wait longer
for a node that is busy, and no longer for one that is hung.
"""

from __future__ import annotations

import asyncio
import math
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from django_redlock.concurrency.loops import PerLoop
from django_redlock.transport.pending import nobody

from .multiplexer import LoopConnections
from .timers import Timer, dismiss
from .votes import HANDSHAKE, PATIENCE, VoteCollector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_redlock.core.protocol import Request, Vote
    from django_redlock.transport.connection import Connection
    from django_redlock.transport.node import Node
    from django_redlock.transport.pending import PendingReply

    from .multiplexer import LoopConnection
    from .votes import Hear

NOWHERE: Final[frozenset[int]] = frozenset()


class AsyncRequest:
    """One question of a task, on its way.

    Attributes:
        answered: the votes, once the asker has heard enough.
    """

    def __init__(
        self, lanes: LoopConnections, ask: Request, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.answered: asyncio.Future[list[Vote]] = loop.create_future()
        self.question = VoteCollector(lanes.nodes, ask, self.answered.done)
        self._lanes = lanes
        self._loop = loop
        self._unheard: dict[int, Connection] = {}  # asked, by place
        self._awaited: frozenset[int] = NOWHERE  # nodes without a connection yet
        self._lingering = self._urgent = False
        self._alarm: Timer | None = None
        self._until = self.question.start + lanes.timeout
        self._patience = self.question.start + PATIENCE * lanes.timeout
        self._ask_all()
        self._look()
        if not (self._lingering or self.answered.done()):
            self._look_at(self._until)

    # -- asking ---------------------------------------------------------------------------------

    def _ask_all(self) -> None:
        now, question = self.question.start, self.question
        lanes = self._lanes.lanes
        usable: list[Connection | None] = []
        for place in question.asked:
            usable.append(lanes[place].usable(now, self._loop))  # noqa: PERF401 - a closure costs more
        urgent = len(usable) - usable.count(None) < question.majority
        hear, undoing = question.timed(self._hear, late=True), question.undoing
        for place, channel in zip(question.asked, usable, strict=True):
            lane = lanes[place]
            touched = undoing and question.touches(place)
            if touched and self._put_elsewhere(place, lane):
                continue
            if channel is not None or (touched and lane.channel is not None):
                self._put(place, lane, hear, now)
                continue
            known_down = bool(lane.node.down_reason)
            coming = lane.open(now, self._loop, urgent=urgent)
            if coming and (urgent or not known_down):
                self._awaited |= {place}
                lane.wait(self, place)
                continue
            question.lose(place, lane.node.down_reason or "no connection")
            question.keep(place)
        self._urgent = urgent
        if urgent and self._awaited:
            self._until = now + HANDSHAKE * self._lanes.timeout

    def _put_elsewhere(self, place: int, lane: LoopConnection) -> bool:
        """Undo on another's connection, if a thread or loop acquired there and is unanswered."""
        question = self.question
        channel = lane.node.elsewhere(question.ask.nonce, lane.channel)
        if channel is None:
            return False
        if not channel.send(question.asker.again(nobody, time.monotonic())) and not channel.fault:
            question.keep(place)
        question.lose(place, "it has not answered the grant yet", sent=True)
        return True

    def _put(self, place: int, lane: LoopConnection, hear: Hear, now: float) -> None:
        channel, question = lane.channel, self.question
        if channel is None:
            question.lose(place, lane.node.down_reason or "no connection")
            question.keep(place)
        elif not question.barred(place, channel):
            if lane.put(question.owed(place, hear, now), self._loop):
                self._unheard[place] = channel
            else:
                question.lose(place, "has too much to answer already")
                question.keep(place)

    def connected(self, place: int, lane: LoopConnection) -> None:
        """Ask a node that has, or could not be given, a connection at last.

        What is over by now is asked no more; but undoing is never over.
        """
        self._awaited -= {place}
        if not self.answered.done() or self.question.undoing:
            now = time.monotonic()
            self._put(place, lane, self.question.timed(self._hear, late=True), now)
            self._until = max(self._until, now + self._lanes.timeout)
        self._look()

    # -- hearing --------------------------------------------------------------------------------

    def _hear(self, place: int, vote: Vote) -> None:
        if self.answered.done():
            return
        self.question.ballot[place] = vote
        self._unheard.pop(place, None)
        if self.question.needed() <= 0:
            self._look()

    def _look(self) -> None:
        """End when the asker has heard enough, and what else is worth a moment has been done."""
        if self.answered.done():
            return
        if not (self._unheard or self._awaited):
            self._end()
        elif self._lingering or self.question.ask.decided(self.question.ballot):
            self._linger()

    def _linger(self) -> None:
        """Having heard enough, do not leave out who is only a little late; or end.

        A node that is being connected shall be asked, too: a lease that stands on a bare
        majority ends with the first node, and one that is not released there may be the one
        at which others wait. Undoing waits for prompt nodes as well: those that had not been
        silent for longer than the majority took.
        """
        if not self._worth():
            self._end()
        elif not self._lingering:
            self._lingering = True
            now = time.monotonic()
            until = self.question.start + self._lanes.timeout
            self._look_at(until if self._awaited else now + self.question.linger(now))

    def _worth(self) -> bool:
        question = self.question
        if self._awaited:
            return True
        if question.undoing:
            start, patience = question.start, question.linger(time.monotonic())
            for each in self._unheard.values():  # noqa: SIM110 - a generator costs more
                if each.silent_for(start) <= patience:
                    return True
            return False
        return question.ask.worth is not None and question.ask.worth(question.ballot)

    # -- time -----------------------------------------------------------------------------------

    def _look_at(self, when: float) -> None:
        before = self._alarm  # dismissed last, for an interruption may come between
        self._alarm = self._lanes.alarms.set(when, self, self._loop)
        dismiss(before)

    def look_again(self, when: float, now: float) -> None:
        """End, unless a node that we wait for is answering others; called by an alarm.

        Whatever the alarm is late is the loop's own delay, and makes no node silent.
        """
        timeout, alarm = self._lanes.timeout, self._alarm
        late = now - when
        self._patience += late
        if not self._lingering and now < self._patience:
            if self._awaited and late > timeout / 2:
                self._until = max(self._until, now + min(late, HANDSHAKE * timeout))
            longest = self._until - now if self._awaited else 0.0
            if self._urgent:
                for place in self._awaited:
                    longest = max(longest, self._lanes.lanes[place].patience(self._patience) - now)
            for place, channel in tuple(self._unheard.items()):
                longest = max(longest, timeout - self._silence(place, channel, now))
            if self.answered.done() or self._alarm is not alarm:
                return  # ended, or lingers, by what was read
            if longest > 0:
                self._look_at(now + longest)
                return
        self._end()

    def _silence(self, place: int, channel: Connection, now: float) -> float:
        """For how long a node that we wait for has been silent; on a lost connection for ever."""
        lane, silent = self._lanes.lanes[place], channel.silent_for(now)
        if channel is lane.channel:
            lane.send_late(self._loop)
        if channel.fault:  # an interruption kept us from hearing so
            return math.inf
        if silent > self._lanes.timeout and channel is lane.channel:
            lane.read(self._loop)  # perhaps it was us who did not look
            silent = channel.silent_for(now)
        return silent

    def _end(self) -> None:
        if not self.answered.done():
            why = f"no connection within {self._lanes.timeout:g} s"
            for place in self._awaited:
                self.question.lose(place, why)
                self._lanes.lanes[place].forgo(self)  # if it is silent, it is not waited for again
                self.question.keep(place)
            self.answered.set_result(self.question.votes())
            dismiss(self._alarm)


class Loops:
    """The nodes, for the event loops of this process."""

    def __init__(self, nodes: Sequence[Node], timeout: float) -> None:
        self._nodes = nodes
        self._timeout = timeout
        self.reset()

    def reset(self) -> None:
        """Forget all loops, as a forked child must."""
        self._lanes = PerLoop(partial(LoopConnections, self._nodes, self._timeout))

    def ask(self, ask: Request) -> asyncio.Future[list[Vote]]:
        """Put a question to the nodes; the votes, one for each, in order.

        What can be sent is on its way, in order, when this returns.
        """
        loop = asyncio.get_running_loop()
        return AsyncRequest(self._lanes.of(loop), ask, loop).answered

    def put(self, place: int, owed: PendingReply) -> bool:
        """Send something else over the running loop's connection to a node, if there is one."""
        loop = asyncio.get_running_loop()
        return self._lanes.of(loop).lanes[place].put(owed, loop)

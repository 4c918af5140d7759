"""One question on its way to the nodes: gather channels, write to all, listen, give back.

A question is packed once and written to every node; then the answers are read as they arrive,
until the asker's ``decided`` says that no further one can matter, or the node timeout has
passed. A node that has not answered by then costs nothing: its answer stays owed on its channel
and is settled by whoever uses that channel next.

Undoing waits a little longer: when decided, for the nodes that owed nothing before, at most as
long again. So after a release the name is free on every prompt node, not just on a majority.
"""

from __future__ import annotations

import math
import select
import time
from typing import TYPE_CHECKING

from django_redlock.concurrency.farewells import gone, settle
from django_redlock.core.protocol import Answer, Command
from django_redlock.transport.attempt import Listening
from django_redlock.transport.connection import Connection

from .votes import HANDSHAKE, PATIENCE, VoteCollector

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_redlock.core.protocol import Request
    from django_redlock.transport.attempt import ConnectAttempt
    from django_redlock.transport.node import Node


class BlockingRequest:
    """One question on its way."""

    def __init__(self, nodes: Sequence[Node], ask: Request, timeout: float) -> None:
        self.nodes = nodes
        self.ask = ask
        self.question = VoteCollector(nodes, ask)
        self.ballot = self.question.ballot
        self.start = self.question.start
        self.timeout = timeout
        self.mine: dict[int, Connection] = {}  # ours alone until given back
        self.busy: dict[int, Connection] = {}  # another thread's: written to, never read
        self.deadline = self.start + timeout
        self.poll = select.poll()
        self.awaited: dict[int, int] = {}  # file descriptor -> index
        self.unheard: dict[int, int] = {}  # ours, asked, not answered yet -> file descriptor
        self.prompt: set[int] = set()  # of these, the ones that owed nothing before
        self._longest = self.start + PATIENCE * timeout
        self._looked = self._absent = 0.0  # seconds: when we last looked; for which we could not
        self.coming: dict[
            int, tuple[ConnectAttempt, float]
        ] = {}  # how long it may be silent, in seconds
        self.listening = Listening(timeout)
        self.unsent: set[int] = set()  # file descriptors that did not take all at once

    # -- before writing -------------------------------------------------------------------------

    def gather(self) -> None:
        """A channel to every node that can have one in time; a vote for the others."""
        missing = [i for i in self.question.asked if not self._take(i)]
        while stale := self._close_stale():  # of many idle connections all may be closed
            missing += [i for i in stale if not self._take(i)]
        if missing:
            self._open(missing)
        for i in self.question.asked:
            channel = self.mine.get(i) or self.busy.get(i)
            if channel is not None:
                self.question.barred(i, channel)
            else:
                why = self.nodes[i].down_reason or self.nodes[i].unconnected
                self.question.lose(i, why)
                self.question.keep(i)

    def _take(self, i: int) -> bool:
        node = self.nodes[i]
        if self.question.touches(i):
            channel, ours = node.take_behind(self.ask.nonce, self.start)
            if channel is not None and not ours:
                self.busy[i] = channel
                return True
        else:
            channel = node.take(self.start)
        if channel is None:
            return False
        self._have(i, channel)
        return True

    def _close_stale(self) -> list[int]:
        """Settle what arrived since the last call; the nodes that closed their connection.

        To the end: behind a last answer there may be the end of the connection.
        """
        stale = []
        while ready := self.poll.poll(0):
            for fileno, _ in ready:
                i = self._read(fileno)
                if i not in self.mine:
                    stale.append(i)
        return stale

    def _open(self, missing: list[int]) -> None:
        """Connect in the background; wait for nodes not known to be down, or if too few are up."""
        urgent = not self._enough()
        for i in missing:
            node = self.nodes[i]
            down, troubled = node.down, bool(node.down_reason)
            opening = node.open(self.start, urgent=urgent)
            if opening is not None and troubled and not urgent:
                node.forgo(opening)
            elif opening is not None:
                self.coming[i] = opening, self.timeout * (1 if down else HANDSHAKE)
        for i in tuple(self.coming):
            self._wait_for(i, self.timeout, math.inf)
        self._wait_longer(self._enough)

    def more(self) -> bool:
        """Whether another node can be asked after all, where too few have answered until now."""
        if self.question.undoing or self._heard_enough():
            return False
        before = tuple(self.mine)
        self._wait_longer(lambda: len(self.mine) > len(before))
        for i in set(self.mine).difference(before):
            self.ballot[i] = None
            self.question.barred(i, self.mine[i])
        return len(self.mine) > len(before)

    def _heard_enough(self) -> bool:
        heard = [vote for vote in self.ballot if vote and vote.answer is not Answer.UNKNOWN]
        return len(heard) >= self.question.majority

    def _wait_longer(self, enough: Callable[[], bool]) -> None:
        """Wait for nodes that are being connected, until there are enough, or they are silent."""
        for i, (_, patience) in tuple(self.coming.items()):
            if patience > self.timeout and not enough():
                self._wait_for(i, PATIENCE * self.timeout, patience)

    def _wait_for(self, i: int, longest: float, patience: float) -> None:
        """Wait for a connection: the one that is opened, or one that another thread gives back.

        Args:
            longest: seconds of waiting, without what this thread wakes up late.
            patience: seconds without a sign of the node.
        """
        opening, _ = self.coming[i]
        while True:
            done = opening.done.is_set()
            if done or self._take(i):
                del self.coming[i]
                if opening.channel is not None and not self._has(i):
                    self._have(i, opening.channel)
                else:
                    self.nodes[i].forgo(opening)
                return
            left = min(longest - self.listening.waited, patience - self.listening.silence(opening))
            if left <= 0:
                return
            self.listening.wait(opening, left)

    def _forgo(self) -> None:
        """Wait for no connection any more; a node that was silent is not waited for again."""
        for i, (opening, _) in self.coming.items():
            silent = self.listening.silence(opening) >= self.timeout / 2
            self.nodes[i].forgo(opening, silent=silent)
        self.coming = {}

    def _has(self, i: int) -> bool:
        return i in self.mine or i in self.busy

    def _enough(self) -> bool:
        return len(self.mine) + len(self.busy) >= self.question.majority

    def _have(self, i: int, channel: Connection) -> None:
        self.mine[i] = channel
        self.poll.register(channel.fileno, select.POLLIN)
        self.awaited[channel.fileno] = i

    def _drop(self, i: int) -> None:
        channel = self.mine.pop(i)
        self.poll.unregister(channel.fileno)
        self.unsent.discard(channel.fileno)
        del self.awaited[channel.fileno]

    # -- writing and reading --------------------------------------------------------------------

    def write(self) -> None:
        """Put the question on every wire at once; nobody waits between two of them."""
        now = time.monotonic()
        hear = self.question.timed(self.ballot.__setitem__)
        for i, channel in (*self.mine.items(), *self.busy.items()):
            if self.ballot[i] is not None or i in self.unheard:
                continue
            if i in self.mine:
                self.unheard[i] = channel.fileno
                if not channel.owed:
                    self.prompt.add(i)
            owed = self.question.owed(i, hear, now)
            if not channel.send(owed) and self.ballot[i] is None:
                # With a fault it may have arrived; else it was not tried.
                why = channel.fault or "has too much to answer already"
                self.question.lose(i, why, sent=bool(channel.fault))
                self.question.keep(i)
            elif channel.unsent and i in self.mine:
                self.unsent.add(channel.fileno)
                self.poll.modify(channel.fileno, select.POLLIN | select.POLLOUT)
        # Anew, for connecting may have used it up; and not before the last question is written:
        # a node's silence counts from there, and who waited for it must find it overdue.
        self.deadline = time.monotonic() + self.timeout

    def listen(self) -> None:
        """Read answers as they arrive until the asker has heard enough."""
        end, lingering = self.deadline, False
        self._looked = end - self.timeout
        self._count(tuple(self.unheard))
        while self._worth() if lingering else self.unheard:
            if not lingering and self.ask.decided(self.ballot):
                now = time.monotonic()
                end, lingering = min(end, now + self.question.linger(now)), True
                continue
            ready = self._ready(end, lingering=lingering)
            if not ready:
                end += self._late(end)
                if lingering or end <= time.monotonic():
                    return
            self._count([self._read(fileno) for fileno, _ in ready])

    def _ready(self, end: float, *, lingering: bool) -> list[tuple[int, int]]:
        """The connections with something to read, once that may be enough; none: it is too late.

        Each waking costs as much as many an answer. Of so many more answers that are needed one
        at least comes from any set that leaves fewer of the nodes out: so the sleep is over when
        the last nodes that were written to begin to answer.
        """
        awaited = list(self.unheard.values())
        needed = self.question.needed() - len(self.busy)
        if lingering and self.question.undoing:
            awaited = [fileno for i, fileno in self.unheard.items() if i in self.prompt]
            needed = len(awaited)
        last = awaited[max(0, needed - 1) :]
        now = time.monotonic()
        self._absent += max(0.0, now - self._looked - self.timeout / 4)
        self._looked = max(now, end)
        left = max(0.0, end - now) * 1000
        if len(last) == len(self.unheard) or self.unsent:
            return self.poll.poll(left)
        some = select.poll()
        for fileno in last:
            some.register(fileno, select.POLLIN)
        some.poll(left)
        return self.poll.poll(0)

    def _late(self, end: float) -> float:
        """Seconds for which this thread did not run, and could hear nobody, since it was asked.

        Who wakes up late from the last sleep looks for a moment more: if the whole machine stood
        still, so did nodes on it.
        """
        now = time.monotonic()
        late = max(0.0, now - self._looked - self.timeout / 4)
        absent = self._absent + late
        self._absent, self._looked = 0.0, now
        self._longest += absent
        return min(absent + (self.timeout / 2 if late else 0.0), self._longest - end)

    def _worth(self) -> bool:
        """Whether those who were not heard yet are worth a moment more."""
        if self.question.undoing:
            return bool(self.prompt)
        worth = self.ask.worth
        return worth is not None and bool(self.unheard) and worth(self.ballot)

    def _read(self, fileno: int) -> int:
        i = self.awaited[fileno]
        channel = self.mine[i]
        channel.read()
        if channel.fault:
            self._drop(i)
        elif fileno in self.unsent and not channel.unsent:
            self.unsent.discard(fileno)
            self.poll.modify(fileno, select.POLLIN)
        return i

    def _count(self, indices: Sequence[int]) -> None:
        for i in indices:
            if self.ballot[i] is not None:
                self.unheard.pop(i, None)
                self.prompt.discard(i)

    # -- afterwards -----------------------------------------------------------------------------

    def spoil(self) -> None:
        """Mark every channel in use as possibly out of step; what was to be undone is kept."""
        self.question.asker.leave()
        for channel in self.mine.values():
            channel.spoiled = time.monotonic()
        for i in self.question.asked:
            vote = self.ballot[i]
            if vote is None or vote.answer is Answer.UNKNOWN:
                self.question.keep(i)

    def give_back(self) -> None:
        """Return the channels; remember those on which a grant is unanswered."""
        if gone:
            settle()
        self._forgo()
        now = time.monotonic()
        nonce = self.ask.nonce if self.ask.command is Command.GRANT else None
        while self.mine:
            i, channel = self.mine.popitem()
            self.nodes[i].give(channel, nonce, now)

"""One question on its way to the nodes: gather channels, write to all, listen, give back.

A question is packed once and written to every node; then the answers are read as they arrive,
until the asker's ``decided`` says that no further one can matter, or the node timeout has
passed. A node that has not answered by then costs nothing: its answer stays owed on its channel
and is settled by whoever uses that channel next.

Undoing waits a little longer: when decided, for the nodes that owed nothing before, at most as
long again. So after a release the name is free on every prompt node, not just on a majority.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING

from .channel import Channel
from .protocol import Answer, Command
from .question import HANDSHAKE, PATIENCE, Question

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .node import Node, Opening
    from .protocol import Ask


class Round:
    """One question on its way."""

    def __init__(self, nodes: Sequence[Node], ask: Ask, timeout: float) -> None:
        self.nodes = nodes
        self.ask = ask
        self.question = Question(nodes, ask)
        self.ballot = self.question.ballot
        self.start = self.question.start
        self.timeout = timeout
        self.mine: dict[int, Channel] = {}  # ours alone until given back
        self.busy: dict[int, Channel] = {}  # another thread's: written to, never read
        self.deadline = self.start + timeout
        self.poll = select.poll()
        self.awaited: dict[int, int] = {}  # file descriptor -> index
        self.unheard: dict[int, int] = {}  # ours, asked, not answered yet -> file descriptor
        self.prompt: set[int] = set()  # of these, the ones that owed nothing before
        self._looked = self._absent = 0.0  # seconds: when we last looked; for which we could not
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
                why = self.nodes[i].trouble or f"no connection within {self.timeout:g} s"
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
        openings: dict[int, Opening] = {}
        patience: dict[int, float] = {}
        for i in missing:
            node = self.nodes[i]
            known_down = bool(node.trouble)
            opening = node.open(self.start, urgent=urgent)
            if opening is not None and known_down and not urgent:
                node.forgo(opening)
            elif opening is not None:
                openings[i] = opening
                patience[i] = self.timeout * (1 if known_down else HANDSHAKE)
        for i, opening in openings.items():
            opening.done.wait(max(0.0, self.deadline - time.monotonic()))
            self._join(i, opening)
        for i, opening in openings.items():
            if i not in self.mine and not self._enough():
                self._wait_for(opening, patience[i])
                self._join(i, opening)
            if i not in self.mine:
                self.nodes[i].forgo(opening)

    def _wait_for(self, opening: Opening, patience: float) -> None:
        """Wait for a connection, until the node is silent; what this machine is late counts not."""
        longest = self.start + PATIENCE * self.timeout
        while True:
            now = time.monotonic()
            end = self.start + patience
            if patience > self.timeout:  # not known to be down
                end = max(end, opening.patience_ends(patience, longest))
            if end <= now or opening.done.wait(end - now):
                return

    def _enough(self) -> bool:
        return len(self.mine) + len(self.busy) >= self.question.majority

    def _join(self, i: int, opening: Opening) -> None:
        if opening.channel is not None:
            self._have(i, opening.channel)

    def _have(self, i: int, channel: Channel) -> None:
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
            if self.ballot[i] is not None:
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
        """Seconds for which this thread did not run, and could hear nobody, since it was asked."""
        now = time.monotonic()
        absent = self._absent + max(0.0, now - self._looked - self.timeout / 4)
        self._absent, self._looked = 0.0, now
        return min(absent, self.start + PATIENCE * self.timeout - end)

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
            if vote is None or vote.answer is Answer.LOST:
                self.question.keep(i)

    def give_back(self) -> None:
        """Return the channels; remember those on which a grant is unanswered."""
        now = time.monotonic()
        nonce = self.ask.nonce if self.ask.command is Command.GRANT else None
        while self.mine:
            i, channel = self.mine.popitem()
            self.nodes[i].give(channel, nonce, now)

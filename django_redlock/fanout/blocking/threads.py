"""Put a thread's request to the nodes: by a set of connections if there is one, or by each.

By a set, while all is as usual: one write to each node, one poll, and replies that are compared by
bytes; the usual reply of a majority decides a grant and a release. Everything else is what
``BlockingRequest`` does, which takes over in the middle: a reply other than usual, none from a
majority for a quarter of the node timeout, a connection that is lost or does not take the request,
and an interruption.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Final

from django_redlock.core.commands import freed
from django_redlock.core.protocol import UNDO, Answer, Vote
from django_redlock.core.quorum import majority_of
from django_redlock.fanout.votes import LEAST_LINGER
from django_redlock.interruption import forgotten, settle
from django_redlock.transport.exchange import Exchange
from django_redlock.transport.pending import Asker

from .request import BlockingRequest
from .sets import ConnectionSets

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_redlock.core.protocol import Request
    from django_redlock.transport.node import Node

YES: Final = Answer.YES  # an enum's member costs five times a name
SOON: Final = 1 / 4  # of the node timeout, in which a majority replies when all is well


class Threads:
    """The nodes, for the threads of this process.

    Args:
        timeout: the node timeout, in seconds.
    """

    def __init__(self, nodes: Sequence[Node], timeout: float) -> None:
        self.nodes = nodes
        self.timeout = timeout
        self.sets = ConnectionSets(nodes, timeout)
        self._majority = majority_of(len(nodes))
        self._freed = [node.freed for node in nodes]

    def ask(self, request: Request) -> list[Vote]:
        """Put a request to the nodes; return one vote for each, in order."""
        votes = self._ask_set(request)
        if votes is not None:
            return votes
        asking = BlockingRequest(self.nodes, request, self.timeout)
        return self._carry(asking, asking.begin)

    def _carry(self, asking: BlockingRequest, begin: Callable[[], object]) -> list[Vote]:
        try:
            begin()
            asking.listen()
            while asking.more():
                asking.write()
                asking.listen()
            return asking.collector.result()
        except BaseException:  # rule: an interrupted stream serves for undoing, nothing else
            asking.spoil()
            raise
        finally:
            asking.give_back(self.sets.form)

    # -- by a set -------------------------------------------------------------------------------

    def _ask_set(self, request: Request) -> list[Vote] | None:
        """Put a request to the nodes of a set; return None if it was not written."""
        exchange = None
        try:
            lent = self.sets.lend(request)
            if lent is None:
                return None
            exchange = Exchange(lent, request)
            if not exchange.write():
                self.sets.dissolve(lent)
                return None
            if not exchange.failed:
                self._listen(exchange)
                votes = self._votes(exchange)
                if votes is not None:
                    return votes
            self.sets.forget(lent)
            asking = BlockingRequest(self.nodes, request, self.timeout)
            return self._carry(asking, partial(asking.take_over, exchange))
        except BaseException:
            if exchange is None:
                self.sets.reclaim(request)
            elif self.sets.is_still_lent(exchange.lent, request):
                asking = BlockingRequest(self.nodes, request, self.timeout)
                try:
                    asking.take_over(exchange)
                finally:
                    asking.spoil()
                    asking.give_back()
            raise

    def _listen(self, exchange: Exchange) -> None:
        """Read until it is enough, or something is unusual; wait for late ones as a request does.

        A release waits a moment for each node that is prompt: at first for the last one that was
        written to, for the others have replied then.
        """
        start, now = exchange.start, exchange.start
        end = start + SOON * self.timeout
        if not exchange.takes:
            exchange.wait(LEAST_LINGER, len(exchange.missing))
        while exchange.missing and not exchange.odd:
            needed = self._majority - len(exchange.heard)
            if needed <= 0:
                if exchange.takes:
                    return
                needed = len(exchange.missing)
                if exchange.lingers_until is None:
                    now = time.monotonic()
                    end = exchange.lingers_until = now + max(now - start, LEAST_LINGER)
            if now >= end or not exchange.wait(end - now, needed):
                return
            now = time.monotonic()

    def _votes(self, exchange: Exchange) -> list[Vote] | None:
        """Return the votes, if the request is decided; the set is given back then."""
        heard, lent = exchange.heard, exchange.lent
        if exchange.odd or len(heard) < self._majority:
            return None
        if forgotten:
            settle()
        votes = self._freed[:]
        if exchange.grants:
            votes = [Vote(node.label, YES, exchange.number) for node in self.nodes]
        if len(heard) < len(lent.connections):
            for place in lent.connections:
                if place not in heard:
                    votes[place] = self.nodes[place].unheard
        for place in exchange.woke:
            votes[place] = freed(self.nodes[place].label, 1)
        for place in lent.left_out:
            votes[place] = self._left_out(place, exchange.request)
        self.sets.give(lent, exchange)
        return votes

    def _left_out(self, place: int, request: Request) -> Vote:
        """Return the vote of a node that is known to be down; it undoes when it is back."""
        node = self.nodes[place]
        if request.command in UNDO and (request.touched is None or place in request.touched):
            node.undo_later(Asker(request, time.monotonic()))
        return Vote(node.label, Answer.UNKNOWN, reason=node.why_unasked, sent=False)

"""Put the requests of threads to the nodes: each call has a link for itself.

The links of a process are in a few dictionaries. Who takes a link out of one has it, and puts it
back when its request is over; taking and putting are one step each, and nothing is locked.

* **The undo goes behind its grant.** A grant of which a node has not replied is in ``late``, with
  the number of its link; its undo takes that link. Where another call has the link at that moment,
  or a task has acquired, the undo takes any, and may be there before the grant. Who reads the late
  reply sends it once more (``Exchange.undone``).
* **A heal goes nowhere beside a grant.** It asks ``late`` as well (``Exchange``), once the links of
  the grant have been read.
* **An interrupted link** (``torn``) serves the undo of the same request, and is closed.
* A thread of the background reads for links that owe replies to undos.
* Where a caller needs one connection, as an event loop does, and the node has no idle one, a link
  is dissolved.
"""

from __future__ import annotations

import itertools
import math
import time
from typing import TYPE_CHECKING

from django_redlock.core.protocol import TAKING, UNDO
from django_redlock.interruption import drain

from .background import WorkerThreads
from .exchange import HEAL, Exchange, LateExchanges
from .link import Link
from .node import LONGEST_TORN, SETTLE_EVERY, SPARE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_redlock.core.protocol import Command, Request, Vote

    from .connection import Connection
    from .node import Node


class Threads:
    """The nodes, for the threads of this process. All methods may be called by any thread.

    Args:
        timeout: the node timeout, in seconds.

    Attributes:
        idle: the links that wait for a request, by number.
        owing: those that may have to undo a grant of which a node has not replied: other requests
            take them last.
        torn: the links that an interruption has put out of step, by the nonce of the request.
        late: the exchanges of threads and tasks to which not all nodes have replied.
        overtaken: whether an undo has ever gone another way than its grant. Nobody looks for late
            replies to grants before.
        threads: what reads for links that owe replies.
    """

    def __init__(self, nodes: Sequence[Node], timeout: float) -> None:
        self.nodes = nodes
        self.timeout = timeout
        self.numbers = itertools.count()
        self.reset()

    def reset(self) -> None:
        """Forget all links, as a forked child must."""
        self.idle: dict[int, Link] = {}
        self.owing: dict[int, Link] = {}
        self.torn: dict[str, Link] = {}
        self.late = LateExchanges()
        self.overtaken = False
        self.threads = WorkerThreads()

    def ask(self, request: Request) -> list[Vote]:
        """Put a request to the nodes; return one vote for each, in order."""
        exchange, link = Exchange(self.nodes, request, self.timeout, late=self.late), None
        if exchange.command is HEAL:
            self.read_late(request.nonce)
        try:
            link = self._take(exchange)
            votes = link.carry(exchange)
        except BaseException:  # rule: an interrupted stream serves for undoing, nothing else
            if link is not None:
                self._tear(link, exchange)
            raise
        self._put_back(link, exchange.command)
        return votes

    # -- links ----------------------------------------------------------------------------------

    def _take(self, exchange: Exchange) -> Link:
        """Return the link for an exchange: of an undo, the one of its grant."""
        if exchange.undoing:
            link = self._behind(exchange)
            if link is not None:
                return link
        for links in self.idle, self.owing:
            try:
                return links.popitem()[1]
            except KeyError:
                continue
        return Link(next(self.numbers), self.nodes, self.timeout)

    def _behind(self, exchange: Exchange) -> Link | None:
        """Return the link of the grant that is undone, if no other call has that."""
        nonce = exchange.request.nonce
        link = self.torn.pop(nonce, None)
        for each in self.late.pop(nonce, ()):
            each.undone = exchange  # before the look: who puts the link back meanwhile knows of it
            link = link or self._pop(each.link)
            if link is not None and link.number == each.link:
                each.undone = None
            else:
                self.overtaken = True
        return link

    def _pop(self, number: int) -> Link | None:
        return self.idle.pop(number, None) or self.owing.pop(number, None)

    def _put_back(self, link: Link, command: Command) -> None:
        if link.torn:
            link.close()
        elif len(self.idle) + len(self.owing) >= SPARE:
            link.dissolve()
        elif not link.owing:
            self.idle[link.number] = link
        else:
            (self.owing if command in TAKING else self.idle)[link.number] = link
            if command in UNDO or (self.overtaken and link.is_undoing):
                self._attend_soon()

    def _tear(self, link: Link, exchange: Exchange) -> None:
        """Keep a link for the undo that follows an interruption."""
        link.tear(exchange)
        self.torn[exchange.request.nonce] = link
        self._attend_soon()

    def undo_by_loop(self, undo: Exchange, number: int) -> None:
        """Have an undo sent once more where others than this loop's connections asked the grant."""
        for each in self.late.pop(undo.request.nonce, ()):
            if each.link != number:
                each.undone, self.overtaken = undo, True
                self._attend_soon()

    def read_late(self, nonce: str) -> None:
        """Read what has come for the grant of this nonce over links that nobody has used since.

        Else a heal would leave out nodes that have replied.
        """
        for each in tuple(self.late.get(nonce, ())):
            if (link := self._pop(each.link)) is not None:
                try:
                    link.settle()
                finally:
                    self._put_back(link, HEAL)

    # -- connections for others -----------------------------------------------------------------

    def take(self, node: Node, now: float) -> Connection | None:
        """Return a connection as ``Node.take`` does, out of a link if no other is idle."""
        if node.is_bare:  # what may have to undo a grant keeps its connections
            for number in self.idle.copy():
                if (link := self.idle.pop(number, None)) is not None:
                    link.dissolve()
                    break
        return node.take(now)

    # -- in the background ----------------------------------------------------------------------

    def _attend_soon(self) -> None:
        self.threads.offer("late", self._attend, again=False)

    def _attend(self) -> None:
        """Read for links that owe replies to undos, and close those that no undo has taken.

        Such an undo did not come: it was interrupted, too.
        """
        every = self.idle, self.owing
        while True:
            self.threads.pause(SETTLE_EVERY)  # first: a link that is in use now is back then
            if self.threads.until < math.inf:
                return
            for links in every:
                for number in tuple(links):
                    if (link := links.pop(number, None)) is not None:
                        try:
                            link.settle()
                        finally:
                            links[number] = link
            latest = time.monotonic() - LONGEST_TORN
            for nonce, link in tuple(self.torn.items()):
                if link.torn < latest and self.torn.pop(nonce, None) is not None:
                    link.give_up()
            undoing = (each.is_undoing for links in every for each in tuple(links.values()))
            if not (self.torn or any(undoing)):
                return

    def close(self) -> None:
        """Give the connections of all idle links to the nodes; close those out of step."""
        for link in drain(lambda: self.idle.popitem()[1], lambda: self.owing.popitem()[1]):
            link.dissolve()
        for link in drain(lambda: self.torn.popitem()[1]):
            link.give_up()

"""The rules of joining, moving and leaving, over made-up places in queues; by threads and tasks.

Each test holds for both: a thread asks ``queue``, a task ``aqueue``. See ``tests/core`` for when a
waiter does what, and ``test_waiters`` for real connections.
"""

from __future__ import annotations

import asyncio
import gc
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from django_redlock.core.protocol import BlockOnNode, JoinQueue, LeaveQueue, Waiter, Wakeup
from django_redlock.nodes.queue import Place, Waiters

QUEUE = "redlock:queue:name"
NONCE = "1" * 32


class MadeUp(Place):
    """A place in a queue of a node that does as it is told.

    Attributes:
        came: what comes of it as soon as somebody waits.
        late: what comes of it when it is asked to let the waiter go.
    """

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.came: Wakeup | None = None
        self.late: Wakeup | None = None
        self.ended = self.withdrawn = 0

    def outcome(self) -> Wakeup | None:
        """What came."""
        return self.came

    def wait(self, seconds: float) -> None:
        """Nothing more comes."""

    def watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Nothing more comes."""

    def withdraw(self, *, looped: bool) -> bool:
        """Let the waiter go."""
        self.withdrawn += 1
        self.came = self.came or self.late
        return False

    def end(self) -> None:
        """Give it up."""
        self.ended += 1

    abandon = end


class MadeUpPlaces:
    """Where places come from; none at the nodes that are down."""

    def __init__(self) -> None:
        self.made: list[MadeUp] = []
        self.down: set[int] = set()
        self.comes: dict[int, Wakeup] = {}  # at once, by node

    def open(self, effect: BlockOnNode) -> MadeUp | None:
        """Take a place."""
        if effect.node_index in self.down:
            return None
        place = MadeUp(effect.node_index)
        place.came = self.comes.get(effect.node_index)
        self.made.append(place)
        return place

    def aopen(
        self,
        effect: BlockOnNode,
        loop: asyncio.AbstractEventLoop,
        *,
        wanted: Callable[[], bool],
        then: Callable[[MadeUp | None], object],
    ) -> float:
        """The same a moment later."""
        loop.call_soon(lambda: then(self.open(effect)) if wanted() else None)
        return 60.0


class Side:
    """Somebody who waits: a thread, or a task in a loop of its own."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.loop = asyncio.new_event_loop()
        self.places = MadeUpPlaces()
        self.waiters = Waiters(self.places, 0.01)

    def ask(self, effect: JoinQueue | BlockOnNode | LeaveQueue) -> Any:
        """Do one thing, and return what came of it."""
        if self.kind == "thread":
            return self.waiters.queue(effect)

        async def one() -> Any:
            return await self.waiters.aqueue(effect)

        return self.loop.run_until_complete(one())

    def block(self, waiter: Waiter, place: int) -> Any:
        """Block on the queue of a node, for a moment."""
        return self.ask(BlockOnNode(waiter, place, 0.001, 10.0))


@pytest.fixture(params=["thread", "task"])
def side(request: pytest.FixtureRequest) -> Iterator[Side]:
    """A thread, and a task with a loop that is closed at the end."""
    made = Side(request.param)
    with closing(made.loop):
        yield made


def test_a_waiter_that_leaves_keeps_the_slot_that_it_has_seen_free(side):
    """Nothing has come, or a broken place; only a wake-up has a list of its own."""
    for late, which in ((None, 2), (Wakeup(broken=True), 2), (Wakeup(NONCE, which=1), 1)):
        waiter = Waiter(QUEUE, queues=("0", "1", "2"))
        assert side.ask(JoinQueue(waiter, 0.0)) is True
        side.block(waiter, 0)
        side.places.made[-1].late = late
        waiter.which = 2
        assert side.ask(LeaveQueue(waiter)) == (late.wakeup if late else "")
        assert waiter.which == which


def test_the_first_goes_to_the_nodes_and_the_next_when_it_has_left(side):
    """The second is told within its time, or not at all."""
    first, second = Waiter(QUEUE), Waiter(QUEUE)
    assert side.ask(JoinQueue(first, 0.0)) is True
    assert side.ask(JoinQueue(second, 0.001)) is False
    assert side.ask(LeaveQueue(first)) == ""
    assert side.waiters.local.is_first(second)


def test_a_place_is_kept_between_two_looks(side):
    """Who blocks again on the same node keeps its place in the queue."""
    waiter = Waiter(QUEUE)
    for _ in range(3):
        assert side.block(waiter, 1) == Wakeup()
    (place,) = side.places.made
    assert (place.ended, place.withdrawn) == (0, 0)


def test_a_wakeup_ends_the_wait_and_calls_the_next(side):
    """It has left the local queue, and its place is given up."""
    waiter, next_one = Waiter(QUEUE), Waiter(QUEUE)
    side.ask(JoinQueue(waiter, 0.0))
    side.ask(JoinQueue(next_one, 0.0))
    side.places.comes[1] = Wakeup(NONCE)
    assert side.block(waiter, 1) == Wakeup(NONCE)
    assert side.places.made[0].ended
    assert side.waiters.local.is_first(next_one)


def test_a_wakeup_stays_until_it_is_taken_along(side):
    """An interruption makes it leave with what it was woken by; the next one is woken with that."""
    waiter = Waiter(QUEUE)
    side.places.comes[1] = Wakeup(NONCE)
    side.block(waiter, 1)
    assert side.ask(LeaveQueue(waiter)) == NONCE
    assert side.ask(LeaveQueue(waiter)) == ""


def test_leaving_asks_the_node_first(side):
    """What has come until the node lets go is taken along."""
    waiter = Waiter(QUEUE)
    side.block(waiter, 1)
    side.places.made[0].late = Wakeup(NONCE)
    assert side.ask(LeaveQueue(waiter)) == NONCE
    assert side.places.made[0].withdrawn == 1
    assert side.places.made[0].ended


def test_moving_to_another_node_leaves_the_first(side):
    """And takes along what has come there."""
    waiter = Waiter(QUEUE)
    side.block(waiter, 1)
    assert side.block(waiter, 2) == Wakeup()
    first, second = side.places.made
    assert (bool(first.ended), bool(second.ended)) == (True, False)
    second.late = Wakeup(NONCE)
    assert side.block(waiter, 3) == Wakeup(NONCE)
    assert len(side.places.made) == 2


def test_a_node_that_is_down_has_no_place(side):
    """So it is told that the wait is broken; another node has one."""
    waiter = Waiter(QUEUE)
    side.places.down.add(1)
    assert side.block(waiter, 1) == Wakeup(broken=True)
    assert side.block(waiter, 2) == Wakeup()


def test_a_broken_place_is_taken_anew(side):
    """Its connection has ended; the next wait begins with another one."""
    waiter = Waiter(QUEUE)
    side.places.comes[1] = Wakeup(broken=True)
    assert side.block(waiter, 1) == Wakeup(broken=True)
    side.places.comes.clear()
    assert side.block(waiter, 1) == Wakeup()
    assert len(side.places.made) == 2


def test_a_forgotten_waiter_has_left(side):
    """A dead waiter would consume the wake-up: its place is given up, and the next is called."""
    waiter, next_one = Waiter(QUEUE), Waiter(QUEUE)
    side.ask(JoinQueue(waiter, 0.0))
    side.ask(JoinQueue(next_one, 0.0))
    side.block(waiter, 1)
    gone = weakref.ref(waiter)
    del waiter
    gc.collect()
    assert gone() is None
    assert side.places.made[0].ended
    assert side.waiters.local.is_first(next_one)


def test_a_child_has_no_place_of_its_parent(side):
    """The connection is the parent's; the child gets one of its own."""
    waiter = Waiter(QUEUE)
    side.block(waiter, 1)
    side.places.made[0].pid = os.getppid()  # this process is the child
    side.block(waiter, 1)
    first, second = side.places.made
    assert (first.ended, first.withdrawn, second.ended) == (0, 0, 0)

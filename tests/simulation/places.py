"""Lines and queues in the worlds: what ``nodes.queue`` does, over simulated wires.

A place is a connection that is blocked on a queue of one node. The question travels there, the
word travels back; either may be lost, and the node may crash, hang or be emptied meanwhile. A node
serves whoever stands there, suspended or dead, until it has seen that the connection is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from django_redlock.core.protocol import BlockOnNode, JoinQueue, LeaveQueue, Waiter, Wakeup
from django_redlock.nodes.queue import LocalQueue

from .profiles import NODE_TIMEOUT

if TYPE_CHECKING:
    from .network import SimNode
    from .world import Driven, World

TELLS: Final = 0.8  # of nodes that crash, those whose connections are seen to break
UNSEEN: Final = 0.3  # of processes that die, those whose nodes never see it
SEEN: Final = 0.1  # mean seconds until the others' nodes do
NO_OTHER: Final = 0.2  # of those who leave over bad lines, who have no other to say it on


class Process:
    """Clients that share a line for each queue, and die together.

    Attributes:
        looped: whether its waiters are tasks of an event loop; threads otherwise.
        awake: when the last of its suspensions ends.
    """

    def __init__(self, world: World) -> None:
        self.lines = LocalQueue()
        self.looped = world.random.random() < 0.5
        self.doomed = False
        self.awake = 0.0
        self.places: list[Place] = []

    def die(self) -> None:
        """Never do anything again; nodes see it late, or never."""
        self.doomed = True
        for place in self.places:
            place.die()


class Place:
    """A connection that is blocked on a queue, or on those of all slots of a limited lock.

    Attributes:
        takes: the queues, and for each what takes a word out of it.
        stood: what came of it, as far as its owner knows; None while nothing has come.
        entered: when it got into the node's queue; None: it has not.
        standing: whether it is in the node's queue.
        excused: whether the node need not know that its owner has left.
        told: called when something has come.
    """

    def __init__(self, driven: Driven, node: SimNode, effect: BlockOnNode) -> None:
        self.world = driven.world
        self.process = driven.client.process
        self.label = driven.client.label
        self.node = node
        self.takes = [
            (queue, partial(self._take, which=which))
            for which, queue in enumerate(effect.waiter.queues)
        ]
        self.came: Wakeup | None = None
        self.entered: float | None = None
        self.blocked = False
        self.excused = False
        self.told: Callable[[], object] = bool
        self._life = node.life
        self._closed = False
        self._inbound = 0.0
        self.process.places.append(self)
        self._send(partial(self._enter, effect.longest))

    # -- on the owner's side --------------------------------------------------------------------

    def unblock(self) -> None:
        """Ask the node, on another connection, to answer now."""
        if not self._lost():
            moment = self.world.now + self.world.latency()
            self.world.at(moment, partial(self._reach, partial(self._leave, answer=True)))

    def close(self) -> None:
        """Close the connection, unless it has been given back."""
        if not self._closed:
            self._closed = True
            self.process.places.remove(self)
            if self.came is None:
                self._send(self._leave)

    def die(self) -> None:
        """The owner's machine is gone."""
        self._closed = self.excused = True
        if not self.world.chance(UNSEEN):
            seen = self.world.random.expovariate(1 / SEEN)
            self.world.after(seen, partial(self._reach, self._leave))

    def _hear(self, came: Wakeup) -> None:
        if not self._closed and self.came is None:
            self.came = came
            self.told()
        elif came.wakeup:  # CLIENT UNBLOCK was slow, or overtook the BLPOP
            self.world.note("word too late", came.wakeup, self.label)
            self.world.patience.lost = self.world.now

    # -- on the wire ----------------------------------------------------------------------------

    def _lost(self) -> bool:
        lost = self.node.hangs or self.world.chance(self.world.profile.loss)
        if lost:
            self.world.note("lost request", "queue", self.node.label)
            self.excused = True
        return lost

    def _send(self, action: Callable[[], object]) -> None:
        self._inbound = max(self._inbound, self.world.now + self.world.latency())
        if not self._lost():
            self.world.at(self._inbound, partial(self._reach, action))

    def _reach(self, action: Callable[[], object]) -> None:
        if self.node.stalled > self.world.now:
            self.world.at(self.node.stalled, partial(self._reach, action))
        elif self.node.life != self._life or not self.node.up:
            self._answer(Wakeup(broken=True))
        else:
            action()

    def _answer(self, came: Wakeup) -> None:
        if self.world.chance(self.world.profile.loss):
            self.world.note("lost word" if came.wakeup else "lost reply", came.wakeup)
            self.excused = True
            return
        self.world.after(self.world.latency(), partial(self._hear, came))

    # -- on the node's side ---------------------------------------------------------------------

    def _enter(self, longest: float) -> None:
        self.entered = self.world.now
        self.blocked = True
        self.node.places.append(self)
        for queue, take in self.takes:
            if self.blocked:
                self.node.memory.block(queue, take)
        if self.blocked:
            self.world.note("stands", self.label, self.node.label)
            self.world.after(longest, partial(self._reach, partial(self._leave, answer=True)))

    def _take(self, wakeup: str, which: int) -> bool:
        if not self.blocked:
            return False
        self._out()
        self.world.note("served", self.label, wakeup, self.node.label)
        self._answer(Wakeup(wakeup, which=which))
        return True

    def _leave(self, *, answer: bool = False) -> None:
        if self.blocked:
            self._out()
            if answer:
                self._answer(Wakeup())

    def _out(self) -> None:
        self.blocked = False
        self.node.places.remove(self)
        for queue, take in self.takes:
            self.node.memory.leave(queue, take)

    def fall(self) -> None:
        """The node crashes, and every connection with it; a machine that is gone tells nobody."""
        self._out()
        if self.world.chance(TELLS):
            self._answer(Wakeup(broken=True))


class Once:
    """Lets a client go on, the first time."""

    def __init__(self, driven: Driven) -> None:
        self._driven, self._turn, self._over = driven, driven.turn, False

    def __call__(self, value: bool | Wakeup | str) -> None:
        if not self._over:
            self._over = True
            self._driven.resume(self._turn, value)


def begin(driven: Driven, effect: JoinQueue | BlockOnNode | LeaveQueue) -> None:
    """Wait in line, stand or leave."""
    if isinstance(effect, JoinQueue):
        _line(driven, effect)
    elif isinstance(effect, BlockOnNode):
        _block(driven, effect)
    else:
        _leave(driven, effect)


def _line(driven: Driven, line: JoinQueue) -> None:
    world, once = driven.world, Once(driven)
    driven.forget_place()
    first = partial(once, True)
    if driven.client.process.lines.join(line.waiter, partial(world.after, 0.0, first)):
        first()
    else:
        world.note("in line", driven.client.label)
        world.after(driven.client.seconds(line.seconds), partial(once, False))


def _block(driven: Driven, effect: BlockOnNode) -> None:
    place, node = driven.place, driven.world.network.nodes[effect.node_index]
    if place is not None and place.node is not node:
        driven.world.note("moves", driven.client.label)
        if driven.client.process.looped:
            driven.forget_place()
        else:
            again = partial(_moved, driven, effect, driven.turn)
            driven.place = None
            _leave_node(driven, place, effect.waiter, again)
            return
    _await(driven, effect, node)


def _moved(driven: Driven, effect: BlockOnNode, turn: int, wakeup: str) -> None:
    if turn == driven.turn:
        if wakeup:
            driven.client.process.lines.leave(effect.waiter)  # production's waiter is forgotten
            Once(driven)(Wakeup(wakeup, which=effect.waiter.which))
        else:
            _await(driven, effect, driven.world.network.nodes[effect.node_index])


def _await(driven: Driven, effect: BlockOnNode, node: SimNode) -> None:
    once, turn = Once(driven), driven.turn
    if driven.place is None:
        if not node.up:
            driven.world.after(driven.world.latency(), partial(once, Wakeup(broken=True)))
            return
        driven.place = Place(driven, node, effect)
    place = driven.place

    def told() -> None:
        if turn != driven.turn:
            return
        if place.came is not None and place.came.wakeup:
            effect.waiter.which = place.came.which
            driven.client.process.lines.leave(effect.waiter)  # and the word stays until taken along
        elif place.came is not None:
            driven.forget_place()
        once(place.came or Wakeup())

    place.told = told
    if place.came is not None:
        told()
    else:
        driven.world.after(driven.client.seconds(effect.seconds), told)


def _leave(driven: Driven, leave: LeaveQueue) -> None:
    lines, place, once = driven.client.process.lines, driven.place, Once(driven)
    driven.place = None
    if driven.client.process.looped:
        lines.leave(leave.waiter)

    def left(wakeup: str) -> None:
        lines.leave(leave.waiter)
        once(wakeup)

    if place is None:
        left("")
    else:
        _leave_node(driven, place, leave.waiter, left)


def _leave_node(
    driven: Driven, place: Place, waiter: Waiter, then: Callable[[str], object]
) -> None:
    over = False

    def end() -> None:
        nonlocal over
        if not over:
            over = True
            place.close()
            waiter.which = place.came.which if place.came and place.came.wakeup else waiter.which
            then(place.came.wakeup if place.came else "")

    place.told = end
    alone = driven.world.profile.loss > 0 and driven.world.chance(NO_OTHER)
    if place.came is not None or alone:
        end()
    else:
        place.unblock()
        driven.world.after(driven.client.seconds(NODE_TIMEOUT), end)

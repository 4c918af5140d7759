"""Another program with another Redlock client: it knows no queue, and wakes nobody."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from django_redlock.core.protocol import Grant

from .checker import Belief
from .profiles import NODE_TIMEOUT

if TYPE_CHECKING:
    from .network import SimNode
    from .world import World

THINKS: Final = 2.5  # longest seconds between two attempts


class Foreign:
    """Takes names by SET NX PX on a majority, and deletes them by comparison."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._belief: Belief | None = None
        self._think()

    def _think(self) -> None:
        self._world.after(self._world.random.uniform(0, THINKS), self._try)

    def _try(self) -> None:
        world = self._world
        target = world.clients[0].policy.target([world.random.choice(world.clients[0].names)])
        ttl = world.random.choice(world.profile.ttls)
        until = world.now + ttl * 0.99 - 0.002
        grant = Grant(
            target, f"{world.random.getrandbits(160):x}", 0, until, world.now, ttl, frozenset()
        )
        having: set[str] = set()
        for node in world.network.nodes:
            self._tell(partial(self._set, node, grant, having))
        world.after(NODE_TIMEOUT, partial(self._count, grant, having))

    def _tell(self, action: partial[None]) -> None:
        if not self._world.chance(self._world.profile.loss):
            self._world.after(self._world.latency(), action)

    def _set(self, node: SimNode, grant: Grant, having: set[str]) -> None:
        key = grant.target.keys[0]
        if node.votes() and node.up and not node.hangs and node.memory.get(key) is None:
            node.memory._set(key, grant.nonce, int(grant.ttl * 1000))
            having.add(node.label)

    def _delete(self, node: SimNode, grant: Grant) -> None:
        key = grant.target.keys[0]
        if node.memory.get(key) == grant.nonce:
            del node.memory.keys[key]

    def _count(self, grant: Grant, having: set[str]) -> None:
        world = self._world
        if len(having) > len(world.network.nodes) // 2 and world.now < grant.deadline:
            world.note("foreign", grant.target.name)
            self._belief = world.checker.believes("foreign", grant, grant.deadline)
            hold = world.random.uniform(0, 2 * world.profile.hold) * grant.ttl
            world.after(hold, partial(self._release, grant))
        else:
            self._release(grant)

    def _release(self, grant: Grant) -> None:
        if self._belief is not None:
            self._world.checker.ended(self._belief)
            self._belief = None
        for node in self._world.network.nodes:
            self._tell(partial(self._delete, node, grant))
        self._think()

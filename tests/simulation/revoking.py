"""Somebody on call, who looks at who holds a name, thinks, and takes it away.

What looks and takes is production's (``inspection.survey``, ``inspection.revoke``,
``core.hold.revoke``). While this one thinks, the lease may be renewed, healed, handed over or
released, and the next holder may have the name. ``Checker`` knows what must be true: by name,
whose lock is taken away; whether it was told as done; and from then on no renewal prolongs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from django_redlock.backend import Backend
from django_redlock.core.errors import NodesUnavailable
from django_redlock.core.protocol import Sleep
from django_redlock.inspection import revoke
from django_redlock.inspection.survey import surveying
from django_redlock.nodes.node import NodeStatus

from .client import Acts, Client
from .places import Process
from .profiles import MAX_TTL

if TYPE_CHECKING:
    from .world import World

LABEL: Final = "revoker"
THINKS: Final = 0.3  # longest seconds between the look at the holder and taking the name away
TRIES: Final = 3  # of which a majority must do it, else it gives up


class Revoker(Client):
    """A process of its own, which holds nothing."""

    def __init__(self, world: World) -> None:
        super().__init__(world, len(world.clients), len(world.network.nodes), Process(world))
        self.label = LABEL
        self._backend = Backend("simulated", cast("Any", self), self.policy, ttl=MAX_TTL)

    def states(self) -> list[NodeStatus]:
        """As a group of nodes has it."""
        return [
            NodeStatus(node.label, node.up and node.votes()) for node in self.world.network.nodes
        ]

    def life(self) -> Acts:
        """Take names away until the world ends."""
        random, profile = self.world.random, self.world.profile
        while True:
            yield Sleep(random.expovariate(1 / profile.revokes))
            yield from self._take(random.choice(self.names))

    def _take(self, name: str) -> Acts:
        world, deletes = self.world, self.world.chance(self.world.profile.deletes)
        report = yield from surveying(self._backend, (name,))
        (lock,) = report.locks
        try:
            revoke.refuse(lock, now=deletes)
        except (LookupError, NodesUnavailable):
            return
        yield Sleep(world.random.uniform(0, THINKS))
        for _ in range(TRIES):
            world.checker.takes(name, lock.owners[0].owner, deletes=deletes)
            try:
                found = yield from revoke.taking(self._backend, lock, "by the revoker", now=deletes)
            except LookupError:  # the holder has let go meanwhile
                return
            world.note("deleted" if deletes else "revoked", name, found.on, found.done)
            if found.done:
                if not deletes:
                    world.checker.taken(lock.owners[0].owner, world.now)
                return

"""Nodes that boot with a slow clock, which is set later, and the handshakes of those who ask them.

What a handshake decides is the code that production runs (``admission``); what it writes on the
node is that of ``testing.memory_node``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django_redlock.core.policy import milliseconds
from django_redlock.nodes import admission

from .profiles import SKEW

if TYPE_CHECKING:
    from .client import Client
    from .network import SimNode
    from .world import World

SET_WITHIN: Final = 0.8  # seconds after the start; before the node can have a vote again


class Clock:
    """The clock of a machine that forgets the time while it is off.

    Attributes:
        booted: what it showed when the node was started.
    """

    def __init__(self, node: SimNode) -> None:
        self._node = node
        self._right = node.error
        self.booted = -1000.0

    def now(self) -> float:
        """What it shows, in seconds."""
        return self._node.memory.clock() / 1000

    def boot(self, most: float) -> None:
        """Start behind by up to so many seconds, and be set right soon."""
        node, world = self._node, self._node.world
        life = node.life
        node.error = self._right - world.random.uniform(0, most)
        self.booted = self.now()

        def set_right() -> None:
            if node.life == life:
                node.error = self._right
                world.note("clock set", node.label)

        world.after(world.random.uniform(0, SET_WITHIN), set_right)


class Handshakes:
    """What each client knows of each node; it looks anew whenever it asks something.

    In half of the worlds every question is asked by a new process, which remembers nothing.
    """

    def __init__(self, world: World) -> None:
        self._remembering = world.chance(world.profile.boots and 0.5)
        self._facts: dict[tuple[str, str], admission.ServerInfo] = {}

    def may_vote(self, client: Client, node: SimNode) -> bool:
        """Look at the node, and say whether it may be asked."""
        clock, wall, steady = node.clock.now(), client.wall() / 1e6, client.clock()
        look = admission.Look(clock, wall, wall, steady, steady)
        facts = admission.ServerInfo(
            run_id=f"{node.label} {node.life}",
            software="",
            uptime=clock - node.clock.booted,
            role="master",
            promoted=False,
            cluster=False,
        )
        place = client.label, node.label
        facts = admission.seen(facts, look, self._facts.get(place), SKEW / 2)
        if self._remembering:
            self._facts[place] = facts
        if facts.off:
            node.world.note("wrong clock", client.label, node.label)
            return False
        age = admission.age(facts, look.heard)
        guard, epoch = node.guard(), int(node.world.now * 1000)
        _, left, _ = node.memory.admit(milliseconds(guard), milliseconds(age), epoch)
        return left == 0 and admission.guard_left(age, guard) == 0

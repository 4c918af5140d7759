"""What those who wait may expect: that a free name is taken soon, in turn, and nobody is forgotten.

A name is free for those who want it when a majority of the nodes vote and none of these has a key
in the way: a holder's, a dead one's, a rest, or what an attempt that is over has left behind. A
reservation is not in the way, nor is the key of an attempt that somebody is in the middle of.
Then somebody must take it within the profile's ``patience``, unless all who want it are suspended.
A client whose question got lost on its way, or an answer to it, has to ask again: it waits from
then on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from django_redlock.nodes.memory import NEXT

from .checker import Broken, Violation
from .profiles import LATE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_redlock.core.protocol import Grant

    from .client import Client
    from .network import SimNode
    from .world import Driven, World

EVERY: Final = 0.002  # seconds between two looks


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody waits for, from when to when, on the clock of the world.

    Attributes:
        wanted: the keys that are to be free: of any of the slots, where the lock has such.
    """

    name: str | tuple[str, ...]
    wanted: Sequence[tuple[str, ...]]
    since: float
    until: float


class Patience:
    """Looks after those who wait, in a world whose profile says how long they may have to."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._next = 0.0
        self._free: dict[tuple[str, ...], float] = {}
        self._missed: dict[str, float] = {}  # when somebody's question was lost
        self.longest = 0.0
        self.lost = -LATE  # when a word last came to somebody who had just closed his connection

    def look(self, now: float) -> None:
        """Whether nobody has waited too long for what is free.

        Raises:
            Violation: somebody has.
        """
        if now < self._next:
            return
        self._next = now + EVERY
        wishing = [
            (client, client.wish)
            for client in self._world.clients
            if client.wish is not None and client.wish.until > now and not client.doomed
        ]
        self._watch({keys for _, wish in wishing for keys in wish.wanted}, now)
        for client, wish in wishing:
            free = min(self._free.get(keys, now) for keys in wish.wanted)
            missed = self._missed.get(client.label, 0.0)
            waited = now - max(free, wish.since, client.process.awake, missed)
            self.longest = max(self.longest, waited)
            if waited > (LATE if self._bereft(now) else self._world.profile.patience):
                how = f"{client.label} has waited {waited:.3f} s for {wish.name}, free"
                raise Violation(Broken.WAITING, how)

    def missed(self, label: str) -> None:
        """A question of that client, or an answer to it, was lost."""
        self._missed[label] = self._world.now

    def _bereft(self, now: float) -> bool:
        """Whether a word was lost that only a look makes up for."""
        return now - self.lost < LATE

    def _watch(self, wanted: set[tuple[str, ...]], now: float) -> None:
        self._free = {
            keys: self._free.get(keys, now) for keys in sorted(wanted) if self._is_free(keys)
        }

    def _is_free(self, keys: tuple[str, ...]) -> bool:
        trying = {client.trying for client in self._world.clients if not client.doomed}
        nodes = self._world.network.nodes
        return sum(_free_at(node, keys, trying) for node in nodes) > len(nodes) // 2

    def granted(self, client: Client, grant: Grant, since: float) -> None:
        """Somebody got what others may have stood in line for, longer.

        In his own line, if he stood in one: a holder without the queue's node makes those who
        come meanwhile stand elsewhere, and the release then wakes one at each.

        Raises:
            Violation: somebody has.
        """
        profile = self._world.profile
        alone = len(grant.target.names) == 1
        if not profile.orderly or not alone or self._bereft(self._world.now):
            return
        queue = grant.target.queues[0]
        stood = [place.node for place in client.process.places if place.label == client.label]
        for node in stood or self._world.network.nodes:
            for place in node.places:
                queues = [each for each, _ in place.takes]
                if queue in queues and (place.entered or 0.0) < since - profile.orderly:
                    how = f"{place.label} has stood there since {place.entered:.3f}"
                    how = f"{client.label} came at {since:.3f} and got {grant.target.name}; {how}"
                    raise Violation(Broken.ORDER, how)

    def closed(self, driven: list[Driven]) -> None:
        """Everybody has left, a while ago: nobody stands in a queue or in a line.

        Raises:
            Violation: somebody does.
        """
        for node in self._world.network.nodes:
            for place in node.places if node.up and not node.stalled else ():
                if not place.excused:
                    raise Violation(Broken.BLOCKED, f"{place.label} still stands at {node.label}")
        for each in driven:
            if each.client.process.lines.queues and not each.client.doomed:
                raise Violation(Broken.BLOCKED, f"{each.client.label} is still in a line")


def _free_at(node: SimNode, keys: tuple[str, ...], trying: set[str]) -> bool:
    if not node.up or node.hangs or node.stalled > node.world.now or not node.votes():
        return False
    values = (node.memory.get(key) for key in keys)
    return all(
        value is None or value == NEXT or value.partition(":")[0] in trying for value in values
    )

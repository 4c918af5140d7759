"""Play moments that real nodes seldom meet, in virtual time; print what came of each.

    python -m tests.nodes.moments PLAY...

Each play has its line of JSON. One that is named ``broken:PLAY`` has the fault that it looks for.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import traceback
from collections.abc import Callable
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch

# The first of these replaces the time, which comes before the package.
# isort: off
from tests.nodes.two_drivers import TIMEOUT, Replies, group_of
from tests.support import virtual
from tests.support.virtual import WORLD, Fate, Nodes, Received
from django_redlock.core import commands as c
from django_redlock.core import hold, quorum
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Request
from django_redlock.nodes import loops, scripts
from django_redlock.nodes.group import NodeGroup
# isort: on

PROMPT: Final = 0.001  # seconds that a node takes for a request …
LATE: Final = 0.2  # … and that the first node takes for a grant
POLICY: Final = Policy(size=3)
NONCE, OTHER = "1" * 32, "2" * 32


class Usual(Replies):
    """Each node does what it is asked, and says so."""

    def __call__(self, request: Received) -> Fate:
        late = request.node == 0 and request.command == "grant"
        reply = self._usual(request.command, request.words, request.nonce)
        return Fate(LATE if late else PROMPT, True, reply)


def grant(nonce: str, name: str) -> c.Acquire:
    """A grant that a majority decides."""
    target, decided = (
        POLICY.target([name]),
        quorum.with_majority(quorum.granted_or_not, POLICY.majority),
    )
    first = target.queue_nodes[0]
    return c.Acquire(nonce, decided, target, 1, 10**9, 30_000, "label", first=first)


def undo(nonce: str, name: str) -> Request:
    """What undoes it on all nodes."""
    everyone = POLICY.everyone
    return hold.undo(POLICY, POLICY.target([name]), nonce, everyone, touched=everyone)


def connected(nodes: Nodes) -> list[int]:
    """How many connections each node has."""
    nodes.pump()
    ends = [end._node for end in nodes._ends.values()]
    return [ends.count(place) for place in range(POLICY.size)]


# -- event loops -----------------------------------------------------------------------------------


def closing(group: NodeGroup, nodes: Nodes) -> dict[str, object]:
    """Close the connections of an event loop while the first node owes it a reply."""
    found: dict[str, object] = {}

    async def main() -> None:
        start = WORLD.now
        await group.aask(grant(NONCE, "a"))
        for when, what in ((0.5, "closed"), (0.9, "before the reply"), (1.3, "after the reply")):
            await asyncio.sleep(start + when * LATE - WORLD.now)
            found[what] = connected(nodes)
            if what == "closed":
                group.close(0)
        await asyncio.get_running_loop().shutdown_asyncgens()

    loop = virtual.new_loop()
    loop.run_until_complete(main())
    loop.close()
    return found


def seldom() -> Any:
    """Each look whether it can be closed is a node timeout after the last one."""
    return patch.object(loops, "CLOSE_EVERY", TIMEOUT)


# -- all -------------------------------------------------------------------------------------------

Play = Callable[[NodeGroup, Nodes], dict[str, object]]
PLAYS: Final[dict[str, Play]] = {each.__name__: each for each in (closing,)}
BROKEN: Final = {"closing": seldom}


def play(name: str, folder: str) -> dict[str, object]:
    """Return what came of it."""
    names = {digest: str(command) for command, digest in scripts.DIGEST.items()}
    WORLD.nodes = nodes = Nodes(POLICY.size, folder, names, Usual(0))
    group = group_of(nodes.urls)
    found = PLAYS[name](group, nodes)
    WORLD.background(90.0)
    group.close(0)
    WORLD.background(5.0)
    WORLD.nodes = None
    nodes.close()
    return found


def main(*plays: str) -> None:
    """Print what came of each."""
    logging.disable()
    for each in plays:
        broken, _, name = each.rpartition(":")
        with TemporaryDirectory() as folder:
            if broken:
                with BROKEN[name]():
                    found = play(name, folder)
            else:
                found = play(name, folder)
        print(json.dumps([each, found]), flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception:  # noqa: BLE001 - printed
        traceback.print_exc()
        os._exit(1)  # in virtual time nothing ends that waits for a thread

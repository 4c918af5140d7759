"""What is shown: a lock, and how a client of it is started. ``cells`` has the list."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.peers import node, python
from benchmarks.peers.environments import PeerUnavailable

PROGRAM: Final = "museum.client_program"
NODE_PROGRAM: Final = Path(__file__).parent / "others" / "node_redlock.js"


@dataclass(frozen=True)
class Exhibit:
    """A lock that is shown.

    Attributes:
        key: its name in commands and pictures.
        title: for people.
        recipe: the class of a client, as module:name.
        servers: how many it uses.
        peer: the environment that has it, where it is other people's code; see ``peers``.
        package: its package for Node.js.
        guarded: whether its servers must be older than its restart guard before they vote.
    """

    key: str
    title: str
    recipe: str
    servers: int = 1
    peer: str = ""
    package: str = ""
    guarded: bool = False


def command(exhibit: Exhibit) -> list[str]:
    """Return the command of a client.

    Raises:
        PeerUnavailable: other people's code cannot be installed here; the text says why.
    """
    if exhibit.package:
        home = node()
        if home is None:
            raise PeerUnavailable("there is no node and npm")
        return ["node", str(NODE_PROGRAM), str(home), exhibit.package]
    interpreter = str(python(exhibit.peer)) if exhibit.peer else sys.executable
    return [interpreter, "-m", PROGRAM]

"""What processes that a server forks have of its connections to the nodes."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from django_redlock.testing import EmbeddedNodes

REMOTE, INODE = 2, 9  # columns of /proc/net/tcp


def children(pid: int) -> list[int]:
    """The processes that this one has forked."""
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for path in found for word in path.read_text().split()]


def to_nodes(pid: int, nodes: EmbeddedNodes) -> set[str]:
    """The connections that a process has to the nodes, by the numbers of their sockets."""
    ports = {f"{node.port:04X}" for node in nodes}
    rows = [row.split() for row in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = {f"socket:[{row[INODE]}]" for row in rows if row[REMOTE].partition(":")[2] in ports}
    links = set()
    for path in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):  # closed meanwhile
            links.add(str(path.readlink()))
    return ours & links


def shared(parent: int, nodes: EmbeddedNodes) -> int:
    """How many of a process's connections to the nodes its children have, too."""
    own = to_nodes(parent, nodes)
    return sum(len(own & to_nodes(child, nodes)) for child in children(parent))

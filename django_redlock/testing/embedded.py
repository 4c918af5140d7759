"""A group of real nodes without an installation. Not thread-safe: one thread commands a node."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Self, overload

from .embedded_node import EmbeddedNode
from .server import wait_for

__all__ = ["EmbeddedNode", "EmbeddedNodes"]

LATE_SECONDS = 5.0  # how much later than due a node may reach its voting age


class EmbeddedNodes(Sequence[EmbeddedNode]):
    """`count` servers that start together and end together; a context manager.

    `config` and `server` are those of each `EmbeddedNode`.
    """

    def __init__(
        self,
        count: int = 5,
        *,
        config: Mapping[str, object] | None = None,
        server: str | os.PathLike[str] | None = None,
    ) -> None:
        self._nodes = tuple(EmbeddedNode(config, server=server) for _ in range(count))

    def __repr__(self) -> str:
        return f"<EmbeddedNodes {list(self._nodes)}>"

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[EmbeddedNode]:
        return iter(self._nodes)

    @overload
    def __getitem__(self, index: int) -> EmbeddedNode: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[EmbeddedNode]: ...
    def __getitem__(self, index: int | slice) -> EmbeddedNode | Sequence[EmbeddedNode]:
        return self._nodes[index]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def urls(self) -> list[str]:
        """The nodes' addresses, in order."""
        return [node.url for node in self]

    def start(self) -> None:
        """Start all nodes at once; if one fails, end all."""
        try:
            for node in self:
                node.reserve()  # all ports are held before the first server starts: they differ
            with ThreadPoolExecutor(len(self)) as pool:  # its end awaits the nodes that did start
                for _ in pool.map(EmbeddedNode.start, self):
                    pass
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all nodes, also paused and dead ones, and remove their files; may be called twice."""
        with ExitStack() as stack:
            for node in self:
                stack.callback(node.close)

    def stop(self, index: int) -> None:
        """End the node `index` gracefully (SIGTERM)."""
        self[index].stop()

    def kill(self, index: int) -> None:
        """End the node `index` at once (SIGKILL)."""
        self[index].kill()

    def pause(self, index: int) -> None:
        """Make the node `index` hang: it keeps its connections and does not reply."""
        self[index].pause()

    def resume(self, index: int) -> None:
        """Let the paused node `index` go on."""
        self[index].resume()

    def restart(self, index: int) -> None:
        """Restart the node `index`; the restart guard keeps it from voting for a time."""
        self[index].restart()

    def settings(self, **options: Any) -> dict[str, object]:
        """Return the `REDLOCK` alias for these nodes, when they are ready to vote under it.

        Options are the alias's keys (`MAX_TTL=5`). Two rules keep a new node from voting. Both
        are right in production, so this method satisfies them and does not switch them off:

        * A node without an epoch in `{KEY_PREFIX}fences` counts as emptied. This method writes
          one on each node started since the last call, because that node is known to be new.
        * A node younger than MAX_TTL + CLOCK_SKEW + 1 seconds (its uptime is whole seconds) may
          have forgotten locks that have holders. This method waits until every running node is
          that old: three to four seconds after the start by default, no time thereafter.
          `RESTART_GUARD=False` does not wait.

        This method skips dead and paused nodes. A node that restarts later is under the guard
        until the method is called again.
        """
        alias: dict[str, Any] = {
            "NODES": self.urls,
            "MAX_TTL": 2,
            "CLOCK_SKEW": 0.1,
            "NODE_TIMEOUT": 1.0,  # seconds for which tests may keep a machine busy
        } | options
        alias.setdefault("TTL", alias["MAX_TTL"])
        for node in self._voters():
            node.vouch(alias.get("KEY_PREFIX", "redlock:"))
        if alias.get("RESTART_GUARD", True):
            age = float(alias["MAX_TTL"]) + float(alias["CLOCK_SKEW"]) + 1
            self._wait_until_aged(age)
        return alias

    def _wait_until_aged(self, age: float) -> None:
        wait_for(
            lambda: all(node.uptime() >= age for node in self._voters()),
            age + LATE_SECONDS,
            f"nodes to be {age} seconds old",
        )

    def _voters(self) -> list[EmbeddedNode]:
        return [node for node in self if node.is_running and not node.is_paused]

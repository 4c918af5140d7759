"""The yardstick of many tasks: our scripts, sent by the least that an event loop needs.

What tasks ask in one tick of the loop leaves in one write to each node, over one connection; a task
goes on when all nodes have answered. No lease, no renewal, no timeouts, no guard, no cancellation,
no early decision: what is left is the price of asyncio, of the wire and of the work of the nodes.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque

import hiredis

from .serve import Asyncio
from .sockets import Sockets, connect


class Asked:
    """What a task waits for."""

    __slots__ = ("answered", "missing", "status", "yes")

    def __init__(self, status: bytes, nodes: int, answered: asyncio.Future[int]) -> None:
        self.status, self.missing, self.answered = status, nodes, answered
        self.yes = 0

    def hear(self, answer: list[bytes]) -> None:
        """Count the answer of a node."""
        self.yes += answer[1] == self.status
        self.missing -= 1
        if not self.missing:
            self.answered.set_result(self.yes)


class Node(asyncio.Protocol):
    """The connection to one node: answers come in the order of the questions."""

    def __init__(self) -> None:
        self.asked: deque[Asked] = deque()
        self._reader = hiredis.Reader()

    def data_received(self, data: bytes) -> None:
        """Tell each task of its answer."""
        self._reader.feed(data)
        while (answer := self._reader.gets()) is not False:
            self.asked.popleft().hear(answer)


class TaskSockets:
    """Acquire and release by coroutines, as ``Sockets`` does by blocking calls."""

    def __init__(self, urls: list[str], prefix: str, ttl: float) -> None:
        self._urls, self._prefix, self._ttl = urls, prefix, ttl
        self._commands: Sockets | None = None
        self._nodes: list[tuple[Node, asyncio.WriteTransport]] = []
        self._connecting = asyncio.Lock()
        self._asked: list[Asked] = []  # in this tick
        self._packed: list[bytes] = []

    async def acquire(self, name: str) -> tuple[str, str]:
        """Ask every node to grant ``name``."""
        commands, nonce = self._commands or await self._connect(), secrets.token_hex(16)
        await self._ask(commands.grant_of(name, nonce), b"GRANTED")
        return name, nonce

    async def release(self, lease: tuple[str, str]) -> None:
        """Ask every node to forget it."""
        assert self._commands is not None
        await self._ask(self._commands.release_of(*lease), b"FREED")

    async def _ask(self, command: tuple[str | int, ...], status: bytes) -> None:
        loop = asyncio.get_running_loop()
        if not self._asked:
            loop.call_soon(self._leave)
        answered: asyncio.Future[int] = loop.create_future()
        self._asked.append(Asked(status, len(self._nodes), answered))
        self._packed.append(hiredis.pack_command(command))  # type: ignore[arg-type]
        yes = await answered
        if yes <= len(self._nodes) // 2:
            msg = f"{yes} nodes said {status.decode()}"
            raise RuntimeError(msg)

    def _leave(self) -> None:
        packed, asked = b"".join(self._packed), self._asked
        self._packed, self._asked = [], []
        for node, transport in self._nodes:
            node.asked.extend(asked)
            transport.write(packed)

    async def _connect(self) -> Sockets:
        """Connect once, in the loop whose tasks ask."""
        loop = asyncio.get_running_loop()
        async with self._connecting:
            if self._commands is None:
                commands = Sockets(self._urls, self._prefix, self._ttl)
                for url in self._urls:
                    transport, node = await loop.create_connection(Node, sock=connect(url))
                    self._nodes.append((node, transport))
                self._commands = commands
        return self._commands

    def close(self) -> None:
        """Close all connections; the loop does so when it runs next."""
        for _, transport in self._nodes:
            transport.close()
        if self._commands is not None:
            self._commands.close()


def by_tasks(urls: list[str], prefix: str, ttl: float) -> Asyncio:
    """The style of a program."""
    sockets = TaskSockets(urls, prefix, ttl)
    return Asyncio(sockets.acquire, sockets.release)

"""The clients that are measured, and their processes, told one at a time to take locks."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple, Self

from .measure import Block, Result, ordered
from .peers import PeerError, PeerUnavailable
from .peers.process import Process, command
from .stage import Stage

GRACE_SECONDS = 30.0  # beyond what a block was given
TTL = 60.0  # seconds, of the others; ours is in the alias


class Client(NamedTuple):
    """One way of one library.

    Attributes:
        label: what the tables call it.
        program: the name of its process.
        style: which of the ways of that process.
    """

    label: str
    program: str
    style: str


SOCKETS = Client("sockets by hand, our scripts", "sockets", "sockets")
PLAIN = Client("sockets by hand, SET NX", "sockets", "plain sockets")
PING = Client("one PING to one node", "sockets", "ping")
THREADS = Client("django-redlock, threads", "ours", "threads")
ASYNCIO = Client("django-redlock, asyncio", "ours", "asyncio")
REDLOCK_PY = Client("redlock-py", "redlock-py", "threads")
REDLOCK_PY_PLAIN = Client("redlock-py, without hiredis", "redlock-py without", "threads")
REDLOCK_NG = Client("redlock-ng, threads", "redlock-ng", "threads")
REDLOCK_NG_ASYNCIO = Client("redlock-ng, asyncio", "redlock-ng", "asyncio")
POTTERY = Client("pottery, threads", "pottery", "threads")
POTTERY_ASYNCIO = Client("pottery, asyncio", "pottery", "asyncio")
NODE_REDLOCK_4 = Client("node-redlock 4", "redlock-4", "promises")
NODE_REDLOCK_5 = Client("node-redlock 5 beta", "redlock", "promises")
REDIS_PY = Client("redis-py Lock", "redis-py", "threads")
DJANGO_REDIS = Client("django-redis, cache.lock", "django-redis", "threads")
PYTHON_REDIS_LOCK = Client("python-redis-lock", "python-redis-lock", "threads")
LOCKS = (
    *(THREADS, ASYNCIO, REDLOCK_PY, REDLOCK_NG, REDLOCK_NG_ASYNCIO),
    *(POTTERY, POTTERY_ASYNCIO, NODE_REDLOCK_4, NODE_REDLOCK_5),
)


class Processes:
    """The processes of some clients, from the start of a part to its end.

    Attributes:
        present: the clients that can be measured.
    """

    def __init__(
        self,
        stage: Stage,
        clients: Sequence[Client],
        *,
        urls: Sequence[str] = (),
        timeout: float = 0.1,
        alias: Mapping[str, object] | None = None,
    ) -> None:
        urls = list(urls or stage.nodes.urls)
        self._clients = clients
        self._told: dict[str, object] = {"urls": urls, "ttl": TTL, "timeout": timeout}
        self._told["alias"] = stage.alias | {"NODES": urls} | dict(alias or {})
        self._running: dict[str, Process] = {}
        self._refused: dict[str, str] = {}
        self._stack = ExitStack()
        self.present: list[Client] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for name in dict.fromkeys(client.program for client in self._clients):
                try:
                    arguments, more = command(name)
                    process = Process(name, arguments, self._told | more)
                except (PeerUnavailable, PeerError) as error:
                    self._refused[name] = str(error)
                else:
                    self._running[name] = stack.enter_context(process)
            self._stack = stack.pop_all()
        self.present = [each for each in self._clients if each.program in self._running]
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def tell(self, result: Result) -> None:
        """Note in the result which clients are missing, and the versions of the others."""
        result.missing |= {
            each.label: self._refused[each.program]
            for each in self._clients
            if each.program in self._refused
        }
        result.versions |= {
            name: each.version for name, each in self._running.items() if each.version
        }

    def process(self, client: Client) -> Process:
        """The process of one that is present."""
        return self._running[client.program]

    def block(self, client: Client, pairs: int, *, tasks: int = 1, seconds: float = 20.0) -> Block:
        """One turn of one client."""
        return block(self.process(client), client.style, pairs, tasks, seconds)

    def in_turns(
        self,
        rounds: int,
        pairs: int,
        *,
        tasks: int = 1,
        worked: Callable[[], float] | None = None,
    ) -> dict[Client, list[Block]]:
        """A block of each, again and again; the first ones warm up and are not kept.

        A client that had none of a block's locks has shown that it cannot: it gets no more.
        """
        blocks: dict[Client, list[Block]] = {each: [] for each in self.present}
        for turn in range(rounds + 1):
            for each in ordered(self.present, turn):
                if blocks[each] and not blocks[each][-1].pairs:
                    continue
                taken = self.metered(each, pairs, tasks, worked)
                if turn:
                    blocks[each].append(taken)
        return blocks

    def metered(
        self, client: Client, pairs: int, tasks: int, worked: Callable[[], float] | None
    ) -> Block:
        """A block, with what the nodes' processors did meanwhile; see ``Stage.worked``."""
        if worked is None:
            return self.block(client, pairs, tasks=tasks)
        before = worked()
        return self.block(client, pairs, tasks=tasks)._replace(nodes=worked() - before)


def block(process: Process, style: str, pairs: int, tasks: int, seconds: float) -> Block:
    """Let a process take so many locks, each block under names of its own."""
    order = {"do": "block", "style": style, "pairs": pairs, "tasks": tasks, "seconds": seconds}
    try:
        return Block(**process.ask(order | {"name": fresh()}, seconds + GRACE_SECONDS))
    except PeerError as error:
        return Block(None, None, seconds + GRACE_SECONDS, 0.0, 0, pairs, str(error))


def fresh() -> str:
    """A name that nobody has used."""
    return f"bench:{secrets.token_hex(4)}"

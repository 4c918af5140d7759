"""What a room is made of: a recipe, a fault, and a cell, which is the two together.

The environments of other libraries import this module, too. It needs the standard library and
redis, and nothing else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .checker import Break

# What a fault does on a ``Stage``, a module that imports this one.
Script: TypeAlias = Callable[[Any], None]

TWO, MANY, STUCK, LOST, FENCES, STARVED = Break
POLL = 0.02  # seconds between two tries


class ClientError(Exception):
    """A recipe raised something, or the process of its client ended; the text says what."""


# -- a recipe --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setup:
    """What a recipe is given.

    Attributes:
        urls: the address of each server, as this client reaches it.
        name: the name of the lock, and so of its key.
        ttl: the seconds for which the lock is asked.
        timeout: the seconds for which a client waits for a reply.
        store: the path of the file with the number that the lock guards.
        node_modules: the folder with the packages of Node.js, where they are needed.
        limit: the number of clients that may hold the lock at once.
        point: a function that a recipe calls between two steps; a fault may stop the client there.
        lost: a function that a recipe calls when it learns that the lock is no longer its own.
    """

    urls: Sequence[str]
    name: str
    ttl: float
    timeout: float
    store: str
    node_modules: str = ""
    limit: int = 1
    point: Callable[[str], None] = lambda _: None
    lost: Callable[[], None] = lambda: None

    @property
    def milliseconds(self) -> int:
        """The ttl, as PX takes it."""
        return round(self.ttl * 1000)

    @property
    def database(self) -> str:
        """The path of the database, for a lock that guards a row instead of a file."""
        return f"{self.store}.sqlite3"


class Hold(NamedTuple):
    """What a client knows when it has got the lock.

    Attributes:
        until: the time by ``time.monotonic()`` at which the lock ends; None: the recipe does not
            tell its user, who then believes to hold the lock until it is released.
        fence: the number of the hold, where the recipe has one.
    """

    until: float | None = None
    fence: int | None = None


class Recipe(Protocol):
    """A lock as one client uses it; it is made with a ``Setup``.

    ``acquire`` takes the lock within so many seconds, and returns None where it is another's.
    ``release`` gives it back. What a lock guards is a number in a file, unless the recipe has a
    ``store`` with a row of its own: the table ``counter`` of ``Setup.database``.
    """

    def acquire(self, wait: float) -> Hold | None: ...
    def release(self) -> None: ...


def client_of(setup: Setup, index: int = 0) -> redis.Redis:
    """Return a client of one server that never sends anything twice by itself."""
    return redis.Redis.from_url(
        setup.urls[index],
        retry=Retry(NoBackoff(), 0),
        socket_timeout=setup.timeout,
        socket_connect_timeout=setup.timeout,
    )


def clients_of(setup: Setup) -> list[redis.Redis]:
    """Return such a client of each server.

    With the ten retries of redis-py 8 one dead server takes longer than the ttl.
    """
    return [client_of(setup, index) for index in range(len(setup.urls))]


def poll(attempt: Callable[[], object], wait: float, pause: float = POLL) -> Hold | None:
    """Try until it works, or the wait is over."""
    end = time.monotonic() + wait
    while not attempt():
        if time.monotonic() >= end:
            return None
        time.sleep(pause)
    return Hold()


# -- a fault ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fault:
    """What happens to the clients and servers of a lock.

    Attributes:
        key: the name in commands and pictures.
        words: what happens, in a sentence.
        script: the function that does it, on a stage.
        ttl: the seconds for which clients take the lock.
        patience: the number of ttls without a holder after which a client that asks is stuck.
        has_replica: whether the first server has a replica.
        has_clocks: whether the clocks of the servers can be set.
    """

    key: str
    words: str
    script: Script
    ttl: float = 1.0
    patience: float = 3.0
    has_replica: bool = False
    has_clocks: bool = False


def fault(**how: Any) -> Callable[[Script], Fault]:
    """Make a fault of a script: its name is the key, and the words begin its docstring.

    Args:
        how: other attributes of ``Fault``.
    """

    def make(script: Script) -> Fault:
        words = (script.__doc__ or "").partition(".")[0]
        key = script.__name__.replace("_", "-")
        return Fault(key, words[:1].lower() + words[1:], script, **how)

    return make


# -- a cell ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A lock under a fault.

    Attributes:
        breaks: the ways to break that must be seen, and no other; none: the lock holds.
        why: how it comes to that, for people.
    """

    lock: Lock
    fault: Fault
    breaks: frozenset[Break] = frozenset()
    why: str = ""

    @property
    def key(self) -> str:
        """The name in commands and pictures."""
        return f"{self.lock.key}/{self.fault.key}"


@dataclass(frozen=True)
class Lock:
    """A lock that is shown.

    Attributes:
        key: the name in commands and pictures.
        title: the name for people.
        recipe: the class of the recipe.
        servers: the number of servers.
        limit: the number of clients that may hold it at once; more than one guard no number.
        peer: the environment that has the library; see ``dev.benchmarks.peers``; "": our own.
        needs_node: whether the library is one of Node.js.
        is_guarded: whether its servers must be older than its restart guard before they vote.
    """

    key: str
    title: str
    recipe: Callable[[Setup], Recipe]
    servers: int = 1
    limit: int = 1
    peer: str = ""
    needs_node: bool = False
    is_guarded: bool = False

    def holds(self, *faults: Fault, why: str = "") -> list[Cell]:
        """Return cells in which nothing breaks."""
        return [Cell(self, fault, why=why) for fault in faults]

    def breaks(self, fault: Fault, *seen: Break, why: str) -> Cell:
        """Return a cell in which the lock breaks, in these ways and no other."""
        return Cell(self, fault, frozenset(seen), why)

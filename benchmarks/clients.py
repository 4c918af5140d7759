"""The clients that are measured, and how the process of each is started."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.peers import PeerUnavailable, node, python

PROGRAMS = Path(__file__).parent / "programs"


class Client(NamedTuple):
    """One way of one library.

    Attributes:
        label: as it is called in the tables.
        program: whose process it is.
        style: which of its ways.
    """

    label: str
    program: str
    style: str


SOCKETS = Client("sockets by hand, our scripts", "ours", "sockets")
PLAIN = Client("sockets by hand, SET NX", "ours", "plain sockets")
PING = Client("one PING to one node", "ours", "ping")
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

LOCKS = (
    THREADS,
    ASYNCIO,
    REDLOCK_PY,
    REDLOCK_NG,
    REDLOCK_NG_ASYNCIO,
    POTTERY,
    POTTERY_ASYNCIO,
    NODE_REDLOCK_4,
    NODE_REDLOCK_5,
)
REDIS_PY = Client("redis-py Lock", "redis-py", "threads")
DJANGO_REDIS = Client("django-redis, cache.lock", "django-redis", "threads")
PYTHON_REDIS_LOCK = Client("python-redis-lock", "python-redis-lock", "threads")
CROWD = Client("django-redlock, threads", "ours", "crowd")
CROWD_BY_SOCKETS = Client("sockets by hand, our scripts and queue", "ours", "crowd by sockets")
CROWDS = (
    CROWD_BY_SOCKETS,
    CROWD,
    Client("django-redlock, asyncio", "ours", "crowd of tasks"),
    Client("redis-py Lock, one node", "redis-py", "crowd"),
    Client("python-redis-lock, one node", "python-redis-lock", "crowd"),
    Client("redlock-py", "redlock-py", "crowd"),
    Client("pottery, threads", "pottery", "crowd"),
)
CONCURRENT = (ASYNCIO, REDLOCK_NG_ASYNCIO, POTTERY_ASYNCIO, NODE_REDLOCK_4, NODE_REDLOCK_5)
# django-redlock in asyncio with settings of the application, see ``programs.tuned``.
AS_IT_IS = Client("as it is", "tuned", "asyncio")
NEWEST = Client("Python 3.13", "tuned 3.13", "asyncio")
TUNED = Client("uvloop, gc", "tuned uvloop gc", "asyncio")
TUNED_NEWEST = Client("uvloop, gc, Python 3.13", "tuned uvloop gc 3.13", "asyncio")
SETTINGS = (
    AS_IT_IS,
    Client("uvloop", "tuned uvloop", "asyncio"),
    Client("gc", "tuned gc", "asyncio"),
    NEWEST,
    TUNED,
    TUNED_NEWEST,
)
# Sockets by hand with the same settings: the most that a client in Python could have.
FLOORS = tuple(
    each._replace(label=f"sockets by hand, {each.label}", style="sockets")
    for each in (AS_IT_IS, TUNED, TUNED_NEWEST)
)


def command(program: str) -> tuple[list[str], dict[str, object]]:
    """The command line of a program, and what it must be told beside the nodes.

    Raises:
        PeerUnavailable: it cannot be had on this machine.
    """
    if program in {"ours", "inside"}:
        return _module(sys.executable, program), {}
    if program.startswith("tuned"):
        words = program.split()
        interpreter = python("uvloop", (3, 13) if "3.13" in words else None)
        return _module(str(interpreter), "tuned"), {it: it in words for it in ("uvloop", "gc")}
    if program == "redis-py":
        return _module(str(python("redis")), "redis_py"), {}
    if program == "redlock-py without":
        return _module(str(python("redlock-py")), "redlock_py"), {"hiredis": False}
    if program in {"redlock", "redlock-4"}:
        folder = node()
        if folder is None:
            raise PeerUnavailable("node-redlock: there is no node and npm here")
        script = PROGRAMS / "node_redlock.js"
        return ["node", str(script)], {"folder": str(folder), "package": program}
    return _module(str(python(program)), program.replace("-", "_")), {}


def _module(interpreter: str, module: str) -> list[str]:
    return [interpreter, "-m", f"benchmarks.programs.{module}"]


def programs(clients: Sequence[Client]) -> list[str]:
    """The programs of these, each once."""
    return list(dict.fromkeys(client.program for client in clients))

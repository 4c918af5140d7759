"""Who is measured, and how the process of each is started."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.peers import PeerUnavailable, node, python

PROGRAMS = Path(__file__).parent / "programs"


class Contestant(NamedTuple):
    """One way of one library.

    Attributes:
        label: as it is called in the tables.
        program: whose process it is.
        style: which of its ways.
    """

    label: str
    program: str
    style: str


SOCKETS = Contestant("blocking sockets, by hand", "ours", "sockets")
PING = Contestant("one PING to one node", "ours", "ping")
THREADS = Contestant("django-redlock, threads", "ours", "threads")
ASYNCIO = Contestant("django-redlock, asyncio", "ours", "asyncio")
REDLOCK_PY = Contestant("redlock-py", "redlock-py", "threads")
REDLOCK_PY_PLAIN = Contestant("redlock-py, without hiredis", "redlock-py without", "threads")
REDLOCK_NG = Contestant("redlock-ng, threads", "redlock-ng", "threads")
REDLOCK_NG_ASYNCIO = Contestant("redlock-ng, asyncio", "redlock-ng", "asyncio")
POTTERY = Contestant("pottery, threads", "pottery", "threads")
POTTERY_ASYNCIO = Contestant("pottery, asyncio", "pottery", "asyncio")
NODE_REDLOCK_4 = Contestant("node-redlock 4", "redlock-4", "promises")
NODE_REDLOCK_5 = Contestant("node-redlock 5 beta", "redlock", "promises")

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
CROWD = Contestant("django-redlock, threads", "ours", "crowd")
CROWDS = (
    CROWD,
    Contestant("django-redlock, asyncio", "ours", "crowd of tasks"),
    Contestant("redis-py Lock, one node", "redis-py", "crowd"),
    Contestant("python-redis-lock, one node", "python-redis-lock", "crowd"),
    Contestant("redlock-py", "redlock-py", "crowd"),
    Contestant("pottery, threads", "pottery", "crowd"),
)
CONCURRENT = (ASYNCIO, REDLOCK_NG_ASYNCIO, POTTERY_ASYNCIO, NODE_REDLOCK_4, NODE_REDLOCK_5)


def command(program: str) -> tuple[list[str], Mapping[str, object]]:
    """The command line of a program, and what it must be told beside the nodes.

    Raises:
        PeerUnavailable: it cannot be had on this machine.
    """
    if program == "ours":
        return _module(sys.executable, "ours"), {}
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
    return [interpreter, "-m", f"tests.bench.programs.{module}"]


def programs(contestants: Sequence[Contestant]) -> list[str]:
    """The programs of these, each once."""
    return list(dict.fromkeys(contestant.program for contestant in contestants))

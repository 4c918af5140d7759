"""Peers as processes: each client by its name, told what to do and heard with a deadline."""

from __future__ import annotations

import json
import select
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from .environments import ROOT, PeerUnavailable, node, python

ANSWER_SECONDS = 30.0

# What a client needs installed, and the module of its program. The first five talk to any number
# of nodes, as do those of Node.js; the last two to one.
PYTHON_CLIENTS = {
    "redlock-py": ("redlock-py", "redlock_py"),
    "redlock-ng": ("redlock-ng", "redlock_ng"),
    "redlock-ng asyncio": ("redlock-ng", "redlock_ng_asyncio"),
    "pottery": ("pottery", "pottery_blocking"),
    "pottery asyncio": ("pottery", "pottery_asyncio"),
    "redis-py": ("redis", "redis_py"),
    "python-redis-lock": ("python-redis-lock", "python_redis_lock"),
}
NODE_CLIENTS = {"node-redlock 5": "redlock", "node-redlock 4": "redlock-4"}
SINGLE = ("redis-py", "python-redis-lock")
CLIENTS = (*PYTHON_CLIENTS, *NODE_CLIENTS)


class PeerError(Exception):
    """A client raised something; the text is its type and its words."""


def command(client: str, urls: Sequence[str]) -> list[str]:
    """Return the command line of a client's program; run it with the project as directory."""
    if client in PYTHON_CLIENTS:
        environment, module = PYTHON_CLIENTS[client]
        program = f"{__package__}.programs.{module}"
        return [str(python(environment)), "-m", program, *urls]
    home = node()
    if home is None:
        raise PeerUnavailable("there is no node and npm")
    program = str(Path(__file__).parent / "programs" / "node_redlock.js")
    return ["node", program, str(home), NODE_CLIENTS[client], *urls]


class Peer:
    """A running program of another client; a context manager. Keys are given in full."""

    def __init__(self, client: str, urls: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command(client, urls), cwd=ROOT, stdin=pipe, stdout=pipe)
        self._client = client

    def __enter__(self) -> Self:
        try:
            assert self._hear(ANSWER_SECONDS) == "ready"
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def acquire(self, key: str, ttl: float) -> bool:
        """Try once; ``ttl`` in seconds."""
        return bool(self.ask("acquire", key, int(ttl * 1000)))

    def extend(self, ttl: float) -> bool:
        """Prolong what was acquired last, to ``ttl`` seconds from now."""
        return bool(self.ask("extend", int(ttl * 1000)))

    def release(self) -> bool:
        """Release what was acquired last; False where the client says that it was not its own."""
        return bool(self.ask("release"))

    def measure(self, key: str, ttl: float, count: int) -> list[float]:
        """Return the microseconds of ``count`` pairs of acquire and release, each by itself."""
        return list(self.ask("measure", key, int(ttl * 1000), count))

    def ask(self, *words: str | float, within: float = ANSWER_SECONDS) -> Any:
        """Put a question of conversation.py; PeerError when the client raised."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words).encode() + b"\n")
        self._process.stdin.flush()
        return self._hear(within)

    def _hear(self, within: float) -> Any:
        pipe = self._process.stdout
        assert pipe is not None
        ready, _, _ = select.select([pipe], [], [], within)
        assert ready, f"{self._client} said nothing for {within:g} s"
        line = pipe.readline()
        assert line, f"{self._client} ended, exit {self._process.wait()}"
        answer = json.loads(line)
        if isinstance(answer, dict):
            raise PeerError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process: its input ends, and if that does not help, by force."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()

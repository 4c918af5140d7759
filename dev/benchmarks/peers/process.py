"""Clients as processes: each is told what to do, and heard with a deadline."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from .environments import ROOT, PeerUnavailable, node, python

ANSWER_SECONDS = 30.0
START_SECONDS = 90.0

# The program of a client, and which of its ways. The first five talk to any number
# of nodes, as do those of Node.js; the last two to one.
PYTHON_CLIENTS = {
    "redlock-py": ("redlock-py", "threads"),
    "redlock-ng": ("redlock-ng", "threads"),
    "redlock-ng asyncio": ("redlock-ng", "asyncio"),
    "pottery": ("pottery", "threads"),
    "pottery asyncio": ("pottery", "asyncio"),
    "redis-py": ("redis-py", "threads"),
    "python-redis-lock": ("python-redis-lock", "threads"),
}
NODE_CLIENTS = {"node-redlock 5": "redlock", "node-redlock 4": "redlock-4"}
SINGLE = ("redis-py", "python-redis-lock")
CLIENTS = (*PYTHON_CLIENTS, *NODE_CLIENTS)
PROGRAMS = Path(__file__).resolve().parents[1] / "programs"


class PeerError(Exception):
    """A client raised something; the text is its type and its words. Or it does not answer."""


def command(program: str) -> tuple[list[str], dict[str, object]]:
    """The command line of a program, and what it must be told beside the nodes.

    Raises:
        PeerUnavailable: it cannot be had on this machine.
    """
    module = f"dev.benchmarks.programs.{program.split(maxsplit=1)[0].replace('-', '_')}"
    if program in {"ours", "sockets"}:
        return [sys.executable, "-m", module], {}
    if program.startswith("ours "):  # with settings of an application
        words = program.split()
        interpreter = python("uvloop", (3, 13) if "3.13" in words else None)
        more: dict[str, object] = {each: each in words for each in ("uvloop", "gc")}
        return [str(interpreter), "-m", module], more
    if program in NODE_CLIENTS.values():
        folder = node()
        if folder is None:
            raise PeerUnavailable("there is no node and npm")
        told = {"folder": str(folder), "package": program}
        return ["node", str(PROGRAMS / "node_redlock.js")], dict(told)
    if program == "redlock-py without":
        return [str(python("redlock-py")), "-m", module], {"hiredis": False}
    return [str(python("redis" if program == "redis-py" else program)), "-m", module], {}


class Process:
    """A running program; a context manager.

    Attributes:
        version: the version of its library.
        styles: the names of its ways.

    Raises:
        PeerError: it did not start.
    """

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        told: Mapping[str, object],
        env: Mapping[str, str] | None = None,
    ) -> None:
        pipe, self._name = subprocess.PIPE, name
        self._process = subprocess.Popen(
            [*arguments, json.dumps(told)],
            cwd=ROOT,
            env=os.environ | (env or {}),
            stdin=pipe,
            stdout=pipe,
        )
        try:
            said = self.hear(START_SECONDS)
        except BaseException:
            self.close()
            raise
        self.version = str(said["ready"])
        self.styles = set(said["styles"])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def ask(self, order: Mapping[str, object], within: float = ANSWER_SECONDS) -> Any:
        """Return the answer to a question of ``programs.conversation``.

        Raises:
            PeerError: the client raised; or it did not answer in time, and is ended.
        """
        self.tell(order)
        return self.hear(within)

    def tell(self, order: Mapping[str, object]) -> None:
        """Say something; one that has ended will be heard to say nothing."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

    def hear(self, within: float) -> Any:
        """Return the next answer; see ``ask``."""
        pipe = self._process.stdout
        assert pipe is not None
        if not select.select([pipe], [], [], within)[0]:
            self._process.kill()
        line = pipe.readline()
        if not line:
            raise PeerError(f"{self._name} gave no answer, exit {self._process.wait()}")
        answer = json.loads(line)
        if isinstance(answer, dict) and list(answer) == ["error"]:
            raise PeerError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process: its input ends, and if that does not help, by force."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


class Peer(Process):
    """Another client by its name, which holds one lock at a time. Keys are given in full."""

    def __init__(self, client: str, urls: Sequence[str]) -> None:
        program, self._style = PYTHON_CLIENTS.get(client) or (NODE_CLIENTS[client], "promises")
        arguments, more = command(program)
        super().__init__(client, arguments, {"urls": list(urls), **more})

    def acquire(self, key: str, ttl: float) -> bool:
        """Try once; ``ttl`` in seconds."""
        return bool(self._do("acquire", key=key, ttl=ttl))

    def extend(self, ttl: float) -> bool:
        """Prolong what was acquired last, to ``ttl`` seconds from now."""
        return bool(self._do("extend", ttl=ttl))

    def release(self) -> bool:
        """Release what was acquired last; False where the client says that it was not its own."""
        return bool(self._do("release"))

    def _do(self, what: str, **words: object) -> Any:
        return self.ask({"do": what, "style": self._style} | words)

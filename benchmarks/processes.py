"""The clients' processes, told one at a time to take locks."""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

from benchmarks.peers import PeerUnavailable

from .clients import Client, command, programs
from .stage import Stage

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 90.0
GRACE_SECONDS = 30.0  # beyond what a block was given
TTL = 60.0  # seconds, of the others; ours is in the alias


class Block(NamedTuple):
    """What one turn of a client took; see ``programs.serve``."""

    acquire: float | None
    pair: float | None
    seconds: float
    processor: float
    pairs: int
    failed: int
    error: str
    samples: Sequence[float] = ()  # microseconds of each pair
    nodes: float | None = None  # seconds of the nodes' processors meanwhile, where that is read

    @property
    def rate(self) -> float | None:
        """Locks per second, where any was had."""
        return self.pairs / self.seconds if self.pairs else None


class Program:
    """One process."""

    def __init__(
        self,
        name: str,
        arguments: Sequence[str],
        told: Mapping[str, object],
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._name = name
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [*arguments, json.dumps(told)],
            cwd=ROOT,
            env=env,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        self._blocks = 0
        self._prefix = f"bench:{secrets.token_hex(4)}"  # nobody meets what others left behind
        said = self.hear(START_SECONDS)
        if said is None:
            self._errors.seek(0)
            errors = [text for text in self._errors.read().splitlines() if "Error" in text]
            self.close()
            raise PeerUnavailable(f"{name}: {errors[-1] if errors else 'did not start'}")
        self.version = str(said["ready"])
        self.styles = set(said["styles"])

    def block(self, style: str, *, pairs: int, tasks: int, seconds: float) -> Block:
        """Let it take so many locks, each block under names of its own."""
        self._blocks += 1
        order = {"style": style, "pairs": pairs, "tasks": tasks, "seconds": seconds}
        order["name"] = f"{self._prefix}:{self._blocks}"
        self.tell(order)
        said = self.hear(seconds + GRACE_SECONDS)
        if said is None:
            return Block(None, None, seconds + GRACE_SECONDS, 0.0, 0, pairs, "no answer")
        return Block(**said)

    def tell(self, order: Mapping[str, object]) -> None:
        """Say something; one that has ended will be heard to say nothing."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{json.dumps(order)}\n")
            self._process.stdin.flush()

    def hear(self, seconds: float) -> dict[str, Any] | None:
        """The next line; a process that does not say it in time is ended."""
        assert self._process.stdout is not None
        timer = threading.Timer(seconds, self._process.kill)
        timer.start()
        line = self._process.stdout.readline()
        timer.cancel()
        return json.loads(line) if line else None

    def close(self) -> None:
        """Let it end by itself, or end it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()


class Processes:
    """The processes of some clients, from the start of a scenario to its end.

    Attributes:
        present: who can be measured.
        missing: who cannot, and why.
        versions: of the libraries, by program.
    """

    def __init__(
        self,
        stage: Stage,
        clients: Sequence[Client],
        *,
        urls: Sequence[str] = (),
        timeout: float = 0.1,
        **alias: object,
    ) -> None:
        self._contestants = clients
        self._told: dict[str, object] = {
            "urls": list(urls or stage.nodes.urls),
            "ttl": TTL,
            "timeout": timeout,
            "alias": stage.alias | alias,
        }
        self._running: dict[str, Program] = {}
        self.present: list[Client] = []
        self.missing: dict[str, str] = {}
        self.versions: dict[str, str] = {}

    def __enter__(self) -> Self:
        refused: dict[str, str] = {}
        for name in programs(self._contestants):
            try:
                arguments, more = command(name)
                program = Program(name, arguments, self._told | more)
                self._running[name] = program
                self.versions[name] = program.version
            except PeerUnavailable as error:
                refused[name] = str(error)
            except BaseException:
                self.__exit__()
                raise
        for each in self._contestants:
            if each.program in refused:
                self.missing[each.label] = refused[each.program]
            elif each.style not in self._running[each.program].styles:
                self.missing[each.label] = f"has no {each.style}"
            else:
                self.present.append(each)
        return self

    def __exit__(self, *_: object) -> None:
        while self._running:
            self._running.popitem()[1].close()

    def block(self, client: Client, pairs: int, *, tasks: int = 1, seconds: float = 20.0) -> Block:
        """One turn of one client."""
        program = self.program(client)
        return program.block(client.style, pairs=pairs, tasks=tasks, seconds=seconds)

    def program(self, client: Client) -> Program:
        """The process of one who is present."""
        return self._running[client.program]

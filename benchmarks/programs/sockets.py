"""The yardsticks: blocking sockets, written by hand, in two forms; ``waiting_sockets`` is a third.

    Sockets       our own scripts, by the same digests, with the same arguments, to every node
    PlainSockets  SET NX PX and a script that compares and deletes: Redlock without fences

One command goes to every node, then one answer is read from each. No early decision, no timeouts,
no guard, no thread safety: what is left is the price of the wire and of the work of the nodes.
"""

from __future__ import annotations

import secrets
import socket
import time
import zlib
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

import hiredis

from django_redlock.core.protocol import Command
from django_redlock.nodes import scripts

EPOCH = "bench"
KEYS = ("fences", "held", "waits")
RESERVED = 50  # milliseconds for which a name is kept for the client that is woken


COMPARE_AND_DELETE = """\
if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end
return 0"""


class Nodes:
    """One blocking connection per node."""

    def __init__(self, urls: list[str]) -> None:
        self.sockets = [connect(url) for url in urls]
        self.readers = [hiredis.Reader() for _ in self.sockets]

    def ask(self, *command: str | int) -> list[Any]:
        """Send a command to all nodes, then read an answer from each."""
        packed = hiredis.pack_command(command)  # type: ignore[arg-type]
        for each in self.sockets:
            each.sendall(packed)
        answers = []
        for each, reader in zip(self.sockets, self.readers, strict=True):
            while (answer := reader.gets()) is False:
                reader.feed(each.recv(65536))
            answers.append(answer)
        return answers

    def close(self) -> None:
        """Close all connections."""
        for each in self.sockets:
            each.close()


class Sockets(Nodes):
    """Acquire and release as ours do."""

    def __init__(self, urls: list[str], prefix: str, ttl: float) -> None:
        super().__init__(urls)
        self.fences, self.held, self.waits = (f"{prefix}{key}" for key in KEYS)
        self.lock, self.queue, self.ttl = f"{prefix}lock:", f"{prefix}queue:", int(ttl * 1000)
        self.ask("HSET", self.fences, "epoch", EPOCH)
        for command in (Command.GRANT, Command.RELEASE):
            self.ask("SCRIPT", "LOAD", scripts.TEXT[command])

    def acquire(self, name: str) -> tuple[str, str]:
        """Ask every node to grant ``name``."""
        nonce = secrets.token_hex(16)
        _see(self.ask(*self.grant_of(name, nonce)), b"GRANTED")
        return name, nonce

    def release(self, lease: tuple[str, str]) -> None:
        """Ask every node to forget it."""
        _see(self.ask(*self.release_of(*lease)), b"FREED")

    def grant_of(
        self, name: str, nonce: str, wakeup: str = "", waits: int = 0
    ) -> tuple[str | int, ...]:
        """The command to grant; ``waits``: milliseconds for which a refused client will wait."""
        opener = f"0:{wakeup}" if wakeup else ""
        return (
            "EVALSHA", scripts.DIGEST[Command.GRANT],
            4, self.fences, self.held, self.waits, self.lock + name,
            nonce, time.time_ns() // 1000, 5_000_000, self.ttl, "bench", "", opener, waits,
            zlib.crc32(name.encode()) % 1024, name, EPOCH,
        )  # fmt: skip

    def release_of(self, name: str, nonce: str, wake: str = "1") -> tuple[str | int, ...]:
        """The command to release; ``wake``: "1" for the first waiter, "0" for nobody."""
        return (
            "EVALSHA", scripts.DIGEST[Command.RELEASE],
            4, self.held, self.waits, self.lock + name, self.queue + name,
            nonce, RESERVED, wake, name,
        )  # fmt: skip


class PlainSockets(Nodes):
    """Acquire and release as the page on Redlock has it."""

    def __init__(self, urls: list[str], ttl: float) -> None:
        super().__init__(urls)
        self.ttl = int(ttl * 1000)
        self.script = self.ask("SCRIPT", "LOAD", COMPARE_AND_DELETE)[0]

    def acquire(self, name: str) -> tuple[str, str]:
        """Ask every node to set ``name``."""
        nonce = secrets.token_hex(16)
        answers = self.ask("SET", f"plain:{name}", nonce, "NX", "PX", self.ttl)
        if answers.count(b"OK") <= len(answers) // 2:
            raise RuntimeError(answers)
        return name, nonce

    def release(self, lease: tuple[str, str]) -> None:
        """Ask every node to delete it."""
        name, nonce = lease
        answers = self.ask("EVALSHA", self.script, 1, f"plain:{name}", nonce)
        if answers.count(1) <= len(answers) // 2:
            raise RuntimeError(answers)


def _see(answers: list[Any], status: bytes) -> None:
    """See that a majority said so."""
    if sum(answer[1] == status for answer in answers) <= len(answers) // 2:
        raise RuntimeError(answers)


def ping(url: str) -> Callable[[], object]:
    """One small command to one node, the shortest that a question can take."""
    node = connect(url)

    def call() -> None:
        node.sendall(b"PING\r\n")
        answer = node.recv(64)
        if answer != b"+PONG\r\n":
            raise RuntimeError(answer)

    return call


def connect(url: str) -> socket.socket:
    """A connection without delays of its own."""
    address = urlsplit(url)
    assert address.hostname
    assert address.port
    connected = socket.create_connection((address.hostname, address.port))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected

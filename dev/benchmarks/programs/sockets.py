"""The yardsticks: blocking sockets, written by hand.

    Sockets       our own scripts, by the same digests, with the same arguments, to every node
    PlainSockets  SET NX PX and a script that compares and deletes: Redlock without fences
    ping          one small command to one node, the shortest that a question can take

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

from .conversation import call, serve, settings

EPOCH = "bench"
RESERVED = 50  # milliseconds for which a name is kept for the client that is woken
COMPARE_AND_DELETE = """\
if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end
return 0"""


class Nodes:
    """One blocking connection to each node."""

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

    def __init__(self, urls: list[str], prefix: str) -> None:
        super().__init__(urls)
        self.fences, self.held, self.waits, self.lock, self.queue = (
            f"{prefix}{key}" for key in ("fences", "held", "waits", "lock:", "queue:")
        )
        self.ask("HSET", self.fences, "epoch", EPOCH)
        for command in (Command.GRANT, Command.RELEASE):
            self.ask("SCRIPT", "LOAD", scripts.TEXT[command])

    def acquire(self, name: str, ttl: float) -> tuple[str, str]:
        nonce = secrets.token_hex(16)
        answers = self.ask(
            "EVALSHA", scripts.DIGEST[Command.GRANT],
            4, self.fences, self.held, self.waits, self.lock + name,
            nonce, time.time_ns() // 1000, 5_000_000, int(ttl * 1000), "bench", "", "", 0,
            zlib.crc32(name.encode()) % 1024, name, EPOCH,
        )  # fmt: skip
        _see([answer[1] for answer in answers], b"GRANTED")
        return name, nonce

    def release(self, lease: tuple[str, str]) -> None:
        name, nonce = lease
        answers = self.ask(
            "EVALSHA", scripts.DIGEST[Command.RELEASE],
            4, self.held, self.waits, self.lock + name, self.queue + name,
            nonce, RESERVED, "1", name,
        )  # fmt: skip
        _see([answer[1] for answer in answers], b"FREED")


class PlainSockets(Nodes):
    """Acquire and release as the page on Redlock has it."""

    def __init__(self, urls: list[str]) -> None:
        super().__init__(urls)
        self.script = self.ask("SCRIPT", "LOAD", COMPARE_AND_DELETE)[0]

    def acquire(self, name: str, ttl: float) -> tuple[str, str]:
        nonce = secrets.token_hex(16)
        _see(self.ask("SET", f"plain:{name}", nonce, "NX", "PX", int(ttl * 1000)), b"OK")
        return name, nonce

    def release(self, lease: tuple[str, str]) -> None:
        name, nonce = lease
        _see(self.ask("EVALSHA", self.script, 1, f"plain:{name}", nonce), 1)


def _see(answers: list[Any], wanted: object) -> None:
    """See that a majority said so."""
    if answers.count(wanted) <= len(answers) // 2:
        raise RuntimeError(answers)


def ping(url: str) -> Callable[[], object]:
    """One small command to one node."""
    node = connect(url)

    def one() -> None:
        node.sendall(b"PING\r\n")
        answer = node.recv(64)
        if answer != b"+PONG\r\n":
            raise RuntimeError(answer)

    return one


def connect(url: str) -> socket.socket:
    """A connection without delays of its own."""
    address = urlsplit(url)
    assert address.hostname
    assert address.port
    connected = socket.create_connection((address.hostname, address.port))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


def main() -> None:
    """Serve all styles."""
    urls = settings()["urls"]
    clients = {"sockets": Sockets(urls, "bench:"), "plain sockets": PlainSockets(urls)}
    serve("", clients, {"ping": call(ping(urls[0]))})


if __name__ == "__main__":
    main()

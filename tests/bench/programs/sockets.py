"""The yardstick: blocking sockets, written by hand, that do the same work on the wire.

The same scripts, by the same digests, with the same arguments go to every node; then one answer
is read from each.
No early decision, no timeouts, no guard, no thread safety: what is left is the price of the
wire itself.
"""

from __future__ import annotations

import secrets
import socket
import time
import zlib
from collections.abc import Callable
from urllib.parse import urlsplit

import hiredis

from django_redlock.core.protocol import Command
from django_redlock.transport.wire import scripts

EPOCH = "bench"
KEYS = ("fences", "held", "waits")


class Sockets:
    """One blocking connection per node."""

    def __init__(self, urls: list[str], prefix: str, ttl: float) -> None:
        self.sockets = [_connect(url) for url in urls]
        self.readers = [hiredis.Reader() for _ in self.sockets]
        self.fences, self.held, self.waits = (f"{prefix}{key}" for key in KEYS)
        self.lock, self.queue, self.ttl = f"{prefix}lock:", f"{prefix}queue:", int(ttl * 1000)
        self._round("HSET", self.fences, "epoch", EPOCH)
        for command in (Command.GRANT, Command.RELEASE):
            self._round("SCRIPT", "LOAD", scripts.TEXT[command])

    def acquire(self, name: str) -> tuple[str, str]:
        """Ask every node to grant ``name``."""
        nonce = secrets.token_hex(16)
        answers = self._round(
            "EVALSHA", scripts.DIGEST[Command.GRANT],
            4, self.fences, self.held, self.waits, self.lock + name,
            nonce, time.time_ns() // 1000, 5_000_000, self.ttl, "bench", "", "", 0,
            zlib.crc32(name.encode()) % 1024, name, EPOCH,
        )  # fmt: skip
        _see(answers, b"GRANTED")
        return name, nonce

    def release(self, lease: tuple[str, str]) -> None:
        """Ask every node to forget it."""
        name, nonce = lease
        answers = self._round(
            "EVALSHA", scripts.DIGEST[Command.RELEASE],
            4, self.held, self.waits, self.lock + name, self.queue + name,
            nonce, 50, "1", name,
        )  # fmt: skip
        _see(answers, b"FREED")

    def _round(self, *words: str | int) -> list[list[bytes]]:
        packed = hiredis.pack_command(words)  # type: ignore[arg-type]
        for each in self.sockets:
            each.sendall(packed)
        answers = []
        for each, reader in zip(self.sockets, self.readers, strict=True):
            while (answer := reader.gets()) is False:
                reader.feed(each.recv(65536))
            answers.append(answer)
        return answers


def _see(answers: list[list[bytes]], word: bytes) -> None:
    """See that a majority said so."""
    if sum(answer[1] == word for answer in answers) <= len(answers) // 2:
        raise RuntimeError(answers)


def ping(url: str) -> Callable[[], object]:
    """One small command to one node, the shortest that a question can take."""
    node = _connect(url)

    def call() -> None:
        node.sendall(b"PING\r\n")
        answer = node.recv(64)
        if answer != b"+PONG\r\n":
            raise RuntimeError(answer)

    return call


def _connect(url: str) -> socket.socket:
    address = urlsplit(url)
    assert address.hostname
    assert address.port
    connected = socket.create_connection((address.hostname, address.port))
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected

"""The yardstick: blocking sockets, written by hand, that do the same work on the wire.

The same scripts with the same arguments go to every node, then one answer is read from each.
No early decision, no timeouts, no guard, no thread safety: what is left is the price of the
wire itself.
"""

from __future__ import annotations

import secrets
import socket
import time
import zlib

import hiredis

from django_redlock import scripts

EPOCH = "bench"


class Sockets:
    """One blocking connection per node."""

    def __init__(self, addresses: list[tuple[str, int]], prefix: str, ttl: float) -> None:
        self.sockets = [socket.create_connection(address) for address in addresses]
        for each in self.sockets:
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.readers = [hiredis.Reader() for _ in self.sockets]
        self.prefix, self.ttl = prefix, int(ttl * 1000)

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

    def pair(self, name: str) -> None:
        """Acquire and release ``name`` once."""
        nonce = secrets.token_hex(16)
        fences, held, key = (
            f"{self.prefix}fences",
            f"{self.prefix}held",
            f"{self.prefix}lock:{name}",
        )
        field = zlib.crc32(name.encode()) % 1024
        wish = time.time_ns() // 1000
        answers = self._round(
            "EVAL", scripts.GRANT, 3, fences, held, key,
            nonce, wish, 5_000_000, self.ttl, "bench", "", field, name, EPOCH,
        )  # fmt: skip
        if sum(answer[1] == b"GRANTED" for answer in answers) < 3:
            raise RuntimeError(answers)
        self._round("EVAL", scripts.RELEASE, 2, held, key, nonce, name)

    def close(self) -> None:
        """Close the connections."""
        for each in self.sockets:
            each.close()

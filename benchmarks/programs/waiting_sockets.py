"""The yardstick of waiting: our own scripts and wait queue, by blocking sockets.

A refused client blocks on the list of one node, chosen by the name. A release goes to that node
first, and to the others after its answer; it wakes the first waiter, which asks all nodes with the
wake-up. A majority decides; the other answers are read before the next question. No timeouts of
nodes, no restart guard, no early look at the lock, no deadlines: what is left is the protocol.
"""

from __future__ import annotations

import secrets
import time
import zlib
from typing import Any

import hiredis

from .crowd import Crowd
from .sockets import Nodes, Sockets

NEWS = 1500  # milliseconds for which a node believes that a name has a waiter
LOOK = 0.5  # seconds after which a process that was not woken asks again


class WaitingSockets(Sockets):
    """Acquire, wait and release as ours do; one caller."""

    def __init__(self, urls: list[str], prefix: str, ttl: float) -> None:
        super().__init__(urls, prefix, ttl)
        self._urls = urls
        self._majority = len(urls) // 2 + 1
        self._owed = [0] * len(urls)  # answers that nobody has read
        self._lists: dict[int, Nodes] = {}  # to block on, by the index of the node

    def wait(self, name: str, seconds: float) -> tuple[str, str] | None:
        """Take ``name`` as soon as it is our turn; None when the time is over."""
        until, wakeup = time.monotonic() + seconds, ""
        while True:
            nonce = secrets.token_hex(16)
            granted, refused = self._attempt(name, nonce, wakeup)
            if granted >= self._majority:
                return name, nonce
            if granted:
                self._to_all(_packed(self.release_of(name, nonce, "0")), self._place(name))
            if (left := until - time.monotonic()) <= 0:
                return None
            if refused < self._majority:  # several attempts have split the nodes
                time.sleep(secrets.randbelow(10) / 1000)
            wakeup = self._block(name, min(LOOK, left)) if refused >= self._majority else ""

    def free(self, lease: tuple[str, str]) -> None:
        """Release at the node of the queue, and then at the others."""
        command, place = _packed(self.release_of(*lease)), self._place(lease[0])
        self._send(command, place)
        freed = [self._read(place)]
        others = [(place + step) % len(self.sockets) for step in range(1, len(self.sockets))]
        for index in others:
            self._send(command, index)
        freed += [self._read(index) for index in others[: self._majority - 1]]
        for index in others[self._majority - 1 :]:
            self._owed[index] += 1
        # GONE where the next holder was faster: the wake-up has opened that node already.
        if any(answer[1] not in {b"FREED", b"GONE"} for answer in freed):
            raise RuntimeError(freed)

    def close(self) -> None:
        """Close all connections, those to wait on, too."""
        super().close()
        for each in self._lists.values():
            each.close()

    def _attempt(self, name: str, nonce: str, wakeup: str) -> tuple[int, int]:
        """Ask all for the name; how many granted and refused it, when a majority agrees."""
        size, place = len(self.sockets), self._place(name)
        command = _packed(self.grant_of(name, nonce, wakeup, NEWS))
        order = [(place + step) % size for step in range(size)]
        for index in order:
            self._send(command, index)
        granted = refused = 0
        for read, index in enumerate(order):
            answer = self._read(index)
            granted += answer[1] == b"GRANTED"
            refused += answer[1] == b"HELD"
            if max(granted, refused) >= self._majority:
                for unread in order[read + 1 :]:
                    self._owed[unread] += 1
                break
        return granted, refused

    def _block(self, name: str, seconds: float) -> str:
        """Wait in the queue; the nonce that woke us, or "" when the time was over."""
        place = self._place(name)
        if place not in self._lists:
            self._lists[place] = Nodes([self._urls[place]])
        (came,) = self._lists[place].ask("BLPOP", self.queue + name, f"{max(0.01, seconds):.3f}")
        return came[1].decode() if came else ""

    def _place(self, name: str) -> int:
        return zlib.crc32(name.encode()) % len(self.sockets)

    def _to_all(self, command: bytes, first: int) -> None:
        for step in range(len(self.sockets)):
            index = (first + step) % len(self.sockets)
            self._send(command, index)
            self._owed[index] += 1

    def _send(self, command: bytes, index: int) -> None:
        self.sockets[index].sendall(command)

    def _read(self, index: int) -> Any:
        """The answer to the last question, after those that are owed."""
        reader, each = self.readers[index], self.sockets[index]
        while True:
            while (answer := reader.gets()) is False:
                reader.feed(each.recv(65536))
            if not self._owed[index]:
                return answer
            self._owed[index] -= 1


def _packed(command: tuple[str | int, ...]) -> bytes:
    packed: bytes = hiredis.pack_command(command)  # type: ignore[arg-type]
    return packed


def crowd(urls: list[str], prefix: str, ttl: float) -> Crowd:
    """As a style; each process connects after the fork, when it first asks."""
    own: list[WaitingSockets] = []

    def wait(name: str, seconds: float) -> tuple[str, str] | None:
        if not own:
            own.append(WaitingSockets(urls, prefix, ttl))
        return own[0].wait(name, seconds)

    def free(lease: tuple[str, str]) -> None:
        own[0].free(lease)

    return Crowd(wait, free)

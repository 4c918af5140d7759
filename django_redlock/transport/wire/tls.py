"""A TLS socket that several threads may use."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket
    from contextlib import AbstractContextManager


class OneAtATime:
    """Read and write a socket from any thread, one call at a time.

    OpenSSL allows no two calls on one connection at the same time: the connection looks closed
    afterwards, or worse. No other lock is taken inside this one.
    """

    def __init__(self, wrapped: socket.socket, lock: AbstractContextManager[object]) -> None:
        self._socket = wrapped
        self._lock = lock

    def recv(self, size: int) -> bytes:
        """Read what is there, without waiting for more."""
        with self._lock:
            return self._socket.recv(size)

    def send(self, data: bytes) -> int:
        """Write what the socket takes; return how many bytes."""
        with self._lock:
            return self._socket.send(data)

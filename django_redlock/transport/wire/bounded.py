"""A socket that hears no more of a node than a handshake needs, and listens no longer than that.

redis-py logs in (AUTH, SELECT, its name) with a parser of its own, which knows no bounds: a node
that never comes to an end would fill the memory, and one that sends a byte now and then would
keep the thread for ever. So while a connection is opened, this stands in for its socket.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import Any, Final

import hiredis

from .refusals import Refused, stranger
from .resp import NOT_REDIS, TOO_LONG, UNASKED, Malformed, Reader

MOST: Final = 256 * 1024  # bytes of all answers together; a thousand replicas fill half of it
STEPS: Final = 8  # timeouts of one step that all answers together may take
PARTS: Final = 8  # in which a step is waited for
READ_SIZE: Final = 65536


class BoundedSocket:
    """Stands in for the socket of a connection that is being opened.

    Attributes:
        socket: the real one.
    """

    def __init__(self, sock: socket.socket, timeout: float) -> None:
        self.socket = sock
        self._timeout = timeout
        self._until = time.monotonic() + STEPS * timeout
        self._left = MOST
        self._heard = False
        self._reader = Reader()
        self._answers: deque[Any] = deque()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.socket, name)

    def recv(self, size: int, *flags: int) -> bytes:
        """As a socket's own. What arrives has been looked at.

        Raises:
            Refused: it is not the Redis protocol, or too much.
            TimeoutError: nothing came, or the handshake takes too long.
        """
        data = self._listen(size, *flags)
        self._left -= len(data)
        if self._left < 0:
            raise Refused(TOO_LONG)
        other = "" if self._heard else stranger(data[:1])
        self._heard = True
        if other:
            raise Refused(other)
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not False:
                self._answers.append(answer)
        except hiredis.ProtocolError:
            raise Refused(NOT_REDIS) from None
        except Malformed as error:
            raise Refused(str(error)) from None
        return data

    def _listen(self, size: int, *flags: int) -> bytes:
        """Receive, in parts: what this machine is late to wake up from one makes no node silent."""
        listened, part = 0.0, self._timeout / PARTS
        while True:
            start = time.monotonic()
            if start >= self._until:
                raise TimeoutError("handshake without end")
            self.socket.settimeout(min(part, self._until - start))
            try:
                return self.socket.recv(size, *flags)
            except TimeoutError:
                late = max(0.0, time.monotonic() - start - part)
                self._until += late
                listened += max(0.0, part - late)
                if listened >= 0.99 * self._timeout:  # parts are no exact fractions
                    raise

    def recv_into(self, buffer: bytearray, size: int = 0, *flags: int) -> int:
        """As a socket's own; see ``recv``."""
        data = self.recv(size or len(buffer), *flags)
        buffer[: len(data)] = data
        return len(data)

    def end(self) -> None:
        """Forget the bounds: the handshake is over.

        Raises:
            Refused: the node has said more than was asked.
        """
        if self._answers:
            raise Refused(UNASKED)
        self.socket.settimeout(self._timeout)

    def logged_in(self) -> None:
        """Forget the answers that redis-py has read; the next ones are for ``answer``."""
        self._answers.clear()

    def answer(self) -> Any:
        """The next answer; an error is returned, as ``hiredis.ReplyError``.

        Raises:
            Refused: see ``recv``.
            OSError: the connection is lost, or nothing comes.
        """
        while not self._answers:
            if not self.recv(READ_SIZE):
                raise ConnectionError("connection closed by the node")
        return self._answers.popleft()

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
        left = self._until - time.monotonic()
        if left <= 0:
            raise TimeoutError("handshake without end")
        self.socket.settimeout(min(left, self._timeout))
        data = self.socket.recv(size, *flags)
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

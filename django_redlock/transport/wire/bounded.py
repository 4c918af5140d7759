"""A socket for the handshake, with bounds on what it receives and on how long it waits.

redis-py logs in (AUTH, SELECT, its name) with a parser of its own, which has no bounds: a node
that never stops sending would fill the memory, and one that sends a byte now and then would
keep the thread for ever. So while a connection is opened, this replaces its socket.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import Any, Final

import hiredis

from django_redlock.concurrency.listening import Listening

from .refusals import Refused, stranger
from .resp import NOT_REDIS, TOO_LONG, UNASKED, Malformed, Reader

MOST: Final = 256 * 1024  # bytes of all replies together; a thousand replicas fill half of it
STEPS: Final = 8  # timeouts of one step that all replies together may take
READ_SIZE: Final = 65536


class BoundedSocket:
    """Replaces the socket of a connection that is being opened.

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
        self._commands = hiredis.Reader()  # of what redis-py sends, to count it
        self._sent = self._replies = 0  # commands, and what came in reply

    def __getattr__(self, name: str) -> Any:
        return getattr(self.socket, name)

    def sendall(self, data: bytes, *flags: int) -> None:
        """Send as a socket does; each command may be answered once."""
        self._commands.feed(bytes(data))
        while self._commands.gets() is not False:
            self._sent += 1
        self.socket.sendall(data, *flags)

    def recv(self, size: int, *flags: int) -> bytes:
        """Receive as a socket does, and check what arrives.

        Raises:
            Refused: it is not the Redis protocol, or too much.
            TimeoutError: nothing came, or the handshake takes too long.
        """
        data = self._listen(size, *flags)
        self._left -= len(data)
        if self._left < 0:
            raise Refused(TOO_LONG)
        other = None if self._heard else stranger(data[:1])
        self._heard = True
        if other:
            raise Refused(other)
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not False:
                self._answers.append(answer)
                self._replies += 1
        except hiredis.ProtocolError:
            raise Refused(NOT_REDIS) from None
        except Malformed as error:
            raise Refused(error.reason) from None
        return data

    def _listen(self, size: int, *flags: int) -> bytes:
        """Receive; do not count time for which this machine did not run."""
        listening = Listening(self._timeout)
        while True:
            start = time.monotonic()
            if start >= self._until:
                raise TimeoutError("handshake without end")
            part = listening.part(self._until - start)
            self.socket.settimeout(part)
            try:
                return self.socket.recv(size, *flags)
            except TimeoutError:
                self._until += listening.waited_for(part, start)
                if listening.seconds >= 0.99 * self._timeout:  # parts are no exact fractions
                    raise

    def recv_into(self, buffer: bytearray, size: int = 0, *flags: int) -> int:
        """Receive as a socket does; see ``recv``."""
        data = self.recv(size or len(buffer), *flags)
        buffer[: len(data)] = data
        return len(data)

    def end(self) -> None:
        """Remove the bounds: the handshake is over.

        Raises:
            Refused: the node sent more than was asked for.
        """
        if self._answers:
            raise Refused(UNASKED)
        self.socket.settimeout(self._timeout)

    def logged_in(self) -> None:
        """Forget the replies that redis-py has read; ``answer`` returns the next ones.

        Raises:
            Refused: the node sent more than redis-py asked for.
        """
        if 0 < self._sent < self._replies:  # without a command, the first reply tells
            raise Refused(UNASKED)
        self._answers.clear()

    def answer(self) -> Any:
        """Return the next reply; also an error, as ``hiredis.ReplyError``.

        Raises:
            Refused: see ``recv``.
            OSError: the connection is lost, or nothing comes.
        """
        while not self._answers:
            if not self.recv(READ_SIZE):
                raise ConnectionError("connection closed by the node")
        return self._answers.popleft()

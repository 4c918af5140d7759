"""A TCP proxy before one node, which spoils replies after the node has done what was asked.

Or it lets the node's clock seem to be another.
"""

from __future__ import annotations

import enum
import math
import re
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Self

CHUNK = 65536
ENDLESS_SECONDS = 4.0
ENDLESS_CHUNK = 1 << 20


class Fault(enum.Enum):
    """What becomes of a reply."""

    SILENCE = "swallowed"
    RESET = "replaced by a reset (SO_LINGER 0)"
    CLOSE = "replaced by an orderly end"
    TRUNCATE = "cut in the middle, then the end"
    GARBAGE = "replaced by what is not the protocol"
    STRANGER = "replaced by a well-formed reply to somebody else's question"
    ENDLESS = "replaced by a bulk string that does not end for seconds"


TIME = re.compile(rb"(?<=\*2\r\n\$10\r\n)\d{10}(?=\r\n\$)")
SERVER = re.compile(rb"\$\d+\r\n(# Server\r\n(?:[^\r\n]*\r\n)*?)(?=\r\n|\$)")
UPTIME = re.compile(rb"(?<=uptime_in_seconds:)-?\d+")

INSTEAD = {
    Fault.GARBAGE: b"\x00\xff<html>\r\n",
    Fault.STRANGER: b"*3\r\n$32\r\n" + b"0" * 32 + b"\r\n$7\r\nGRANTED\r\n$1\r\n1\r\n",
}


class Proxy:
    """A proxy on 127.0.0.1 before a port; one thread for each connection; a context manager.

    With ``tls`` it is the node's TLS port, for servers that were built without one.

    Attributes:
        delay: seconds by which every reply is late; when less is set, those on their way hurry.
        slow_to_connect: seconds that pass before the first question of a connection is passed on;
            with ``tls``, before its handshake.
        inflicted: how many replies were spoiled.
        dropping: how many more questions are swallowed, each with its connection.
        holding: how many more questions wait on their way, and what comes behind them on their
            connections, until ``let_go``.
        held: how many do.
        away: whether every connection is ended, old or new, until ``heal``.
        clock: seconds that the node's clock seems to be ahead, by its TIME in a handshake.
        uptime: seconds that it seems to be older, by its INFO.
    """

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._target = port
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._closing = False
        self._fault: Fault | None = None
        self._times = 0.0
        self.delay = self.slow_to_connect = 0.0
        self.inflicted = 0
        self.dropping = 0
        self.away = False
        self.holding = self.held = 0
        self.clock = self.uptime = 0
        self._going_on, self._closed = threading.Event(), threading.Event()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    @property
    def url(self) -> str:
        """The node's address by way of the proxy."""
        return f"redis://127.0.0.1:{self.port}/0"

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._closed.set()
        while self._threads:
            self._threads.pop().join(10)
        self._listener.close()

    def inflict(self, fault: Fault, times: float = math.inf) -> None:
        """Spoil the next ``times`` replies, of all connections together."""
        self._fault, self._times = fault, times

    def cut(self) -> None:
        """End all connections, and each new one at once; they are ended when this returns."""
        self.away = True
        for thread in tuple(self._threads[1:]):
            thread.join(10)

    def heal(self) -> None:
        """Pass on what comes."""
        self._fault, self.away = None, False

    def lead_to(self, port: int, *, cut: bool = True) -> None:
        """Be the way to another node, as an address is after a failover; end all connections.

        Without ``cut`` those that are open go on to the node to which they led.
        """
        if cut:
            self.cut()
        self._target = port
        self.heal()

    def let_go(self) -> None:
        """Pass on what was held."""
        self.holding = 0
        self._going_on.set()

    def _accept(self) -> None:
        while not self._closing:
            if select.select([self._listener], [], [], 0.02)[0]:
                client = self._listener.accept()[0]
                if self.away:
                    client.close()
                    continue
                thread = threading.Thread(target=self._serve, args=(client,))
                thread.start()
                self._threads.insert(1, thread)  # only what was started can be joined

    def _serve(self, client: socket.socket) -> None:
        with ExitStack() as stack, suppress(OSError):
            stack.enter_context(client)
            client.settimeout(10)
            self._closed.wait(self.slow_to_connect)
            if self._tls is not None:
                client = stack.enter_context(self._tls.wrap_socket(client, server_side=True))
            client.settimeout(0.5)
            with socket.create_connection(("127.0.0.1", self._target), 2) as node:
                for end in (client, node):  # as clients and nodes do; Nagle would add 40 ms
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while not (self._closing or self.away) and self._pass_on(client, node):
                    pass

    def _pass_on(self, client: socket.socket, node: socket.socket) -> bool:
        """Move what is there; False when the connection is over."""
        ready = select.select([client, node], [], [], 0.02)[0]
        if isinstance(client, ssl.SSLSocket) and client.pending():
            ready.append(client)
        if client in ready:
            request = client.recv(CHUNK)
            if not request:
                return False
            if self.dropping > 0:
                self.dropping -= 1
                return False
            self._maybe_hold()
            if self.away:
                return False
            node.sendall(request)
        if node in ready:
            reply = node.recv(CHUNK)
            self._dawdle()
            if not reply:
                return False
            fault = self._next_fault()
            if fault is not None:
                return _spoil(fault, client, reply, self._is_ill)
            client.sendall(self._shifted(reply))
        return True

    def _shifted(self, reply: bytes) -> bytes:
        """The reply of a node whose clock is another. A handshake's comes in one piece."""
        if not (self.clock or self.uptime):
            return reply

        def older(found: re.Match[bytes]) -> bytes:
            said = UPTIME.sub(lambda each: b"%d" % (int(each[0]) + self.uptime), found[1])
            return b"$%d\r\n%b" % (len(said), said)

        reply = TIME.sub(lambda found: b"%d" % (int(found[0]) + self.clock), reply)
        return SERVER.sub(older, reply)

    def _dawdle(self) -> None:
        came, delay = time.monotonic(), self.delay
        while not self._closing:
            delay = min(delay, self.delay)
            left = came + delay - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(left, 0.01))

    def _maybe_hold(self) -> None:
        """Let no question through on this connection, if that is wanted, for as long as it is."""
        if self.holding > 0:
            self.holding -= 1
            self._going_on.clear()
            self.held += 1
            while not (self._closing or self.away or self._going_on.wait(0.02)):
                pass
            self.held -= 1

    def _is_ill(self) -> bool:
        return self._fault is not None and not self._closing

    def _next_fault(self) -> Fault | None:
        if self._fault is None or self._times <= 0:
            return None
        self._times -= 1
        self.inflicted += 1
        return self._fault


def _spoil(fault: Fault, client: socket.socket, reply: bytes, is_ill: Callable[[], bool]) -> bool:
    if fault is Fault.SILENCE:
        return True
    if fault is Fault.RESET:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    elif fault is Fault.TRUNCATE:
        client.sendall(reply[: len(reply) // 2])
    elif fault is Fault.ENDLESS:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16 * ENDLESS_CHUNK)
        client.sendall(b"$2000000000\r\n")
        end = time.monotonic() + ENDLESS_SECONDS
        while time.monotonic() < end and is_ill():
            client.sendall(b"x" * ENDLESS_CHUNK)
    elif fault in INSTEAD:
        client.sendall(INSTEAD[fault])
        return True
    return False

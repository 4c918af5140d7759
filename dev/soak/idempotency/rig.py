"""Play it: five lock nodes, a database, a server with workers, and what befalls them."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dev.benchmarks.peers import environments
from dev.soak.ailing import Schedule, Waiting, ill_nodes, members
from dev.soak.notebook import Follower, Notebook, read
from django_redlock.testing import EmbeddedNodes
from django_redlock.testing.server import DEAD, process_state
from tests.support.databases import database
from tests.support.inherited import children
from tests.support.processes import process
from tests.support.waiting import eventually

from .candidates import CANDIDATES, OURS
from .clients import Clients
from .rules import History, Order

ROOT = Path(__file__).parents[3]
SHOP = "dev.soak.idempotency.shop"
NODES, WORKERS, AT_ONCE = 5, 4, 12
TTL, SKEW = 3.0, 0.1  # seconds
PREFIX = "redlock:"
START = 300.0  # seconds: what a machine may take that does other things, too
AIMED = 0.75  # of the kills strike a worker that is in the view, or has just left it
MOMENT = 0.1  # seconds: the view takes half, so what comes behind it is struck as well
LOOK = 0.3  # seconds for which the rig looks for a worker that is in the view


@dataclass(frozen=True)
class Play:
    """What is to be played.

    Attributes:
        candidate: a name of ``candidates``.
        kind: of the database.
        clients: how many; each has a key.
        at_once: how many of them come at the same time.
        kill: seconds between two kills of a worker, on average.
        nodes_down: whether all nodes are dead, all the time; the view runs without a lock then.
    """

    candidate: str = OURS
    kind: str = "sqlite"
    clients: int = 500
    at_once: int = AT_ONCE
    kill: float = 1.0
    nodes_down: bool = False
    seed: int = field(default_factory=lambda: random.randrange(1 << 30))


class Rig:
    """The processes of one play."""

    def __init__(self, play: Play, folder: Path, settings: dict[str, Any]) -> None:
        self.play, self.folder = play, folder
        self.candidate = CANDIDATES[play.candidate]
        self.draw = random.Random(play.seed)
        self.path = folder / "history"
        self.notebook, self.follower = Notebook(self.path), Follower(self.path)
        self.at_work: set[int] = set()  # processes that are in the view
        needed = self.candidate.environment
        self.python = environments.python(needed) if needed else Path(sys.executable)
        self.env = os.environ | {
            "DJANGO_SETTINGS_MODULE": f"{SHOP}.settings",
            "SOAK_CANDIDATE": play.candidate,
            "SOAK_DATABASE": json.dumps(settings),
            "SOAK_HISTORY": str(self.path),
            "SOAK_UNAVAILABLE": "run" if play.nodes_down else "refuse",
            # Every request would wait so long for a majority.
            "SOAK_WAIT": "0" if play.nodes_down else "2",
        }

    # -- processes --------------------------------------------------------------------------------

    def run(self, *words: str) -> str:
        """Run a program of the site to its end; return what it printed."""
        done = subprocess.run(
            [self.python, "-m", *words],
            cwd=ROOT,
            env=self.env,
            check=False,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def serving(self) -> Iterator[tuple[int, int]]:
        """The server: the process of its master, and the port where it listens.

        The master has the site loaded, so a new worker is there at once. Otherwise the machine
        would be busy with starting them.
        """
        options = "--no-control-socket --preload --timeout=60 --log-level=warning"
        log = self.folder / "server.log"
        with ExitStack() as stack:
            with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
                bound = (f"--bind=fd://{listener.fileno()}", f"--workers={WORKERS}")
                command = ("-m", "gunicorn", f"{SHOP}.wsgi", *bound, *options.split())
                env = self.env | {"PYTHONPATH": str(ROOT)}
                inherits = (listener.fileno(),)
                started = process([str(self.python), *command], env, log, inherits=inherits)
                master = stack.enter_context(started)
                port = listener.getsockname()[1]
            eventually(
                lambda: process_state(master) in DEAD or self.answers(port),
                within=START,
                every=0.05,
                what=str(log),
            )
            assert process_state(master) not in DEAD, log.read_text()
            yield master, port
            self.left = self.end(master)

    def end(self, master: int) -> list[int]:
        """Ask the server to end, and kill what is left of it, which is returned."""
        group = os.getpgid(master)  # the shell that guards it leads the group
        os.kill(master, signal.SIGTERM)
        with suppress(AssertionError):
            eventually(lambda: process_state(master) in DEAD, within=START)
        left = [pid for pid in members(group) if pid != group]
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return left

    def answers(self, port: int) -> bool:
        """Whether somebody serves already."""
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as connection:
            connection.sendall(b"GET /up/ HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n")
            return b" 204 " in connection.recv(20)
        return False

    def dying_workers(self, master: int) -> Waiting:
        """Kill one about every second; mostly one that is in the view, or has just left it."""
        while True:
            yield self.play.kill * self.draw.uniform(0.5, 1.5)
            there = children(master)
            if self.draw.random() < AIMED:
                there = self.busy(master) or there
                time.sleep(self.draw.uniform(0, MOMENT))
            if there:
                victim = self.draw.choice(there)
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    self.notebook.write("kill", pid=victim)

    def busy(self, master: int) -> list[int]:
        """The workers that have just begun the view; soon there is one, unless all is done."""
        late = time.monotonic() + LOOK
        while time.monotonic() < late:
            self.at_work.clear()
            self.follow()
            if self.at_work:
                return [pid for pid in children(master) if pid in self.at_work]
            time.sleep(0.001)
        return []

    def follow(self) -> None:
        """Read what has happened."""
        for line in self.follower.new():
            if line["what"] == "begin":
                self.at_work.add(line["pid"])
            elif line["what"] in ("end", "kill"):
                self.at_work.discard(line["pid"])

    # -- the play ---------------------------------------------------------------------------------

    def perform(self, nodes: EmbeddedNodes | None) -> History:
        """Let all clients come, kill all the while, and look at what there is in the end."""
        if nodes is not None:
            locks = nodes.settings(
                TTL=TTL, MAX_TTL=TTL, CLOCK_SKEW=SKEW, NODE_TIMEOUT=1.0, KEY_PREFIX=PREFIX
            )
            self.env |= {"SOAK_LOCKS": json.dumps(locks), "SOAK_REDIS": nodes[0].url}
        self.run("django", "migrate", "--run-syncdb", "--skip-checks", "--verbosity=0")
        if nodes is not None and self.play.nodes_down:
            for index in range(len(nodes)):
                nodes.kill(index)
        keys = [f"key-{number}" for number in range(self.play.clients)]
        with self.serving() as (master, port):
            clients = Clients(port, self.candidate.replayed, self.play.seed)
            self.ill_treat(clients, keys, master, nodes)
        locks_left = self.left_locks(nodes) if nodes and self.candidate.locks else []
        return History(
            keys=keys,
            answers=clients.answers,
            orders=[Order(*row) for row in json.loads(self.run(f"{SHOP}.sold"))],
            counts=clients.counts,
            without=frozenset(clients.without),
            lines=read(self.path),
            tells=bool(self.candidate.replayed),
            locks=locks_left,
            processes=self.left,
        )

    def ill_treat(
        self,
        clients: Clients,
        keys: Sequence[str],
        master: int,
        nodes: EmbeddedNodes | None,
    ) -> None:
        """Let befall what befalls until all clients have gone."""
        things = [self.dying_workers(master)]
        if nodes is not None and not self.play.nodes_down:
            guard = TTL + SKEW + 1
            kinds = {} if len(nodes) == NODES else {"mortal": (0,), "faint": (0,)}
            things.append(ill_nodes(nodes, guard, self.notebook, self.draw, **kinds))
        with ThreadPoolExecutor(self.play.at_once) as pool:
            coming = clients.begin(keys, pool)

            def over() -> bool:
                assert process_state(master) not in DEAD, f"the server has ended; see {self.folder}"
                return all(each.done() for each in coming)

            try:
                Schedule(*things).run(over, self.follow, every=0.02)
            finally:
                clients.end()
                pool.shutdown(cancel_futures=True)  # there are some if the rig was interrupted
        for each in coming:
            each.result()

    def left_locks(self, nodes: EmbeddedNodes) -> list[str]:
        """Return what a majority still has when the leases of those that were killed are over."""
        if self.play.nodes_down:
            return []
        late = time.monotonic() + TTL + SKEW + 1
        while (left := self.locks(nodes)) and time.monotonic() < late:
            time.sleep(0.1)
        return left

    def locks(self, nodes: EmbeddedNodes) -> list[str]:
        """The names that any node has now."""
        found: Counter[str] = Counter()
        for node in nodes:
            with closing(node.client(decode_responses=True)) as client:
                found.update(map(str, client.scan_iter(f"{PREFIX}lock:*", count=1000)))
        return [re.sub(f"^{PREFIX}lock:", "", name) for name in sorted(found)]


def perform(play: Play, folder: Path) -> History:
    """Play it, with logs and history in a folder; return the history.

    Raises:
        PeerUnavailable: the candidate cannot be installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    candidate = CANDIDATES[play.candidate]
    with ExitStack() as stack:
        settings = stack.enter_context(database(play.kind))
        rig = Rig(play, folder, settings)
        for each in (rig.notebook, rig.follower):
            stack.enter_context(closing(each))
        nodes = None
        if candidate.locks or candidate.redis:
            nodes = stack.enter_context(EmbeddedNodes(NODES if candidate.locks else 1))
        return rig.perform(nodes)

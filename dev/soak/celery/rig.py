"""Play it: a broker, five lock nodes, two workers and two publishers, and what befalls them."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dev.benchmarks.peers import environments
from dev.soak.ailing import Schedule, ill_nodes
from dev.soak.notebook import Follower, Notebook, read
from django_redlock.testing import EmbeddedNode, EmbeddedNodes
from tests.support.waiting import eventually

from . import faults
from .history import MODES, key_of
from .rules import History

ROOT = Path(__file__).parents[3]
ENVIRONMENTS = {"ours": None, "once": "celery-once", "singleton": "celery-singleton"}
TTL, SKEW = 3.0, 0.1  # seconds
NODES, WORKERS, CHILDREN, PUBLISHERS = 5, 2, 4, 2
MAJORITY = NODES // 2 + 1
START = 300.0  # seconds: what a machine may take that does other things, too
CALM = 1.0  # seconds for which the broker has no message when all are done
PREFIX = "redlock:"


@dataclass(frozen=True)
class Play:
    """What is to be played.

    Attributes:
        candidate: whose locks.
        early: whether messages are acknowledged before their runs, as Celery does by default.
        faults: whether anything is killed.
        rare: one of so many messages has a body that outlasts the broker's patience.
        broken: what is broken in this package, for the tests of the rules.
        drain: seconds without the end of a body, after which nobody waits any longer for messages
            that are left; of a play that is broken, seconds in all.
    """

    candidate: str = "ours"
    seconds: float = 60.0
    messages: int = 10_000
    keys: int = 100
    early: bool = False
    faults: bool = True
    seed: int = field(default_factory=lambda: random.randrange(1 << 30))
    rare: int = 250
    broken: str = ""
    drain: float = 180.0


class Rig:
    """The processes of one play."""

    def __init__(self, play: Play, folder: Path, broker: EmbeddedNode, nodes: EmbeddedNodes):
        self.play, self.folder, self.nodes = play, folder, nodes
        self.draw = random.Random(play.seed)
        path = folder / "history"
        self.notebook, self.follower = Notebook(path), Follower(path)
        self.broker: Any = broker.client()
        self.workers: list[subprocess.Popen[bytes]] = []
        self.open: dict[int, dict[str, Any]] = {}  # the bodies that run, by their processes
        self.dead: set[int] = set()
        self.ready = self.started = self.ended = 0
        self.looked = 0.0
        environment = ENVIRONMENTS[play.candidate]
        self.python = environments.python(environment) if environment else sys.executable
        locks = nodes.settings(MAX_TTL=TTL, CLOCK_SKEW=SKEW, NODE_TIMEOUT=1.0, KEY_PREFIX=PREFIX)
        told = {"SOAK_HISTORY": str(path), "SOAK_BROKER": broker.url, "SOAK_BROKEN": play.broken}
        told |= {"SOAK_RARE": str(play.rare)}
        told |= {"SOAK_EARLY": "1"} if play.early else {}
        self.env = os.environ | told | {"SOAK_LOCKS": json.dumps(locks)}
        self.notebook.write(
            "rig", ttl=TTL, majority=MAJORITY, candidate=play.candidate, seed=play.seed
        )

    # -- processes --------------------------------------------------------------------------------

    def run(self, name: str, *arguments: object) -> subprocess.Popen[bytes]:
        """Start a program of the candidate's environment, in a process group of its own."""
        with (self.folder / f"{name}.log").open("wb") as log:
            return subprocess.Popen(
                [self.python, "-m", *map(str, arguments)],
                cwd=ROOT,
                env=self.env,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def worker(self) -> None:
        """Start a worker."""
        self.started += 1
        name = f"worker-{self.started}"
        program = f"dev.soak.celery.programs.{self.play.candidate}"
        options = f"-c {CHILDREN} -l INFO -n {name}@%h --without-gossip --without-mingle"
        self.workers.append(self.run(name, "celery", "-A", program, "worker", *options.split()))

    @contextmanager
    def working(self) -> Iterator[None]:
        """Keep so many workers, and end them warmly."""
        try:
            for _ in range(WORKERS):
                self.worker()
            eventually(self.all_ready, within=START, every=0.1, what=f"workers; {self.folder}")
            yield
            for worker in self.workers:
                worker.terminate()
            for worker in self.workers:
                with suppress(subprocess.TimeoutExpired):
                    worker.wait(START)
        finally:
            for worker in self.workers:
                faults.kill_group(worker.pid, self.notebook)
                worker.wait()

    def all_ready(self) -> bool:
        """Whether as many workers as were started take messages."""
        self.follow()
        return self.ready >= self.started

    def follow(self) -> None:
        """Read what has happened."""
        for line in self.follower.new():
            what = line["what"]
            if what == "begin":
                self.open[line["pid"]] = line
            elif what == "end":
                self.open.pop(line["pid"], None)
                self.ended += 1
            elif what == "dead":
                self.dead.update(line["pids"])
                for pid in line["pids"]:
                    self.open.pop(pid, None)
            elif what == "ready":
                self.ready += 1

    def tick(self) -> None:
        """Replace workers that are dead, and look at the locks of the dead."""
        self.follow()
        for worker in list(self.workers):
            if worker.poll() is not None:
                self.workers.remove(worker)
                self.worker()
        if self.play.candidate == "ours" and time.monotonic() > self.looked + 0.5:
            self.look()
            self.looked = time.monotonic()

    def at_work(self, group: int) -> Sequence[int]:
        """Return the processes of a group in which bodies run."""
        self.follow()  # a body is short
        return [pid for pid, line in self.open.items() if line["group"] == group]

    # -- what the nodes have ----------------------------------------------------------------------

    def look(self) -> None:
        """Write down the locks of dead processes that a majority of the nodes has."""
        keys = [key_of(MODES, index) for index in range(self.play.keys)]
        held: dict[tuple[str, int], list[float]] = {}
        for node in self.nodes:
            if node.is_running and not node.is_paused:
                with closing(node.client()) as client:
                    for key, pid, until in self.locks_of_dead(client, keys):
                        held.setdefault((key, pid), []).append(until)
        for (key, pid), ends in held.items():
            if len(ends) >= MAJORITY:
                self.notebook.write("held", key=key, pid=pid, until=sorted(ends)[-MAJORITY])

    def locks_of_dead(self, client: Any, keys: Sequence[str]) -> Iterator[tuple[str, int, float]]:
        """Yield what a node has: key, process, and until when at least."""
        names = [f"{PREFIX}lock:soak:{key}" for key in keys]
        for key, name, value in zip(keys, names, client.mget(names), strict=True):
            owner = re.search(rb":(\d+)\([^()]*\):[^:]*$", value or b"")
            if owner and int(owner[1]) in self.dead:
                now = time.monotonic()
                yield key, int(owner[1]), now + max(0, client.pttl(name)) / 1000

    def leftovers(self) -> Counter[tuple[str, str, str]]:
        """Return marks and locks, and on how many nodes they are; a completion record is none."""
        found: Counter[tuple[str, str, str]] = Counter()
        for node in self.nodes:
            with closing(node.client(decode_responses=True)) as client:
                for key in client.scan_iter(f"{PREFIX}mark:*", count=1000):
                    found["mark", str(key), str(client.get(key)).rpartition(":")[2]] += 1
                for key in client.scan_iter(f"{PREFIX}lock:*", count=1000):
                    value = str(client.get(key) or "done::")
                    if not value.startswith("done::"):
                        found["lock", str(key), value.rpartition(":")[2]] += 1
        return found

    # -- the play ---------------------------------------------------------------------------------

    def publish(self) -> list[subprocess.Popen[bytes]]:
        """Start the publishers."""
        each = self.play.messages // PUBLISHERS
        return [
            self.run(
                f"publisher-{number}",
                "dev.soak.celery.programs.publisher",
                self.play.candidate,
                *("--messages", each, "--first", each * number, "--keys", self.play.keys),
                *("--seconds", self.play.seconds, "--seed", self.play.seed + number),
            )
            for number in range(PUBLISHERS)
        ]

    def probe(self) -> None:
        """Send one more message for each key."""
        program = ("dev.soak.celery.programs.publisher", self.play.candidate)
        options = ("--first", self.play.messages, "--keys", self.play.keys)
        probe = self.run("publisher-probe", *program, *options)
        try:
            assert probe.wait(START) == 0, f"see {self.folder}"
        finally:
            faults.kill_group(probe.pid, self.notebook)

    def waiting(self) -> int:
        """How many messages the broker has: waiting, or not acknowledged; and bodies that run."""
        self.follow()
        bodies = len(self.open)
        return int(self.broker.llen("celery") + self.broker.hlen("unacked")) + bodies

    def drain(self) -> None:
        """Wait until no message is left, for a second; all that can run has run."""
        late, calm, ended = time.monotonic() + self.play.drain, None, self.ended
        while calm is None or time.monotonic() < calm + CALM:
            waiting = self.waiting()
            # A slow machine goes on; copies that find no record may do so for ever.
            if self.ended > ended and not self.play.broken:
                late, ended = time.monotonic() + self.play.drain, self.ended
            if waiting:
                calm = None
            elif calm is None:
                calm = time.monotonic()
            if time.monotonic() > late:
                self.notebook.write("undrained", messages=waiting)
                return
            self.tick()
            time.sleep(0.1)

    def perform(self) -> None:
        """Send all messages, ill-treat everybody, wait until all is done, and look at the rest."""
        guard = TTL + SKEW + 1
        things = [
            ill_nodes(self.nodes, guard, self.notebook, self.draw),
            faults.dying_workers(self.groups, self.at_work, self.notebook, self.draw),
        ]
        with self.working():
            publishers = self.publish()
            try:
                end = time.monotonic() + self.play.seconds
                schedule = Schedule(*(things if self.play.faults else ()))
                schedule.run(lambda: time.monotonic() >= end, self.tick)
                for each in publishers:
                    assert each.wait(START) == 0, f"a publisher failed, see {self.folder}"
            finally:
                for each in publishers:
                    faults.kill_group(each.pid, self.notebook)
            self.drain()
            self.probe()
            self.drain()
        deadline = time.monotonic() + TTL
        while (left := self.leftovers()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for (kind, key, task_id), nodes in left.items():
            self.notebook.write("left", kind=kind, key=key, id=task_id, nodes=nodes)

    def groups(self) -> Sequence[int]:
        """The workers."""
        return [worker.pid for worker in self.workers]


def perform(play: Play, folder: Path) -> History:
    """Play it, with logs and history in a folder; return the history.

    Raises:
        PeerUnavailable: the candidate cannot be installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        broker = EmbeddedNode()
        stack.callback(broker.close)
        broker.start()
        nodes = stack.enter_context(EmbeddedNodes(NODES))
        rig = Rig(play, folder, broker, nodes)
        for each in (rig.broker, rig.notebook, rig.follower):
            stack.enter_context(closing(each))
        rig.perform()
    return History(read(folder / "history"))

"""A broker, lock nodes, and real workers of ``project``, for the tests that need them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django_redlock.core.quorum import majority_of
from django_redlock.testing import EmbeddedNode
from tests.support.waiting import eventually

from . import marked, project

TTL = 5.0  # of the locks of workers: a busy machine keeps none from renewing for so long
LONG_TTL = 60.0  # of those that the tests hold themselves
CHILDREN = 4
ROUNDING = 0.005  # seconds
GET = 90.0  # seconds for a result, on a busy machine
MARKED = (
    marked.once,
    marked.anew,
    marked.soon,
    marked.quick,
    marked.late,
    marked.rejecting,
    marked.retrying,
)


class Site:
    """A broker with a notebook, clients of the lock nodes, and the workers that were started."""

    def __init__(
        self, broker: EmbeddedNode, nodes: list[Any], locks: dict[str, object], logs: Path
    ) -> None:
        self.url = broker.url
        self.nodes = nodes
        self.client: Any = broker.client(decode_responses=True)
        self.logs = logs
        self.locks = locks
        self.env = os.environ | {
            "TEST_RESULTS": self.url,
            "TEST_LOCKS": json.dumps(locks),
        }
        self.numbers = itertools.count()

    def notes(self, what: str = "", key: str = "") -> list[dict[str, Any]]:
        """What bodies wrote down, in order."""
        found = [json.loads(note) for note in self.client.lrange("notes", 0, -1)]
        wanted = {"what": what, "key": key}
        return [
            note
            for note in found
            if all(note[field] == value for field, value in wanted.items() if value)
        ]

    def begun(self, key: str, times: int = 1) -> list[dict[str, Any]]:
        """Wait until bodies of a key have begun so many times."""

        def enough() -> list[dict[str, Any]]:
            found = self.notes("begin", key)
            return found if len(found) >= times else []

        return eventually(enough, within=GET, every=0.02, what=f"{times} of {key}")

    def enough(self, *keys: str) -> None:
        """Let the lasting work for these keys be done."""
        for key in keys:
            self.client.set(f"enough:{key}", 1)

    def end_run(self, key: str) -> None:
        """Let one run for the key be done, of work that is told so for each run."""
        self.client.rpush(f"end:{key}", 1)

    def keeps(self, queue: str, task_id: str) -> int:
        """How many copies of a message the broker has: waiting, or not acknowledged yet.

        Both are read in one step, for a worker moves a lost message from the one to the other.
        """
        with self.client.pipeline() as both:
            waiting, unacked = both.lrange(queue, 0, -1).hvals("unacked").execute()
        return sum(f'"id": "{task_id}"' in message for message in (*waiting, *unacked))

    def has_none(self, queue: str, task_id: str) -> bool:
        """Whether all copies of a message are acknowledged, or one is on its way to a worker."""
        return not self.keeps(queue, task_id)

    def ends(self, name: str) -> dict[int, float]:
        """When the lock ends on each node that has it, by the node's clock."""
        return {number: ends for number, (_, ends) in enumerate(self._clocks(name)) if ends}

    def is_past(self, ends: dict[int, float]) -> bool:
        """Whether the clock of each node has passed these moments."""
        return all(now > ends.get(number, 0.0) for number, (now, _) in enumerate(self._clocks("")))

    def let_time_pass(self, name: str) -> None:
        """Take the lock of a dead run from the nodes, as the end of its ttl does."""
        left = [ends - now for now, ends in self._clocks(name) if ends]
        assert left, "the dead run had a lock"
        assert max(left) <= LONG_TTL + ROUNDING
        for client in self.nodes:
            client.delete(f"redlock:lock:{name}")

    def long_locks(self) -> str:
        """TEST_LOCKS for a worker whose locks outlast whatever a test does meanwhile."""
        return json.dumps(self.locks | {"MAX_TTL": LONG_TTL})

    def is_taken(self, task_id: str) -> bool:
        """Whether a worker has a message, and has not acknowledged it."""
        return any(f'"id": "{task_id}"' in message for message in self.client.hvals("unacked"))

    def ends_in_one_ttl(self, name: str, alive: dict[int, float] | None = None) -> None:
        """Wait until the lock of a dead run is over: in one ttl, by the clocks of its nodes.

        Nobody renews it, then. How long this machine takes to look decides nothing.

        Args:
            name: of the lock.
            alive: what `ends` said while the run lived: no node may have freed the lock before.
        """
        first: dict[int, float] = {}

        def is_over() -> bool:
            over = True
            for number, (now, ends) in enumerate(self._clocks(name)):
                if ends:
                    assert ends - now <= TTL + ROUNDING
                    assert ends <= first.setdefault(number, ends) + ROUNDING
                    over = False
                else:
                    least = max(seen.get(number, 0.0) for seen in (first, alive or {}))
                    assert now >= least - ROUNDING
            return over

        eventually(is_over, within=GET, every=0.05)

    def _clocks(self, name: str) -> Iterator[tuple[float, float]]:
        """The time of each node, and when the lock ends there; 0: it is free."""
        for client in self.nodes:
            (seconds, micros), left = (
                client.pipeline().time().pttl(f"redlock:lock:{name}").execute()
            )
            now = seconds + micros / 1e6
            yield now, now + left / 1e3 if left > 0 else 0.0

    @contextmanager
    def worker(
        self,
        children: int = CHILDREN,
        queue: str = "celery",
        *,
        lost_after: int = project.NEVER,
        pool: str = "prefork",
        broker: str = "",
        **more_env: str,
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A worker in a process group of its own, which takes as many messages as it can run.

        Its broker is another one than that of the results, if its URL is given.
        """
        name = f"worker-{next(self.numbers)}"
        ready = len(self.notes("ready"))
        log = self.logs / f"{name}.log"
        command = f"celery -A tests.celery.project worker -c {children} -P {pool} -Q {queue}"
        command += f" -l INFO -n {name}@%h -I tests.celery.marked,tests.celery.varied"
        more = "--prefetch-multiplier 1 --without-gossip --without-mingle"
        with log.open("wb") as out:
            worker = subprocess.Popen(
                [sys.executable, "-m", *command.split(), *more.split()],
                env=self.env
                | {"TEST_BROKER": broker or self.url, "TEST_LOST_AFTER": str(lost_after)}
                | more_env,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        try:
            eventually(
                lambda: worker.poll() is None and len(self.notes("ready")) > ready,
                within=GET,
                every=0.05,
                what=f"a worker; see {log}",
            )
            yield worker
        finally:
            end(worker)


def end(worker: subprocess.Popen[bytes], number: signal.Signals = signal.SIGTERM) -> None:
    """End a worker with all its children, and see that it has ended."""
    if worker.poll() is None:
        os.killpg(worker.pid, number)
    try:
        worker.wait(15)
    except subprocess.TimeoutExpired:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(15)


# -- what tests ask of a site ------------------------------------------------------------------


def new_key() -> str:
    """A key that no other test has."""
    return uuid.uuid4().hex


def intervals(site: Site, keys: list[str]) -> dict[str, list[tuple[float, float]]]:
    """When the bodies of each key ran, in order."""
    found = defaultdict(list)
    begun: dict[tuple[str, str], float] = {}
    for note in sorted(site.notes(), key=lambda note: note["at"]):
        if note["key"] in keys:
            run = (note["id"], note["pid"])
            if note["what"] == "begin":
                begun[run] = note["at"]
            elif note["what"] == "end":
                found[note["key"]].append((begun.pop(run), note["at"]))
    return {key: sorted(runs) for key, runs in found.items()}


def overlaps(runs: list[tuple[float, float]]) -> int:
    """How often a run began before the one before it had ended."""
    return sum(later[0] < earlier[1] for earlier, later in itertools.pairwise(runs))


def is_skipped(result: object) -> bool:
    """Whether it is the result of a duplicate."""
    return isinstance(result, dict) and result["skipped"] is True


def came_back(site: Site, task_id: str) -> int:
    """How often a worker said that a message comes back later."""
    logs = "".join(path.read_text() for path in site.logs.iterdir())
    return sum(f"[{task_id}] retry: " in line for line in logs.splitlines())


def is_alive(pid: int) -> bool:
    """Whether a process runs, or could go on to."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def wait_until_taken_for_lost(site: Site, task_id: str) -> None:
    """Return when the next worker that starts will deliver the unacknowledged message again."""

    def is_overdue() -> bool:
        overdue = site.client.zrange(
            "unacked_index", 0, time.time() - project.SOON - 0.1, byscore=True
        )
        kept = site.client.hmget("unacked", overdue) if overdue else []
        return any(f'"id": "{task_id}"' in message for message in kept if message)

    eventually(is_overdue, within=GET, every=0.05)


def kill_child(site: Site, key: str) -> float:
    """Kill the child that works on the key, as the system does when memory runs out; when."""
    (begun,) = site.begun(key)
    os.kill(begun["pid"], signal.SIGKILL)
    eventually(lambda: not is_alive(begun["pid"]), within=GET)
    return time.monotonic()


def ended_silently(site: Site, task_id: str) -> int:
    """How many copies of a message ended without a state."""
    logs = "".join(path.read_text() for path in site.logs.iterdir())
    return sum(f"[{task_id}] ignored" in line for line in logs.splitlines())


def marks_of(site: Site, key: str) -> int:
    """On how many nodes a message with this key has a mark."""
    names = [f"redlock:mark:{task.name}:marked:{key}" for task in MARKED]
    return sum(client.exists(*names) > 0 for client in site.nodes)


def unmarked(site: Site, key: str) -> None:
    """Wait until no node has a mark: who takes it away waits for a majority of them."""
    eventually(lambda: marks_of(site, key) == 0, within=GET, what=f"no mark of {key}")


def minority_marked(site: Site, key: str) -> None:
    """Wait until no majority has a mark.

    A majority is enough to send: on a busy machine the last node may get a mark when the worker has
    removed the others. It keeps no message from being sent, for it takes a majority to do that.
    """
    eventually(lambda: marks_of(site, key) < majority_of(len(site.nodes)), within=GET)


def runs(site: Site, key: str) -> int:
    """How often a body has begun."""
    return len(site.notes("begin", key))


def if_sent(task: Any, key: str, queue: str) -> Any:
    """The result of a message, if it was no duplicate."""
    result = task.apply_async((key,), queue=queue)
    return None if result.duplicate else result

"""A broker, lock nodes, and real workers of ``project``, for the tests that need them."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django_redlock.testing import EmbeddedNode
from tests.support.waiting import eventually

from . import project

TTL = 2.0
CHILDREN = 4
ROUNDING = 0.005  # seconds
GET = 30.0  # seconds for a result


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
        """How many copies of a message the broker has: waiting, or not acknowledged yet."""
        kept = [*self.client.lrange(queue, 0, -1), *self.client.hvals("unacked")]
        return sum(f'"id": "{task_id}"' in message for message in kept)

    def has_none(self, queue: str, task_id: str) -> bool:
        """Whether all copies of a message are acknowledged."""
        return not self.keeps(queue, task_id)

    def ends(self, name: str) -> dict[int, float]:
        """When the lock ends on each node that has it, by the node's clock."""
        return {number: ends for number, (_, ends) in enumerate(self._clocks(name)) if ends}

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

"""``locked_task`` in real prefork workers, with a Redis broker, killed and limited."""

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
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import chain, chord, group
from celery.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError
from django.test import override_settings

from django_redlock import redlock
from django_redlock.testing import EmbeddedNode, EmbeddedNodes

from . import celery_project as project
from .waiting import eventually

pytestmark = pytest.mark.slow
TTL = 2.0
CHILDREN = 4
GET = 30.0  # seconds for a result


class Site:
    """A broker with a notebook, the lock nodes, and the workers that were started."""

    def __init__(self, broker: EmbeddedNode, locks: dict[str, object], logs: Path) -> None:
        self.url = broker.url
        self.client: Any = broker.client(decode_responses=True)
        self.logs = logs
        self.locks = locks
        self.env = os.environ | {"TEST_BROKER": self.url, "TEST_LOCKS": json.dumps(locks)}
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

    @contextmanager
    def worker(
        self,
        children: int = CHILDREN,
        queue: str = "celery",
        *,
        lost_after: int = project.NEVER,
        **more_env: str,
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A worker in a process group of its own, which takes as many messages as it can run."""
        name = f"worker-{next(self.numbers)}"
        ready = len(self.notes("ready"))
        log = self.logs / f"{name}.log"
        command = f"celery -A tests.celery_project worker -c {children} -P prefork -Q {queue}"
        more = f"-l INFO -n {name}@%h --prefetch-multiplier 1 --without-gossip --without-mingle"
        with log.open("wb") as out:
            worker = subprocess.Popen(
                [sys.executable, "-m", *command.split(), *more.split()],
                env=self.env | {"TEST_LOST_AFTER": str(lost_after)} | more_env,
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


@pytest.fixture(scope="session")  # once per process: Celery's result consumer keeps its broker
def shared(redlock_embedded: EmbeddedNodes, tmp_path_factory: Any) -> Iterator[Site]:
    """One broker and one worker of four children for all tests but those that kill it."""
    with ExitStack() as stack:
        broker = EmbeddedNode()
        stack.callback(broker.close)
        broker.start()
        locks = redlock_embedded.settings(MAX_TTL=TTL, NODE_TIMEOUT=1, RESTART_GUARD=False)
        site = Site(broker, locks, tmp_path_factory.mktemp("workers"))
        stack.enter_context(closing(site.client))
        project.app.conf.update(broker_url=site.url, result_backend=site.url)
        stack.enter_context(site.worker())
        yield site
        project.app.close()


@pytest.fixture
def site(shared: Site, patient_nodes: EmbeddedNodes) -> Iterator[Site]:
    """The site, with lock nodes that are as new, in this process's settings too."""
    with override_settings(REDLOCK={"default": shared.locks}):
        yield shared


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


def at_once(site: Site, task: Any) -> tuple[int, list[int]]:
    """Send 16 messages for 3 keys; overlaps within a key, and runs of each.

    One key after the other, so that any two children that are free meet over it: in turns,
    three free children would go on in step, each with a key of its own.
    """
    keys = [new_key() for _ in range(3)]
    results = [task.delay(keys[number * 3 // 16], 0.15) for number in range(16)]
    assert [result.get(timeout=GET) for result in results] == ["done"] * 16
    runs = intervals(site, keys)
    return sum(map(overlaps, runs.values())), sorted(map(len, runs.values()))


def test_never_two_of_one_key_at_once(site):
    """16 messages for 3 keys through 4 children: all run, of each key one at a time."""
    assert at_once(site, project.patient) == (0, [5, 5, 6])


def test_two_keys_do_not_wait_for_each_other(site):
    """Messages for different keys are worked on at once."""
    keys = [new_key() for _ in range(2)]
    results = [project.lasting.delay(key) for key in keys]
    for key in keys:
        site.begun(key)
    site.enough(*keys)
    assert [result.get(timeout=GET) for result in results] == ["done"] * 2


def test_without_the_decorator_they_do_overlap(site):
    """The same messages without a lock run into each other: the test above can fail."""
    overlapping, runs = at_once(site, project.unlocked)
    assert runs == [5, 5, 6]
    assert overlapping > 0


def is_skipped(result: object) -> bool:
    """Whether it is the result of a duplicate."""
    return isinstance(result, dict) and result["skipped"] is True


def with_duplicates(key: str) -> list[Any]:
    """Work, and three duplicates of it, which come a little later."""
    later = [project.lasting.s(key).set(countdown=1) for _ in range(3)]
    return [project.lasting.s(key), *later]


def end_behind_duplicates(site: Site, key: str, sent: Any) -> None:
    """Let the work be done when the duplicates have been turned away."""
    eventually(lambda: sum(is_skipped(each.result) for each in sent) == 3, within=GET, every=0.05)
    site.enough(key)


def test_a_group_with_duplicates_finishes(site):
    """FM-30: each duplicate in a group is a success; the work is done."""
    key = new_key()
    sent = group(with_duplicates(key))()
    end_behind_duplicates(site, key, sent.results)
    results = sent.get(timeout=GET)
    assert (len(results), results.count("done"), sum(map(is_skipped, results))) == (4, 1, 3)


def test_a_chord_with_duplicates_finishes(site):
    """FM-30: the body of a chord runs when duplicates are in its header, and is told of them."""
    key = new_key()
    sent = chord(with_duplicates(key))(project.collect.s())
    end_behind_duplicates(site, key, sent.parent.results)
    results = sent.get(timeout=GET)
    assert (len(results), results.count("done"), sum(map(is_skipped, results))) == (4, 1, 3)


def test_a_chord_waits_for_what_comes_back(site):
    """FM-25, FM-30: messages that wait for a lock stay in their chord, and each is done."""
    key = new_key()
    header = [project.patient.s(key, 0.2) for _ in range(3)]
    assert chord(header)(project.collect.s()).get(timeout=GET) == ["done"] * 3
    assert overlaps(intervals(site, [key])[key]) == 0


def test_a_chain_with_a_duplicate_goes_on(site):
    """FM-30: the next link of a chain runs after a duplicate, and is given its result."""
    key = new_key()
    with redlock(f"work:{key}"):
        skipped = chain(project.skipping.s(key, 0), project.collect.s())().get(timeout=GET)
    assert is_skipped(skipped)
    assert chain(project.skipping.s(key, 0), project.collect.s())().get(timeout=GET) == "done"


def test_raise_fails_without_harm_to_the_worker(site):
    """FM-32: LockTaken crosses from child to parent to backend, and the worker works on."""
    key = new_key()
    with redlock(f"work:{key}"):
        result = project.strict.delay(key)
        with pytest.raises(Exception, match="held by"):
            result.get(timeout=GET)
    assert result.state == "FAILURE"
    assert project.strict.delay(key).get(timeout=GET) == "done"


def test_waiting_uses_up_no_retry(site):
    """FM-25: a task that had to wait twice and more still retries as often as it may."""
    key = new_key()
    with redlock(f"work:{key}") as lease:
        result = project.failing.delay(key)
        eventually(lambda: came_back(site, result.id) >= 2, within=GET, every=0.05)
        lease.ensure()
    with pytest.raises(Exception, match="Can't retry"):
        result.get(timeout=GET)
    assert [note["retries"] for note in site.notes("begin", key)] == [0, 1, 2]


def came_back(site: Site, task_id: str) -> int:
    """How often a worker said that a message comes back later."""
    logs = "".join(path.read_text() for path in site.logs.iterdir())
    return sum(f"[{task_id}] retry: " in line for line in logs.splitlines())


def test_a_second_copy_of_a_message_waits_for_the_first(site):
    """FM-21, FM-22: of two copies with one task id one runs, the other after it; none is lost."""
    key, task_id = new_key(), new_key()
    first = project.lasting.apply_async((key,), task_id=task_id)
    site.begun(key)
    project.lasting.apply_async((key,), task_id=task_id)
    eventually(lambda: came_back(site, task_id), within=GET, every=0.05)
    assert len(site.notes("begin", key)) == 1
    site.enough(key)
    begun = site.begun(key, times=2)
    assert {note["id"] for note in begun} == {task_id}
    eventually(lambda: len(site.notes("end", key)) == 2, within=GET)
    assert overlaps(intervals(site, [key])[key]) == 0
    assert first.get(timeout=GET) == "done"


def test_a_soft_limit_releases_at_once(site):
    """FM-20: the exception of the soft time limit ends the body, and the lease with it."""
    key = new_key()
    result = project.skipping.apply_async((key, GET), soft_time_limit=2)
    with pytest.raises(SoftTimeLimitExceeded):
        result.get(timeout=GET)
    assert site.notes("interrupted", key)
    with redlock(f"work:{key}"):  # at once; a lease that is left to its ttl lives for a second more
        pass


def test_a_hard_limit_leaves_the_lock_to_its_ttl(site):
    """FM-35: while a child may still run its key stays; one ttl after its death it is free."""
    key = new_key()
    result = project.stubborn.apply_async((key, GET), time_limit=2)
    (begun,) = site.begun(key)
    with pytest.raises(TimeLimitExceeded):
        result.get(timeout=GET)
    failed = time.monotonic()
    assert redlock(f"work:{key}").try_acquire() is None
    with redlock(f"work:{key}", wait=GET):
        assert time.monotonic() - failed < TTL + 4
        assert not is_alive(begun["pid"])
    assert site.notes("end", key) == []


def is_alive(pid: int) -> bool:
    """Whether a process runs, or could go on to."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}


def late(site: Site) -> tuple[str, str, Any]:
    """A message that is acknowledged when it is done, in a queue of its own: key, queue, result."""
    key, queue = new_key(), new_key()
    return key, queue, project.late.apply_async((key, 10 * GET), queue=queue)


def wait_until_taken_for_lost(site: Site, task_id: str) -> None:
    """Return when the next worker that starts will deliver the unacknowledged message again."""

    def is_overdue() -> bool:
        overdue = site.client.zrange(
            "unacked_index", 0, time.time() - project.SOON - 0.1, byscore=True
        )
        kept = site.client.hmget("unacked", overdue) if overdue else []
        return any(f'"id": "{task_id}"' in message for message in kept if message)

    eventually(is_overdue, within=GET, every=0.05)


def test_a_killed_worker_leaves_nothing_for_longer_than_a_ttl(site):
    """FM-20: SIGKILL in the middle: free within one ttl, and the redelivered message runs."""
    key, queue, result = late(site)
    with site.worker(1, queue, lost_after=project.SOON) as worker:
        site.begun(key)
        end(worker, signal.SIGKILL)
        killed = time.monotonic()
        assert redlock(f"work:{key}").try_acquire() is None
        with redlock(f"work:{key}", wait=GET):
            assert time.monotonic() - killed < TTL + 4
    wait_until_taken_for_lost(site, result.id)
    assert site.notes("end", key) == []
    with site.worker(1, queue, lost_after=project.SOON):
        assert result.get(timeout=GET) == "done"


def test_a_redelivered_message_outlives_the_run_that_it_waited_for(site):
    """FM-21, FM-22: redelivered while its first run lives, it waits; the run is killed, it runs."""
    key, queue, result = late(site)
    with site.worker(1, queue, lost_after=project.SOON) as first:
        site.begun(key)
        wait_until_taken_for_lost(site, result.id)
        with site.worker(1, queue, lost_after=project.SOON):
            eventually(lambda: came_back(site, result.id), within=GET, every=0.05)
            assert len(site.notes("begin", key)) == 1
            end(first, signal.SIGKILL)
            assert result.get(timeout=GET) == "done"
    assert [note["id"] for note in site.notes("begin", key)] == [result.id] * 2


# -- a killed child -------------------------------------------------------------------------------


def sent(task: Any) -> tuple[str, str, Any]:
    """A message in a queue of its own, for work that ends when it is told: key, queue, result."""
    key, queue = new_key(), new_key()
    return key, queue, task.apply_async((key,), queue=queue)


def kill_child(site: Site, key: str) -> float:
    """Kill the child that works on the key, as the system does when memory runs out; when."""
    (begun,) = site.begun(key)
    os.kill(begun["pid"], signal.SIGKILL)
    eventually(lambda: not is_alive(begun["pid"]), within=GET)
    return time.monotonic()


def test_late_acknowledgement_alone_loses_the_message_of_a_killed_child(site):
    """With acks_late alone the task fails, its message is gone, and its key is free in one ttl."""
    key, queue, result = sent(project.long)
    with site.worker(1, queue):
        killed = kill_child(site, key)
        with redlock(f"work:{key}", wait=GET):
            assert time.monotonic() - killed < TTL + 4
        with pytest.raises(WorkerLostError):
            result.get(timeout=GET)
        eventually(lambda: not site.keeps(queue, result.id), within=GET)
    assert len(site.notes("begin", key)) == 1


def test_the_rejected_message_of_a_killed_child_runs_again(site):
    """With task_reject_on_worker_lost it runs when the lock of the dead child is over."""
    key, queue, result = sent(project.rejecting)
    with site.worker(1, queue):
        killed = kill_child(site, key)
        _, second = site.begun(key, times=2)
        assert second["at"] > killed
        assert redlock(f"work:{key}").try_acquire() is None
        site.end_run(key)
        assert result.get(timeout=GET) == "done"
        eventually(lambda: not site.keeps(queue, result.id), within=GET)
    assert len(site.notes("begin", key)) == 2


# -- longer than the visibility timeout -----------------------------------------------------------


@contextmanager
def outlast(site: Site, task: Any, **env: str) -> Iterator[tuple[str, str, Any]]:
    """Work that runs when a second worker has delivered its message again: key, queue, result.

    A worker looks for lost messages when it starts, and afterwards every hundred seconds.
    """
    key, queue, result = sent(task)
    with site.worker(1, queue, lost_after=project.SOON, **env):
        site.begun(key)
        wait_until_taken_for_lost(site, result.id)
        with site.worker(1, queue, lost_after=project.SOON, **env):
            yield key, queue, result


def wait_until_it_came_back(site: Site, task_id: str, *, more_than: int) -> None:
    """Return when a worker has sent a message again for later, more often than before."""
    eventually(lambda: came_back(site, task_id) > more_than, within=GET, every=0.05)


def test_a_task_longer_than_the_visibility_timeout_runs_again_and_again(site):
    """Each run is delivered again, and the copy runs after it, never beside it."""
    with outlast(site, project.long) as (key, queue, result), ExitStack() as workers:
        for runs in (1, 2, 3):
            before = came_back(site, result.id)
            if runs > 1:
                wait_until_taken_for_lost(site, result.id)
                workers.enter_context(site.worker(1, queue, lost_after=project.SOON))
            wait_until_it_came_back(site, result.id, more_than=before)
            assert len(site.notes("begin", key)) == runs
            site.end_run(key)
            site.begun(key, times=runs + 1)
        site.end_run(key)
        eventually(lambda: len(site.notes("end", key)) == 4, within=GET)
        assert overlaps(intervals(site, [key])[key]) == 0
        assert {note["id"] for note in site.notes("begin", key)} == {result.id}


def test_a_copy_is_dropped_where_celery_drops_copies_of_a_success(site):
    """With worker_deduplicate_successful_tasks the copy that waited for a success does not run."""
    with outlast(site, project.long, TEST_DROP_COPIES="1") as (key, queue, result):
        eventually(lambda: came_back(site, result.id), within=GET, every=0.05)
        site.end_run(key)
        assert result.get(timeout=GET) == "done"
        eventually(lambda: not site.keeps(queue, result.id), within=GET)
    assert len(site.notes("begin", key)) == 1


def test_a_longer_visibility_timeout_delivers_once(site):
    """Where the broker waits for longer than the run takes, the message is not delivered again."""
    key, queue, result = sent(project.long)
    with site.worker(1, queue):
        site.begun(key)
        with site.worker(1, queue):
            other = project.skipping.apply_async((new_key(), 0), queue=queue)
            assert other.get(timeout=GET) == "done"  # so the second worker has looked
            assert came_back(site, result.id) == 0
            site.end_run(key)
            assert result.get(timeout=GET) == "done"
            eventually(lambda: not site.keeps(queue, result.id), within=GET)
    assert len(site.notes("begin", key)) == 1


def test_a_time_limit_below_the_visibility_timeout_delivers_once(site):
    """A hard limit ends the run before the broker takes it for lost, and its message is gone."""
    key, queue, result = sent(project.limited)
    with site.worker(1, queue, lost_after=project.SOON):
        with pytest.raises(TimeLimitExceeded):
            result.get(timeout=GET)
        eventually(lambda: not site.keeps(queue, result.id), within=GET)
    assert len(site.notes("begin", key)) == 1


def test_max_hold_lets_the_copy_run_beside_the_first(site):
    """A lock that ends before its run keeps the copy out no longer."""
    with outlast(site, project.let_go) as (key, _, _):
        site.begun(key, times=2)
        assert site.notes("end", key) == []
        site.end_run(key)
        site.end_run(key)

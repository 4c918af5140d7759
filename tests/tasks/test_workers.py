"""Django's own tasks with real nodes and real workers, which are killed."""

from __future__ import annotations

import pytest

pytest.importorskip("django.tasks", reason="Django 6 has tasks")
pytest.importorskip("django_tasks_db")

import os
import signal
import time
from contextlib import ExitStack, closing
from pathlib import Path

from django_redlock.testing import EmbeddedNodes
from tests.support.replays import note_broken
from tests.support.waiting import eventually
from tests.tasks.site import LONG, TABLE, Event, Site, faults

TTL = 2


@pytest.fixture
def site(redlock_embedded: EmbeddedNodes, tmp_path: Path) -> Site:
    """A site whose locks are those of embedded nodes, as new."""
    locks = redlock_embedded.settings(MAX_TTL=TTL, NODE_TIMEOUT=10, RESTART_GUARD=False)
    for node in redlock_embedded:
        with closing(node.client()) as client:
            for key in client.scan_iter("redlock:[!f]*"):
                client.delete(key)
    return Site(tmp_path, locks)


def keys(nodes: EmbeddedNodes, kind: str) -> set[bytes]:
    """The keys of a kind on all nodes."""
    found: set[bytes] = set()
    for node in nodes:
        with closing(node.client()) as client:
            found.update(client.scan_iter(f"redlock:{kind}:*"))
    return found


def count(site: Site, event: str) -> int:
    """How often this was noted."""
    return sum(each.event == event for each in site.events())


@pytest.mark.slow
def test_the_task_of_a_killed_worker_runs_again_and_what_has_finished_does_not(
    site, redlock_embedded
):
    """The worker leaves it as running. Made ready, it waits for the dead run, and runs once."""
    gate = Path(f"{site.log}.a")
    gate.touch()
    with site.worker() as (pid, name):
        (task_id,) = site.run("-m", "tests.tasks.asking", "locked", "a")
        eventually(lambda: count(site, "begun"), within=LONG, what="a worker that runs it")
        site.kill(pid, name, time.monotonic())
    gate.unlink()
    assert count(site, "ended") == 0
    with site.worker():
        eventually(lambda: not site.unfinished(), within=LONG, what="the second run")
        assert [each.event for each in site.events()] == ["asked", "begun", "begun", "ended"]
        status = f"SELECT status FROM {TABLE} WHERE id = ?"  # noqa: S608 - a name of ours
        again = f"UPDATE {TABLE} SET status = 'READY' WHERE id = ?"  # noqa: S608
        for _ in range(2):  # delivered again and again
            assert site.sql(status, [task_id.replace("-", "")]) == [("SUCCESSFUL",)]
            site.sql(again, [task_id.replace("-", "")])
            eventually(lambda: not site.unfinished(), within=LONG, what="a copy that ends")
    assert count(site, "begun") == 2
    assert keys(redlock_embedded, "mark") == set()


@pytest.mark.slow
def test_the_mark_of_a_killed_worker_keeps_none_out_when_its_task_has_ended(site, redlock_embedded):
    """Killed while it asks for its lock, it leaves the mark; a job of the site ends the task."""
    (first,) = site.run("-m", "tests.tasks.asking", "locked", "a")
    for node in redlock_embedded:
        node.pause()
    try:
        with site.worker() as (pid, _):
            claimed = f"SELECT * FROM {TABLE} WHERE status = 'RUNNING'"  # noqa: S608
            eventually(lambda: site.sql(claimed), within=LONG, what="a task that is claimed")
            os.kill(pid, signal.SIGKILL)
    finally:
        for node in redlock_embedded:
            node.resume()
    assert len(keys(redlock_embedded, "mark")) == 1
    site.sql(f"UPDATE {TABLE} SET status = 'FAILED'")  # noqa: S608
    (second,) = site.run("-m", "tests.tasks.asking", "locked", "a")
    assert second != first
    with site.worker():
        eventually(lambda: not site.unfinished(), within=LONG, what="the second task")
    assert (count(site, "ended"), keys(redlock_embedded, "mark")) == (1, set())


ROLLED_BACK = """
import django
django.setup()
from django.db import transaction
from tests.tasks import work
with transaction.atomic(using="other"):
    work.locked.enqueue("a")
    transaction.set_rollback(True, using="other")
with transaction.atomic(), transaction.atomic(using="other"):
    work.locked.enqueue("b")
"""


@pytest.mark.slow
def test_a_rollback_in_the_database_of_the_tasks_leaves_no_mark(tmp_path, redlock_embedded, site):
    """``using`` is another one, and both are waited for: what is rolled back can be enqueued."""
    (tmp_path / "apart").mkdir()
    apart = Site(tmp_path / "apart", site.locks, apart=True)
    apart.run("-c", ROLLED_BACK)
    assert [key.rpartition(b":")[2] for key in keys(redlock_embedded, "mark")] == [b"b"]
    apart.run("-m", "tests.tasks.asking", "locked", "a")
    with apart.worker():
        eventually(lambda: count(apart, "ended") == 2, within=LONG, what="both tasks")
    assert keys(redlock_embedded, "mark") == set()


def storm(site: Site, task: str, *, processes: int, each: int, names: int, kills: int) -> list[str]:
    """Many enqueue few keys, and workers are killed; what is wrong in the end."""
    with ExitStack() as stack:
        workers = [stack.enter_context(site.worker()) for _ in range(3)]
        askers = [
            site.start("-m", "tests.tasks.asking", task, str(each), str(names), str(seed))
            for seed in range(processes)
        ]
        for number in range(kills):
            least = (number + 1) * names // (kills + 1)  # each name has a run at least
            eventually(lambda: count(site, "begun") >= least, within=LONG, what="runs")  # noqa: B023
            pid, name = workers.pop(0)
            site.kill(pid, name, time.monotonic())
            workers.append(stack.enter_context(site.worker()))
        for asker in askers:
            said, _ = asker.communicate(timeout=5 * LONG)
            assert asker.returncode == 0
            assert len(said.split()) == each
        eventually(lambda: not site.unfinished(), within=5 * LONG, what="all tasks")
    return faults(site.events(), site.killed)


@pytest.mark.slow
def test_a_storm_of_tasks(site, redlock_embedded):
    """No key twice at a time, every asker has a run that began later, and no mark is left."""
    assert storm(site, "locked", processes=4, each=50, names=20, kills=1) == []
    assert keys(redlock_embedded, "mark") == set()
    assert count(site, "asked") == 200
    assert count(site, "ended") < 200


@pytest.mark.nightly
def test_a_great_storm_of_tasks(site, redlock_embedded):
    """2,000 of 200 keys from eight processes, with workers killed in turns."""
    assert storm(site, "locked", processes=8, each=250, names=200, kills=20) == []
    assert keys(redlock_embedded, "mark") == set()
    counts = {event: count(site, event) for event in ("asked", "begun", "ended")}
    print(f"\n{counts}, {len(site.killed)} workers killed")
    assert counts["asked"] == 2_000
    assert len(site.killed) == 20


@pytest.mark.slow
def test_a_storm_without_locks_is_caught(site):
    """Broken: the same tasks without the decorator. Bodies of one key are seen side by side."""
    note_broken("no lock")
    assert storm(site, "naive", processes=4, each=50, names=2, kills=0)


def test_the_history_tells_what_is_wrong():
    """A body beside another, a run that began too early, and one that was killed."""
    asked, begun = Event("asked", "a", 1, 1.0), Event("begun", "a", 2, 2.0)
    ended = Event("ended", "a", 2, 3.0)
    assert faults([asked, begun, ended], {}) == []
    assert faults([asked], {}) == ["a is lost"]
    assert faults([asked, begun], {2: 2.5}) == ["a is lost"]
    late = Event("asked", "a", 1, 2.5)
    assert faults([asked, begun, late, ended], {}) == ["a is lost"]
    other, its_end = Event("begun", "a", 3, 2.6), Event("ended", "a", 3, 4.0)
    assert len(faults([asked, begun, other, its_end], {})) == 1
    assert faults([asked, begun, other, its_end], {2: 2.5}) == []

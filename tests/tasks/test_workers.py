"""Django's own tasks with real nodes and real workers, which are killed."""

from __future__ import annotations

import pytest

pytest.importorskip("django.tasks", reason="Django 6 has tasks")
pytest.importorskip("django_tasks_db")

import os
import signal
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

from dev.soak.tasks.storm import TTL, count, keys, storm
from django_redlock.testing import EmbeddedNode, EmbeddedNodes
from tests.support.own_process import ROOT
from tests.support.processes import process
from tests.support.replays import note_broken
from tests.support.waiting import eventually
from tests.tasks.site import LONG, TABLE, Event, Site, faults


@pytest.fixture
def site(redlock_embedded: EmbeddedNodes, tmp_path: Path) -> Site:
    """A site whose locks are those of embedded nodes, as new."""
    return made(redlock_embedded, tmp_path, TTL)


@pytest.fixture
def patient_site(redlock_embedded: EmbeddedNodes, tmp_path: Path) -> Site:
    """A site none of whose workers loses its lock, however busy this machine is."""
    return made(redlock_embedded, tmp_path, LONG)


def made(nodes: EmbeddedNodes, folder: Path, ttl: float) -> Site:
    """Return a site whose locks are those of these nodes, as new."""
    locks = nodes.settings(MAX_TTL=ttl, NODE_TIMEOUT=10, RESTART_GUARD=False)
    for node in nodes:
        with closing(node.client()) as client:
            for key in client.scan_iter("redlock:[!f]*"):
                client.delete(key)
    return Site(folder, locks)


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


def rows(site: Site) -> int:
    """How many tasks are in the table."""
    ((count,),) = site.sql(f"SELECT COUNT(*) FROM {TABLE}")  # noqa: S608 - a name of ours
    return int(count)


@pytest.mark.slow
def test_the_fourth_task_of_a_limit_comes_back_and_runs(patient_site):
    """``limit=3`` and nothing else: it waits for a slot, and is not taken for done."""
    site = patient_site
    gate = Path(f"{site.log}.k0")
    gate.touch()
    site.run("-m", "tests.tasks.asking", "limited", "4", "1")
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(site.worker())
        eventually(lambda: rows(site) > 4, within=LONG, what="a task that comes back later")
        eventually(lambda: count(site, "begun") == 3, within=LONG, what="three runs")
        gate.unlink()
        eventually(lambda: not site.unfinished(), within=LONG, what="the fourth run")
    assert (count(site, "begun"), count(site, "ended")) == (4, 4)


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


@pytest.mark.slow
def test_a_storm_of_tasks(site, redlock_embedded):
    """No key twice at a time, every asker has a run that began later, and no mark is left."""
    assert storm(site, "locked", processes=4, each=50, names=20, kills=1) == []
    assert (site.unfinished(), len(site.killed)) == (0, 1)
    assert keys(redlock_embedded, "mark") == set()
    assert count(site, "asked") == 200
    assert count(site, "ended") < 200


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
    assert faults([asked], {}, over=False) == []
    assert faults([asked, begun], {2: 2.5}) == ["a is lost"]
    late = Event("asked", "a", 1, 2.5)
    assert faults([asked, begun, late, ended], {}) == ["a is lost"]
    other, its_end = Event("begun", "a", 3, 2.6), Event("ended", "a", 3, 4.0)
    assert len(faults([asked, begun, other, its_end], {})) == 1
    assert faults([asked, begun, other, its_end], {2: 2.5}) == []


WRONG = """
import os

from celery import Celery

from django_redlock.tasks import locked_task

url = os.environ["WRONG_BROKER"]
app = Celery("wrong", broker=url, backend=url)
app.set_default()


@app.task
@locked_task("pay:{number}", on_conflict="retry")
def pay(number):
    return number
"""


@pytest.mark.slow
def test_a_celery_worker_says_that_a_task_has_the_wrong_decorator(redlock_embedded, tmp_path):
    """As the error of each message."""
    celery = pytest.importorskip("celery")
    broker, log = EmbeddedNode(), tmp_path / "worker.log"
    broker.start()
    with ExitStack() as stack:
        stack.callback(broker.close)
        locks = redlock_embedded.settings(RESTART_GUARD=False)
        (tmp_path / "wrong.py").write_text(WRONG)
        settings = f"INSTALLED_APPS = ['django_redlock']\nREDLOCK = {{'default': {locks!r}}}\n"
        (tmp_path / "wrong_settings.py").write_text(settings)
        env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
        env |= {"DJANGO_SETTINGS_MODULE": "wrong_settings", "WRONG_BROKER": broker.url}
        command = [sys.executable, "-m", "celery", "-A", "wrong", "worker", "-P", "solo"]
        stack.enter_context(process([*command, "-l", "INFO"], env, log))
        app = stack.enter_context(celery.Celery(broker=broker.url, backend=broker.url))
        with pytest.raises(TypeError, match=r"import it from django_redlock\.celery"):
            app.send_task("wrong.pay", (1,)).get(timeout=LONG)

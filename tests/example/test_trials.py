"""The trials with tasks: what they send, what their page says, and what may be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state as worker_state

from django_redlock import redlock
from example_project.box_office import tasks, trials
from example_project.box_office.control import kill_run
from example_project.box_office.models import Run, Sending

from .visitors import visitor

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("nodes", "queue", "results"),
]
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


# -- 20 calls -------------------------------------------------------------------------------------


def test_of_20_calls_one_message_is_sent(show, queue):
    """The button calls 20 times; one message is in the queue, and the page says so."""
    client = visitor()
    page = client.post(f"/shows/{show.pk}/tasks/copies/", follow=True).text
    assert "Called 20 times: 1 sent, 19 duplicates." in page
    assert queue.qsize() == 1
    sending = Sending.objects.get()
    assert sending.task_ids == [queue.get(timeout=1).headers["id"]]
    assert f"<code>{sending.task_ids[0]}</code>" in page
    assert "<strong>none yet</strong>" in page

    page = client.post(f"/shows/{show.pk}/tasks/copies/", follow=True).text
    assert "Called 20 times: 0 sent, 20 duplicates." in page
    assert Sending.objects.latest("pk").task_ids == sending.task_ids
    assert queue.qsize() == 0


def test_without_a_majority_the_page_tells_of_each_message(show, queue, nodes):
    """When nobody can tell duplicates, all are sent, and that is what the page counts."""
    nodes.down = {0, 1, 2}
    page = visitor().post(f"/shows/{show.pk}/tasks/copies/", follow=True).text
    assert "Called 20 times: 20 sent, 0 duplicates." in page
    assert "task id that the first call got" in page
    assert "Nobody can tell whether the lock is held." in page
    assert queue.qsize() == 20


# -- a killed process -----------------------------------------------------------------------------


def test_the_timeline_has_the_kill_and_the_take_over(show):
    """In order, with process ids and fences, and the seconds between the two beside the ttl."""
    trials.start_rehearsal(show)
    sending = Sending.objects.get()
    sending.at = NOON
    sending.save()
    common = {"show": show, "task_id": sending.task_ids[0], "worker": "celery@host"}
    at = [NOON + timedelta(seconds=each) for each in (0.1, 1.5, 4.0, 12.0)]
    first = Run.objects.create(pid=11, fence=3, began=at[0], killed=at[1], **common)
    client = visitor()
    with redlock(show.rehearsal_lock):
        page = client.get(f"/shows/{show.pk}/tasks/").text
    assert f"process {first.pid} was killed (SIGKILL)" in page
    assert "The lock expires in " in page

    Run.objects.create(pid=12, fence=4, began=at[2], ended=at[3], **common)
    page = client.get(f"/shows/{show.pk}/tasks/").text
    trial = trials.rehearsal(show)
    assert trial is not None
    assert [moment.text for moment in trial.timeline()] == [
        f"sent as {sending.task_ids[0]}",
        "started in process 11 with fence 3",
        "process 11 was killed (SIGKILL)",
        "started in process 12 with fence 4",
        "done in process 12",
    ]
    assert trial.take_overs() == [2.5]
    assert "2.5 s after the kill; ttl 3.0 s" in page
    assert "celery@host" not in page
    assert "The lock is free." in page


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process that a worker in this test may have started."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def asked(pids: list[int], task_id: str, pid: int) -> dict[str, Any]:
    """What a worker replies whose children have these ids."""
    pool = SimpleNamespace(info={"processes": pids})
    reply: dict[str, Any] = kill_run(
        SimpleNamespace(consumer=SimpleNamespace(pool=pool)), task_id, pid
    )
    return reply


@pytest.mark.parametrize("why", ["no child", "another task id", "another task", "itself"])
def test_a_worker_kills_nothing_else(child, monkeypatch, why):
    """Neither what is no child of it, nor a child that runs something else, nor itself."""
    pid = os.getpid() if why == "itself" else child.pid
    name = tasks.build_report.name if why == "another task" else tasks.rehearse.name
    running = SimpleNamespace(id="mine", name=name, worker_pid=pid)
    monkeypatch.setattr(worker_state, "active_requests", [running])
    pids = [1] if why == "no child" else [pid]
    task_id = "yours" if why == "another task id" else "mine"
    assert asked(pids, task_id, pid) == {"killed": None}
    assert child.poll() is None


def test_a_worker_kills_its_child_that_runs_the_rehearsal(child, monkeypatch):
    """By SIGKILL, and it replies at what time."""
    running = SimpleNamespace(id="mine", name=tasks.rehearse.name, worker_pid=child.pid)
    monkeypatch.setattr(worker_state, "active_requests", [running])
    assert asked([child.pid], "mine", child.pid)["killed"] > 0
    assert child.wait(10) == -signal.SIGKILL


# -- the verdict of the demo ----------------------------------------------------------------------

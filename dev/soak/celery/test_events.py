"""Signals that a real worker sends."""

from __future__ import annotations

from typing import Any

from tests.celery import project
from tests.celery.site import (
    GET,
    Site,
    end,
    new_key,
    wait_until_taken_for_lost,
)
from tests.support.waiting import eventually


def heard(site: Site, signal: str, key: str) -> list[dict[str, Any]]:
    """What receivers in the processes of workers wrote down."""
    return [note for note in site.notes(signal) if note["key"] == f"work:{key}"]


def test_a_real_worker_sends_signals(site):
    """Skipped, deferred, finished before; receivers that raise change nothing."""
    key, queue = new_key(), new_key()
    env = {"TEST_TELL": "1"}
    site.client.set(f"crash:recorded:{key}", 1)
    result = project.recorded.apply_async((key,), queue=queue)
    with site.worker(1, queue, lost_after=project.SOON, **env) as worker:
        site.begun(key)
        site.end_run(key)
        worker.wait(GET)
    assert result.state == "SUCCESS"
    wait_until_taken_for_lost(site, result.id)
    with site.worker(2, queue, lost_after=project.SOON, **env) as worker:
        (finished,) = eventually_heard(site, "task_finished_before", key)
        assert (finished["id"], finished["task"]) == (result.id, project.recorded.name)
        lasting = project.lasting.apply_async((key,), queue=queue)
        site.begun(key, times=2)
        skipped = project.skipping.apply_async((key, 0), queue=queue)
        assert skipped.get(timeout=GET)["skipped"] is True
        assert [note["id"] for note in heard(site, "task_skipped", key)] == [skipped.id]
        deferred = project.patient.apply_async((key, 0), queue=queue)
        eventually_heard(site, "task_deferred", key)
        site.enough(key)
        assert lasting.get(timeout=GET) == deferred.get(timeout=GET) == "done"
        assert {note["id"] for note in heard(site, "task_deferred", key)} == {deferred.id}
        end(worker)


def eventually_heard(site: Site, signal: str, key: str) -> list[dict[str, Any]]:
    """Wait until a signal was sent in a worker."""
    return eventually(lambda: heard(site, signal, key), within=GET, every=0.05)

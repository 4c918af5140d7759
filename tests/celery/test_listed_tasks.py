"""Tasks of real workers, as ``redlock_status`` and the admin's page list them."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import override_settings

from django_redlock.core.policy import Policy
from tests.support.waiting import eventually

from . import marked, project
from .site import (
    GET,
    Site,
    new_key,
)

pytestmark = pytest.mark.slow


def listed(key: str, *options: str) -> list[dict[str, Any]]:
    """The rows with this name, or of the task with this id, in JSON."""
    out = io.StringIO()
    call_command("redlock_status", *options, "--json", stdout=out)
    found = json.loads(out.getvalue())["aliases"]["default"]["locks"]
    return [row for row in found if key in (row["id"], row["name"])]


def states(*keys: str) -> list[str]:
    """What these are."""
    return [row["kind"] for key in keys for row in listed(key, "--finished")]


def test_a_queued_a_running_and_a_finished_task_are_listed(site: Site) -> None:
    """By name and id; what has ended without a record is in no list."""
    key, other, queue = new_key(), new_key(), new_key()
    waiting = marked.once.apply_async((other,), queue=queue)
    running = project.recorded.delay(key)
    site.begun(key)
    (task,) = listed(f"marked:{other}")
    assert (task["task"], task["id"], task["kind"]) == (marked.once.name, waiting.id, "queued")
    assert (task["on"], task["of"]) == (5, 5)
    assert 3500 < task["lowest"] <= task["highest"] <= 3600
    (task,) = listed(f"work:{key}")
    assert (task["task"], task["id"]) == (project.recorded.name, running.id)
    assert (task["kind"], task["on"]) == ("held", 5)
    site.end_run(key)
    assert running.get(timeout=GET) == "done"
    eventually(lambda: states(running.id) == ["finished"], within=GET)
    assert listed(running.id) == []
    (task,) = listed(running.id, "--finished")
    assert task["task"] == project.recorded.name
    assert task["on"] >= 3
    assert 3600 < task["highest"] <= 3660
    with site.worker(1, queue):
        site.begun(other)
        assert [task["kind"] for task in listed(f"marked:{other}")] == ["held"]
        site.end_run(other)
        assert waiting.get(timeout=GET) == "done"
    assert states(f"marked:{other}", waiting.id) == []


def mark(key: str) -> str:
    """The key of a mark."""
    return f"redlock:mark:{marked.once.name}:marked:{key}"


def test_a_message_that_comes_back_later_is_queued(site: Site) -> None:
    """Its mark does not say that it was deferred; the signal did."""
    key = new_key()
    first = marked.anew.delay(key)
    site.begun(key)
    second = marked.anew.delay(key)
    eventually(lambda: second.state == "RETRY", within=GET)
    found = {task["id"]: task["kind"] for task in listed(f"marked:{key}")}
    assert found == {first.id: "held", second.id: "queued"}
    site.end_run(key)
    site.begun(key, times=2)
    site.end_run(key)
    assert second.get(timeout=GET) == "done"


def test_without_an_index_a_queued_task_is_in_no_list(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Broken: publishers write their index elsewhere. The tests above see that it is missing."""
    key, queue = new_key(), new_key()
    with monkeypatch.context() as patch:
        patch.setattr(Policy, "marks", property(lambda self: f"{self.prefix}marks!"))
        marked.once.apply_async((key,), queue=queue)
    assert listed(f"marked:{key}") == []
    site.client.delete(queue)
    marked.once.unmark((key,))


def cleared(task_id: str, *words: str) -> str:
    """What the command prints, where each node has ten seconds to reply, which it counts."""
    out = io.StringIO()
    patiently = settings.REDLOCK["default"] | {"NODE_TIMEOUT": 10}
    with override_settings(REDLOCK={"default": patiently}):
        call_command("redlock_release", "--task", task_id, *words, stdout=out)
    return out.getvalue()


def test_the_mark_of_a_purged_message_is_cleared_by_its_id(site: Site) -> None:
    """Then the next message is sent; until that it is a duplicate."""
    key, queue = new_key(), new_key()
    lost = marked.once.apply_async((key,), queue=queue)
    site.client.delete(queue)  # as `celery purge` does
    assert marked.once.apply_async((key,), queue=queue).id == lost.id
    shown = cleared(lost.id, "--dry-run")
    # The message was sent when a majority had the mark.
    assert re.fullmatch(f"{marked.once.name} {lost.id}: queued, on [345] of 5 nodes\n", shown)
    assert states(f"marked:{key}") == ["queued"]
    assert cleared(lost.id, "--yes").endswith("\ncleared, 5 of 5 nodes have replied\n")
    assert states(f"marked:{key}") == []
    assert marked.once.apply_async((key,), queue=queue).duplicate is False
    marked.once.unmark((key,))
    site.client.delete(queue)
    with pytest.raises(CommandError, match="no task with the id"):
        cleared(lost.id, "--yes")


def test_a_record_is_cleared_by_its_id_and_a_run_is_left_alone(site: Site) -> None:
    """A copy of the message would run again; who runs is told to be taken its lock."""
    key = new_key()
    running = project.recorded.delay(key)
    site.begun(key)
    with pytest.raises(CommandError, match=f"runs and holds work:{key}: take that lock away"):
        cleared(running.id, "--yes")
    assert states(f"work:{key}") == ["held"]
    site.end_run(key)
    assert running.get(timeout=GET) == "done"
    eventually(lambda: states(running.id) == ["finished"], within=GET)
    assert "finished, on " in cleared(running.id, "--yes")
    assert states(running.id) == []


def test_what_goes_with_a_task_and_what_with_locks(site: Site) -> None:
    """The command says it, and does nothing."""
    for words in (
        ["--task", "x", "name"],
        [],
        ["--task", "x", "--now"],
        ["--task", "x", "--fence=1"],
    ):
        with pytest.raises(CommandError, match=r"names of locks, or --task|are for locks"):
            call_command("redlock_release", *words)

"""Tasks in the output of ``redlock_status``: which wait, run and have finished."""

from __future__ import annotations

import json

import pytest

from tests.support.hostile import HOSTILE
from tests.support.looked_at import A, B, queue, some_tasks

from .test_status import no_rich, status, words

__all__ = ["no_rich"]


def tasks(*args: str) -> list[list[str]]:
    """The rows of the table of tasks."""
    table = status(*args)[1].partition("\ntask ")[2].splitlines()[2:]
    return [words(line) for line in table if " of 5 " in line]


RUNNING = ["reports.sync", "account:7", "id-running", "5 of 5", "600.0", "running"]
QUEUED = ["reports.sync", "account:8", "id-queued", "5 of 5", "600.0", "queued"]
PARTIAL = ["reports.sync", "account:9", "id-partial", "2 of 5", "600.0", "partial"]
FINISHED = ["reports.sync", "-", "id-finished", "5 of 5", "600.0", "finished"]


def test_tasks_that_wait_and_run(memory):
    """A row for each, with its name, what it locks and its id; finished ones if asked for."""
    some_tasks(memory)
    assert tasks() == [RUNNING, QUEUED, PARTIAL]
    assert tasks("--finished") == [RUNNING, QUEUED, FINISHED, PARTIAL]
    assert not {A[:12], B[:12]} & set(status("--finished")[1].split())
    assert A[:12] not in status("--finished")[1]
    assert B[:12] not in status("--finished", "--json")[1]


@pytest.mark.usefixtures("no_rich")
def test_tasks_without_rich(memory):
    """The same rows in plain text."""
    some_tasks(memory)
    assert tasks("--finished") == [RUNNING, QUEUED, FINISHED, PARTIAL]


def test_without_tasks_nothing_is_said_of_them(memory):
    """The command prints no table of tasks; with ``--finished`` it says that there are none."""
    assert "task" not in status()[1]
    assert "No such task is queued or running, or has finished." in status("--finished")[1]
    memory.down = {0, 1, 2}
    assert "No such task" not in status("--finished")[1]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (["id-queued"], [QUEUED]),
        (["account:7"], [RUNNING]),
        (["reports.sync"], [RUNNING, QUEUED, PARTIAL]),
        (["reports.*"], [RUNNING, QUEUED, PARTIAL]),
        (["account:[78]", "id-partial"], [RUNNING, QUEUED, PARTIAL]),
        (["*-finished", "--finished"], [FINISHED]),
        (["sync"], []),
    ],
)
def test_tasks_are_asked_for_by_name_id_and_lock(memory, asked, found):
    """Whole, or by a pattern."""
    some_tasks(memory)
    assert tasks(*asked) == found


def test_the_name_of_a_task_is_no_free_lock(memory):
    """What is a task's name or id is not shown as a lock that nobody holds; other names are."""
    some_tasks(memory)
    out = status("reports.sync", "id-queued", "nobody")[1]
    assert [line.split()[0] for line in out.splitlines() if line.endswith("free")] == ["nobody"]


def test_more_tasks_than_the_limit(memory, monkeypatch):
    """What is left out is told."""
    some_tasks(memory)
    assert tasks("--limit", "2") == [RUNNING, QUEUED]
    assert "1 more tasks; --limit shows more." in status("--limit", "2")[1]
    monkeypatch.setattr("django_redlock.inspection.index.PAGE", 1)
    out = status("--limit", "1")[1]
    assert "More names are kept than were looked at: there may be more tasks." in out


def test_tasks_in_json(memory):
    """The keys are those of the documentation; finished ones if asked for."""
    some_tasks(memory)
    found = json.loads(status("--json")[1])["aliases"]["default"]
    assert found["tasks_truncated"] is False
    assert [task["state"] for task in found["tasks"]] == ["running", "queued", "partial"]
    assert found["tasks"][1] == {
        "task": "reports.sync",
        "id": "id-queued",
        "state": "queued",
        "names": ["account:8"],
        "on": 5,
        "of": 5,
        "lowest": 600,
        "highest": 600,
    }
    found = json.loads(status("--json", "--finished", "--limit", "2")[1])["aliases"]["default"]
    assert found["tasks_truncated"] is True
    found = json.loads(status("--json", "--finished")[1])["aliases"]["default"]
    assert [task["id"] for task in found["tasks"] if task["state"] == "finished"] == ["id-finished"]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_tasks_are_text(memory, text):
    """What is invisible is escaped, and a row is one line."""
    queue(memory, "reports.sync", text, "id-queued", *range(5))
    out = status()[1]
    assert not {"\u202e", "\x1b", "\t", "\r"} & set(out)
    assert max(map(len, out.splitlines())) <= 120
    assert json.loads(status("--json")[1])["aliases"]["default"]["tasks"][0]["names"] == [text]

"""Tasks on the admin's page: which wait, run and have finished."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.test import Client

from django_redlock import admin, conf
from django_redlock.core.reasons import printable
from django_redlock.inspection import Task, list_tasks, rows
from tests.support.hostile import HOSTILE
from tests.support.looked_at import A, B, finish, put, queue, some_tasks, stop_clocks

from .test_admin import Reader, browser, harmless, look

pytestmark = pytest.mark.django_db


@pytest.fixture
def viewer() -> Client:
    """The browser of somebody who may see the locks and nothing else."""
    return browser("view_lock")


def tasks(page: str) -> list[list[str]]:
    """The rows of the table of tasks."""
    lines = [[cell.strip() for cell in cells] for cells in Reader(page).rows]
    heads = ["Task", "Is", "On", "Locks", "Id", "Seconds left"]
    return lines[lines.index(heads) + 1 :] if heads in lines else []


RUNNING = ["reports.sync", "running", "5 of 5", "account:7", "id-running", "600.0"]
QUEUED = ["reports.sync", "queued", "5 of 5", "account:8", "id-queued", "600.0"]
PARTIAL = ["reports.sync", "partial", "2 of 5", "account:9", "id-partial", "600.0"]
FINISHED = ["reports.sync", "finished", "5 of 5", "–", "id-finished", "600.0"]


def test_tasks_that_wait_and_run(memory, viewer):
    """A row for each; a link shows finished ones, and another one hides them."""
    some_tasks(memory)
    page = look(viewer)
    assert tasks(page) == [RUNNING, QUEUED, PARTIAL]
    (link,) = (each for each in Reader(page).links if "finished" in each)
    page = viewer.get(f"/admin/django_redlock/lockkey/{link}").content.decode()
    assert tasks(page) == [RUNNING, QUEUED, FINISHED, PARTIAL]
    assert not any(nonce[:12] in page for nonce in (A, B))
    assert "?" in {each for each in Reader(page).links if "without" not in each}


def test_no_task(memory, viewer):
    """It is said, where Celery is installed."""
    assert "No task is queued or running." in look(viewer)
    assert "No task is queued or running, or has finished." in look(viewer, finished="on")
    memory.down = {0, 1, 2}
    assert "No task" not in look(viewer)


def test_without_celery_nothing_is_said_of_tasks(memory, viewer, monkeypatch):
    """Unless there are some: of workers on other machines."""
    monkeypatch.setattr(admin, "find_spec", lambda _: None)
    assert "<h2>Tasks" not in look(viewer)
    some_tasks(memory)
    assert "<h2>Tasks" in look(viewer)


@pytest.mark.parametrize(
    ("q", "found"),
    [
        ("QUEUED", [QUEUED]),
        ("account:[79]", [RUNNING, PARTIAL]),
        ("reports", [RUNNING, QUEUED, PARTIAL]),
        ("nothing", []),
    ],
)
def test_a_search_finds_tasks(memory, viewer, q, found):
    """By a part of the name, of the id or of a lock, or by a pattern."""
    some_tasks(memory)
    page = look(viewer, q=q)
    assert tasks(page) == found
    assert ("No such task is queued or running." in page) == (not found)


def test_pages_of_tasks(memory, viewer):
    """Fifty to a page; the locks have pages of their own."""
    for number in range(120):
        queue(memory, "sync", f"account:{number:03}", f"id-{number:03}", *range(5))
        put(memory, f"lock:{number:03}", f"{A}:5:web-1", *range(5))
    page = look(viewer)
    assert len(tasks(page)) == 50
    assert "120 tasks" in Reader(page).words
    assert {"?t=2", "?p=2"} <= set(Reader(page).links)
    last = look(viewer, t="3", p="2")
    assert [row[4] for row in tasks(last)] == [f"id-{number:03}" for number in range(100, 120)]
    assert {"?p=2&t=2", "?p=3&t=3"} <= set(Reader(last).links)


def test_more_tasks_than_the_page_reads(memory, viewer, monkeypatch):
    """It says so."""
    some_tasks(memory)
    monkeypatch.setattr("django_redlock.admin.LIMIT", 2)
    assert "1 more tasks: search for less." in look(viewer)
    monkeypatch.setattr("django_redlock.inspection.index.PAGE", 1)
    assert "More names are kept than were looked at" in look(viewer)


@contextmanager
def counted() -> Iterator[list[Any]]:
    """The requests to the nodes."""
    group, requests = conf.backend("default").group, []
    ask = group.ask

    def counting(request: Any) -> Any:
        requests.append(request)
        return ask(request)

    group.ask = counting  # type: ignore[method-assign,assignment]
    try:
        yield requests
    finally:
        del group.ask


@pytest.mark.parametrize("broken", [False, True], ids=["", "broken"])
def test_the_number_of_requests_does_not_grow_with_tasks(memory, viewer, broken, monkeypatch):
    """Each index is one request; broken: each row asks again."""
    asked, row = [], rows.task

    def asking(task: Task) -> Any:
        list_tasks(conf.backend("default"), frozenset(range(5)))
        return row(task)

    if broken:
        monkeypatch.setattr(rows, "task", asking)
    for count in (1, 40):
        for number in range(count):
            queue(memory, "sync", f"account:{number}", f"id-{number}", *range(5))
            finish(memory, "sync", f"ended-{number}", *range(5))
        with counted() as requests:
            assert len(tasks(look(viewer, finished="on"))) in (2 * count, 50)
        asked.append(len(requests))
    assert (asked[0] == asked[1]) == (not broken)
    assert broken or asked == [6, 6]  # locks, data, memory, and three indexes of tasks


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("where", ["task", "name"])
def test_hostile_tasks_are_text(memory, viewer, text, where):
    """The page has the elements that it has for a harmless task."""
    stop_clocks(memory)
    queue(memory, "task", "name", "id", *range(5))
    elements = harmless(look(viewer))
    for node in memory.nodes:
        node.marks.clear()
    task, name = (text.replace(":", ""), "name") if where == "task" else ("task", text)
    queue(memory, task, name, "id", *range(5))
    page = look(viewer)
    assert harmless(page) == elements
    (row,) = tasks(page)
    assert (row[0], row[3]) == (printable(task).strip(), printable(name).strip())

"""The examples of "Lock a Celery task" run as they stand, in a project of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.test_docs import ROOT, Block, Reader, blocks, reader

PAGE = ROOT / "docs/how-to/celery.md"
SETTINGS = """\
INSTALLED_APPS += ["django_redlock"]
REDLOCK = {"default": {"NODES": ["memory://a", "memory://b", "memory://c"]}}
CELERY_BROKER_URL = "memory://"
"""
BEFORE = """\
import threading
from contextlib import contextmanager

import mysite.celery
from django_redlock import LockTaken, redlock

@contextmanager
def held(name):  # by somebody else
    thread = threading.Thread(target=lambda: taken.append(redlock(name).acquire()))
    taken = []
    thread.start()
    thread.join()
    yield
    taken.pop().release()

def refused(call):
    try:
        call()
    except LockTaken:
        return True
"""


@pytest.fixture
def someone(tmp_path: Path) -> Iterator[Reader]:
    """Somebody with a project that has all files of the page."""
    with reader(tmp_path, "mysite.settings") as typing:
        typing.run("django-admin startproject mysite .")
        typing.write(Block("python", "mysite/settings.py", SETTINGS))
        for block in blocks(PAGE):
            assert block.file, "an example without a file would run nowhere"
            typing.write(block)
        yield typing


def test_the_tasks_of_the_page_run_and_are_locked(someone):
    """Each task runs, and while its name is held, it does what the page says."""
    someone.type(BEFORE)
    someone.type("""\
import careful_tasks, chord_tasks, more_tasks, policies, tasks

assert tasks.build_report(7) is None
with held("report:7"):
    assert tasks.build_report(7)["skipped"]
    assert tasks.build_report.apply((7,)).get()["skipped"]
    assert tasks.build_report(8) is None

imported = mysite.celery.app.register_task(more_tasks.Import())
for task, name in [(imported, "import:3"), (more_tasks.export, "export:3")]:
    assert task(3) is None
    with held(name):
        assert task(3)["skipped"]

with held("report:7"):
    results = ["a", tasks.build_report(7), {"b": 1}]
assert chord_tasks.summarise(results) == ["a", {"b": 1}]

assert policies.count_stock("A-1") is None
with held("stock:A-1"):
    assert refused(lambda: policies.count_stock("A-1"))
assert careful_tasks.send_invoice(5) is None
print("done")
""")
    assert someone.seen.endswith("done\n")


def test_the_app_of_the_page_is_that_of_every_thread(someone):
    """In a thread a shared task has the project's broker, even if it was looked at too early."""
    someone.type("""\
import threading

import tasks
assert tasks.build_report.app.main == "default"
import mysite.celery

found = []
look = lambda: found.append((tasks.build_report.app.main, tasks.build_report.app.conf.broker_url))
thread = threading.Thread(target=look)
thread.start()
thread.join()
print(*found[0])
""")
    assert someone.seen.endswith("mysite memory://\n")

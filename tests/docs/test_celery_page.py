"""The examples of the pages about Celery run as they stand, in one project of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from django_redlock import redlock
from django_redlock.testing import EmbeddedNode
from tests.celery.site import end
from tests.docs.pages import ROOT, Block, Reader, blocks, reader
from tests.support.waiting import eventually

NAMES = ("celery-quick-start", "celery", "celery-in-production")
PAGES = [ROOT / f"docs/how-to/{name}.md" for name in NAMES]
IMPORT = "mysite/__init__.py"  # by which a web process comes to know the Celery app
IN_MEMORY = """\
REDLOCK = {"default": {"NODES": ["memory://a", "memory://b", "memory://c"]}}
CELERY_BROKER_URL = "memory://"
CELERY_RESULT_BACKEND = "cache+memory://"
"""
BEFORE = """\
import threading
from contextlib import contextmanager

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
LONG = 60.0  # seconds for what takes a second on a machine that has the time


def commands() -> list[str]:
    """The lines of the pages' consoles, in order."""
    found = [block for page in PAGES for block in blocks(page)]
    consoles = [block.text for block in found if block.language == "console"]
    return [line.removeprefix("$ ") for text in consoles for line in text.splitlines()]


def written() -> list[Block]:
    """The examples of the pages, those in their lists too, in the order of a reader.

    Two pages begin with the same tasks, which are written once.
    """
    found = [block for page in PAGES for block in blocks(page, nested=True)]
    return list(dict.fromkeys(block for block in found if block.language == "python"))


def follow(someone: Reader, settings: str, *, without: str = "") -> None:
    """Make the project of the pages: its commands, its files, and the addresses of one's own."""
    ours = "django-admin startproject", "python manage.py startapp"
    someone.begin(*(command for command in commands() if command.startswith(ours)))
    for block in written():
        assert block.file, "an example without a file would run nowhere"
        if block.file != without:
            someone.write(block)
    someone.write(Block("python", "mysite/settings.py", settings))


# -- every task of the page -----------------------------------------------------------------------


@pytest.fixture
def someone(tmp_path: Path) -> Iterator[Reader]:
    """Somebody with an empty directory."""
    with reader(tmp_path, "mysite.settings") as typing:
        yield typing


def test_the_tasks_of_the_page_run_and_are_locked(someone):
    """Each task runs, and while its name is held, it does what the page says."""
    follow(someone, IN_MEMORY)
    someone.type(BEFORE)
    someone.type("""\
from reports import tasks

assert tasks.build_report(7) == "report 7"
with held("report:7"):
    assert tasks.build_report(7)["skipped"]
    assert tasks.build_report.apply((7,)).get()["skipped"]
    assert tasks.build_report(8) == "report 8"

for task, name in [(tasks.import_shop, "import:3"), (tasks.export_shop, "export:3")]:
    assert task(3) == "shop 3"
    with held(name):
        assert task(3)["skipped"]
assert tasks.build_index(3) == "index 3"

assert tasks.index(3) == "indexed 3"
assert tasks.fetch(3) == "account 3"
tasks.saved(None, type("Row", (), {"pk": 9}))
assert tasks.index.delay(9).duplicate

assert tasks.export_tenant(3) == "tenant 3"
assert tasks.send_digest(3) == "digest 3"
assert tasks.send_digest(3)["skipped"]  # for 20 hours

assert tasks.sync_account(3) == "account 3"
assert tasks.poll(3) == "shop 3"
first = tasks.sync_account.delay(3)
assert not first.duplicate
second = tasks.sync_account.delay(3)
assert (second.duplicate, second.id) == (True, first.id)

from django.test import RequestFactory
from reports import views
assert views.clear(RequestFactory().get("/"), 3).status_code == 200
assert not tasks.sync_account.delay(3).duplicate

from types import SimpleNamespace
from celery.signals import after_task_publish
sent = []
after_task_publish.connect(lambda **_: sent.append(1), weak=False)
for _ in range(3):
    tasks.saved(None, SimpleNamespace(pk=7))  # debounced
assert len(sent) == 1

assert tasks.count_stock("A-1") is None
with held("stock:A-1"):
    assert refused(lambda: tasks.count_stock("A-1"))

from django.conf import settings
(entry,) = settings.CELERY_BEAT_SCHEDULE.values()
nightly = tasks.nightly.app.tasks[entry["task"]]
assert nightly.apply().get() == "the nightly report"
assert nightly.apply().get()["skipped"]  # of the other beat, a moment later
print("done")
""")
    assert someone.seen.endswith("done\n")


# -- what is wrong with a task --------------------------------------------------------------------

WRONG = """
@shared_task(time_limit=60)
@locked_task("short", ttl=10, renew=False)
def short():
    pass


@shared_task(acks_late=True, reject_on_worker_lost=True)
@locked_task("endless", max_hold=1_000_000)
def endless():
    pass


@shared_task(acks_late=True, reject_on_worker_lost=False)
@locked_task("dropped")
def dropped():
    pass
"""
SHARED = """
from celery import shared_task

from django_redlock.celery import LockedTask, locked_task


@shared_task
@locked_task("report:{report_id}")
def build_report(report_id):
    pass


@shared_task(base=LockedTask)
@locked_task("sync:{account_id}", mode="until_finished")
def sync_account(account_id):
    pass
"""
FOUND = {
    "django_redlock.W006": "The task reports.tasks.short may run for 60 s",
    "django_redlock.W007": "The task reports.tasks.endless may hold its lock for 1e+06 s",
    "django_redlock.W009": "The task reports.tasks.dropped has acks_late",
}
# A broker that redelivers, and is not asked.
ELSEWHERE = """
CELERY_BROKER_URL = "redis://127.0.0.1:1"
"""


def told(text: str) -> dict[str, str]:
    """Which of these a text tells, under their ids."""
    return {
        name: said
        for name, said in FOUND.items()
        if re.search(rf"{name}\W+{re.escape(said)}", text)
    }


def checked(someone: Reader) -> str:
    """What ``manage.py check`` warns of; in a process of its own."""
    command = [sys.executable, "manage.py", "check"]
    ran = subprocess.run(
        command, cwd=someone.home, env=someone.environment, capture_output=True, check=False
    )
    said = ran.stderr.decode()
    assert ran.returncode == 0, said
    assert "Traceback" not in said
    return said


def change(someone: Reader, file: str, old: str, new: str) -> None:
    """Put a text in the place of another one."""
    path = someone.home / file
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_check_finds_nothing_wrong_with_the_tasks_of_the_page(someone):
    """Nor where the settings that the page names last are still missing, with a Redis broker."""
    follow(someone, IN_MEMORY)
    broker = 'CELERY_BROKER_URL = "redis://127.0.0.1:1"\n'
    broker += "CELERY_TASK_ACKS_LATE = CELERY_TASK_REJECT_ON_WORKER_LOST = False\n"
    broker += "CELERY_BROKER_TRANSPORT_OPTIONS = {}\n"
    someone.write(Block("python", "mysite/settings.py", broker))
    assert "no issues" in someone.run("python manage.py check")


def test_check_finds_what_is_wrong_with_tasks_that_nobody_has_imported(someone):
    """The project of the page imports its tasks when a view needs one; the check is before."""
    follow(someone, IN_MEMORY)
    assert "no issues" in someone.run("python manage.py check")
    someone.write(Block("python", "reports/tasks.py", WRONG))
    someone.write(Block("python", "mysite/settings.py", ELSEWHERE))
    assert told(checked(someone)) == FOUND


def test_check_finds_tasks_without_the_app_of_the_project(someone):
    """The import in ``mysite/__init__.py`` is forgotten: a web server has them in Celery's own."""
    follow(someone, IN_MEMORY, without=IMPORT)
    (someone.home / "reports/tasks.py").write_text(SHARED)
    (someone.home / IMPORT).write_text("")
    said = " ".join(checked(someone).split())
    assert "W027) The task reports.tasks.build_report and 1 more is imported by" in said
    assert "Write 'from .celery import app as celery_app' in mysite/__init__.py." in said
    (given,) = [block for block in written() if block.file == IMPORT]
    someone.write(given)
    assert "no issues" in someone.run("python manage.py check")


@pytest.mark.slow
@pytest.mark.parametrize("found_by", ["related_name", "imports", "include", "nobody"])
def test_check_finds_tasks_wherever_a_worker_finds_them(someone, found_by):
    """Under another name, by a setting, by an argument; and where no other process imports them."""
    follow(someone, IN_MEMORY)
    someone.write(Block("python", "reports/tasks.py", WRONG))
    someone.write(Block("python", "mysite/settings.py", ELSEWHERE))
    (someone.home / "reports/views.py").write_text("")
    (someone.home / "mysite/urls.py").write_text("urlpatterns = []\n")
    if found_by == "nobody":
        (someone.home / IMPORT).write_text("")
        assert told(checked(someone)) == FOUND
        return
    (someone.home / "reports/tasks.py").rename(someone.home / "reports/jobs.py")
    if found_by == "related_name":
        change(someone, "mysite/celery.py", "tasks()", 'tasks(related_name="jobs")')
    if found_by == "imports":
        text = "CELERY_IMPORTS = ['reports.jobs']\n"
        someone.write(Block("python", "mysite/settings.py", text))
    if found_by == "include":
        change(someone, "mysite/celery.py", '"mysite")', '"mysite", include=["reports.jobs"])')
    said = checked(someone).replace("reports.jobs", "reports.tasks")
    assert told(said) == FOUND


def test_the_check_of_tasks_leaves_logging_alone(someone):
    """Celery would call django.setup() again, which disables loggers that were made since."""
    follow(someone, IN_MEMORY)
    someone.type("""\
import logging

from django.core.checks import run_checks
from django.test.utils import override_settings

logger = logging.getLogger("reports.own")
with override_settings(LOGGING={"version": 1}):
    assert run_checks() == []
assert not logger.disabled
import sys
assert "reports.tasks" in sys.modules
print("done")
""")
    assert someone.seen.endswith("done\n")


@pytest.mark.slow
def test_a_worker_says_at_its_start_what_is_wrong_with_its_tasks(someone, addresses):
    """Celery runs the checks and shows nothing."""
    follow(someone, addresses)
    someone.write(Block("python", "reports/tasks.py", WRONG))
    with worker(someone):
        assert told((someone.home / "celery.log").read_text()) == FOUND


# -- the whole of it, over HTTP -------------------------------------------------------------------


@pytest.fixture
def addresses(patient_nodes: Any) -> Iterator[str]:
    """The settings that name a real broker and real nodes; this process locks there as well."""
    locks = patient_nodes.settings(MAX_TTL=60, NODE_TIMEOUT=10, RESTART_GUARD=False)
    with ExitStack() as stack:
        broker = EmbeddedNode()
        stack.callback(broker.close)
        broker.start()
        stack.enter_context(override_settings(REDLOCK={"default": locks}))
        yield (
            f"CELERY_BROKER_URL = CELERY_RESULT_BACKEND = {broker.url!r}\n"
            f"REDLOCK = {{'default': {locks!r}}}\n"
        )


@contextmanager
def program(someone: Reader, command: str, ready: str) -> Iterator[re.Match[str]]:
    """Start a command of the page, and wait until its output says that it is ready."""
    name, *words = command.split()
    log = someone.home / f"{'beat' if 'beat' in words else name}.log"

    def said() -> Any:
        return re.search(ready, log.read_text())

    # What the page does not say is not there: its files name the settings, its commands the place.
    told = {"DJANGO_SETTINGS_MODULE", "PYTHONPATH"}
    environment = {key: value for key, value in someone.environment.items() if key not in told}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name(name)), *words],
            cwd=someone.home,
            env=environment,
            stdout=out,
            stderr=out,
            start_new_session=True,
        )
    try:
        yield eventually(said, within=LONG, every=0.05)
    except BaseException as error:
        error.add_note(f"{command} said:\n{log.read_text()}")
        raise
    finally:
        end(process)


def worker(someone: Reader) -> Any:
    """The worker of the page."""
    (command,) = (each for each in commands() if each.startswith("celery -A mysite worker"))
    return program(someone, command, r"celery@\S+ ready")


def beat(someone: Reader) -> Any:
    """The beat of the page; it keeps its times in a file beside manage.py."""
    (command,) = (each for each in commands() if each.startswith("celery -A mysite beat"))
    return program(someone, command, r"beat: Starting")


def web(someone: Reader) -> Any:
    """The web server of the page, at a port that is free; its address is matched."""
    (command,) = (each for each in commands() if each.startswith("gunicorn "))
    return program(someone, f"{command} --bind 127.0.0.1:0", r"Listening at: (http://\S+)")


def ask(address: str) -> Any:
    """What an address answers, as JSON."""
    with urllib.request.urlopen(address, timeout=LONG) as answer:  # noqa: S310 - our own server
        return json.load(answer)


def finished(site: str, task: str) -> Any:
    """What the page's view shows of a task, when it has succeeded."""
    shown = ask(f"{site}/results/{task}")
    return shown if shown["state"] == "SUCCESS" else None


def result_of(site: str, task: str) -> Any:
    """Wait until a task has succeeded; its result."""
    return eventually(partial(finished, site, task), within=LONG, every=0.05)["result"]


@pytest.mark.slow
def test_after_a_purge_the_command_of_the_page_removes_the_mark(someone, addresses):
    """Until then a message is a duplicate of one that nobody has any more."""
    assert "`manage.py redlock_release --task ID`" in PAGES[-1].read_text()
    follow(someone, addresses)
    send = "print(tasks.sync_account.delay(3).duplicate)"
    someone.type(f"from reports import tasks; {send}")
    assert "1 message" in someone.run("python -m celery -A mysite purge --force")
    someone.type(send)
    assert someone.seen == "False\nTrue\n"
    shown = json.loads(someone.run("python manage.py redlock_status --json"))
    (task,) = shown["aliases"]["default"]["locks"]
    assert task["kind"] == "queued"
    someone.run(f"python manage.py redlock_release --task {task['id']} --yes")
    someone.type(send)
    assert someone.seen == "False\nTrue\nFalse\n"


NOW = """
CELERY_BEAT_SCHEDULE["nightly"]["schedule"] = 1.0
"""


@pytest.mark.slow
def test_the_beat_of_the_page_starts_its_task_once_in_a_minute(someone, addresses):
    """Its first message runs. Those of the seconds after it, as of another beat, do not."""
    follow(someone, addresses + NOW)
    log = someone.home / "celery.log"
    with worker(someone), beat(someone):
        eventually(lambda: log.read_text().count("'skipped': True") > 1, within=LONG, every=0.05)
        assert log.read_text().count("'the nightly report'") == 1


TICK = """
CELERY_BEAT_SCHEDULE = {
    "tick": {"task": "reports.tasks.sync_account", "schedule": 0.2, "args": (7,)},
}
"""


@pytest.mark.slow
def test_a_beat_whose_messages_nobody_begins_says_so(someone, addresses):
    """A check names the entry before, beat logs it, and the command that it names lets one go."""
    follow(someone, addresses + TICK)
    said = " ".join(checked(someone).split())
    assert "W028) The task reports.tasks.sync_account is sent by beat every 0.2 s" in said
    assert "Give the entry 'tick' 'options': {'expires': …} of less than 0.2 s" in said
    told = (
        r"10 messages of reports\.tasks\.sync_account .*'manage\.py (redlock_release --task (.*?))'"
    )
    log = someone.home / "beat.log"

    def waiting() -> str:
        """The message for which the last one was not sent."""
        found: str = re.findall(r"is not sent: (\S+) waits", log.read_text())[-1]
        return found

    with beat(someone):
        ((command, first),) = eventually(lambda: re.findall(told, log.read_text()), within=LONG)
        assert waiting() == first
        someone.run(f"python manage.py {command} --yes")
        eventually(lambda: waiting() != first, within=LONG)


@pytest.mark.slow
def test_a_view_of_the_page_sends_and_its_worker_works(someone, addresses):
    """The page's files, worker and web server: what a view sends is done, locked, and shown."""
    follow(someone, addresses)
    with worker(someone), web(someone) as listening:
        site = listening[1]
        sent = [ask(f"{site}/reports/{number}/build")["task"] for number in range(8)]
        for number, task in enumerate(sent):
            assert result_of(site, task) == f"report {number}"
        with redlock("report:7"):
            skipped = result_of(site, ask(f"{site}/reports/7/build")["task"])
        assert skipped["skipped"] is True

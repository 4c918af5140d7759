"""A site with a database in a file, whose workers are processes: ``manage.py db_worker``."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.own_process import ROOT
from tests.support.processes import process
from tests.support.waiting import eventually

LONG = 120.0  # seconds for what many processes do
TABLE = "django_tasks_database_dbtaskresult"


class Event(NamedTuple):
    """What a process has noted."""

    event: str
    key: str
    pid: int
    at: float


def settings(
    database: Path,
    log: Path,
    locks: dict[str, object],
    *,
    queue: str = "",
    backend: str = "django_tasks_db.DatabaseBackend",
    apps: Sequence[str] = ("django_tasks_db",),
    broker: str = "",
    options: dict[str, Any] | None = None,
) -> str:
    """What ``tests.tasks.project`` makes settings of."""
    site = {"database": str(database), "log": str(log), "locks": locks, "queue": queue}
    site |= {"backend": backend, "apps": apps, "broker": broker, "options": options or {}}
    return json.dumps(site)


class Site:
    """The site.

    Args:
        folder: for its files.
        locks: the alias of its locks.
        apart: whether the tasks have a database of their own.
    """

    def __init__(self, folder: Path, locks: dict[str, object], *, apart: bool = False) -> None:
        self.folder, self.locks = folder, locks
        self.log = folder / "events.log"
        self.log.touch()
        self._database = folder / "db.sqlite3"
        database, queue = self._database, ""
        if apart:
            self._database = folder / "queue.sqlite3"
            queue = str(self._database)
        site = settings(database, self.log, locks, queue=queue)
        self.env = os.environ | {
            "DJANGO_SETTINGS_MODULE": "tests.tasks.project",
            "PYTHONPATH": str(ROOT),
            "TASKS_SITE": site,
        }
        self.killed: dict[int, float] = {}
        self._started = 0
        for each in ("other", "default") if apart else ("default",):  # migrations follow the router
            self.run("-m", "django", "migrate", "--verbosity", "0", "--database", each)
        self.sql("PRAGMA journal_mode=WAL")

    def run(self, *command: str) -> list[str]:
        """Run a program of the site to its end; the lines that it prints."""
        done = self.start(*command)
        said, _ = done.communicate(timeout=LONG)
        assert done.returncode == 0, said
        return said.split()

    def start(self, *command: str) -> subprocess.Popen[str]:
        """Start a program of the site."""
        return subprocess.Popen(
            [sys.executable, *command], env=self.env, cwd=ROOT, stdout=subprocess.PIPE, text=True
        )

    @contextmanager
    def worker(self) -> Iterator[tuple[int, str]]:
        """A worker: its process and its name."""
        self._started += 1
        name = f"worker-{self._started}"
        command = [sys.executable, "-m", "django", "db_worker", "--worker-id", name]
        command += ["--interval", "0.05", "--no-startup-delay", "--no-reload"]
        with process(command, self.env, self.folder / f"{name}.log") as pid:
            yield pid, name

    def kill(self, pid: int, name: str, at: float) -> None:
        """Kill a worker; what it was running is made ready, as who runs the site does."""
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: _is_gone(pid), within=LONG, what="a killed worker")
        self.killed[pid] = at
        self.sql(
            f"UPDATE {TABLE} SET status = 'READY' "  # noqa: S608
            "WHERE status = 'RUNNING' AND worker_ids LIKE ?",
            [f"%{name}%"],
        )

    def sql(self, statement: str, values: Sequence[Any] = ()) -> list[Any]:
        """Ask the database of the site."""
        with closing(sqlite3.connect(self._database, timeout=60)) as database, database:
            return database.execute(statement, values).fetchall()

    def unfinished(self) -> int:
        """How many tasks wait or run."""
        ((count,),) = self.sql(
            f"SELECT COUNT(*) FROM {TABLE} WHERE status IN ('READY', 'RUNNING')"  # noqa: S608
        )
        return int(count)

    def events(self) -> list[Event]:
        """What has been noted, in order."""
        lines = self.log.read_text(encoding="utf-8").splitlines()
        return sorted((Event(**json.loads(line)) for line in lines), key=lambda each: each.at)


def _is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2][1] == "Z"
    except FileNotFoundError:
        return True


def faults(events: Sequence[Event], killed: dict[int, float], *, over: bool = True) -> list[str]:
    """What is wrong with a history: two bodies of a key at a time, or an asker without a run.

    Args:
        events: what has been noted.
        killed: the processes that were killed, and when at the latest.
        over: whether all tasks are; otherwise some askers may still get their run.
    """
    found: list[str] = []
    running: dict[str, Event] = {}
    begun: dict[str, float] = defaultdict(float)  # when the last body began that has ended
    asked: dict[str, float] = {}
    for each in events:
        before = running.get(each.key)
        if each.event == "asked":
            asked[each.key] = each.at
        elif each.event == "begun":
            if before is not None and killed.get(before.pid, float("inf")) > each.at:
                found.append(f"{each.key}: {each} while {before}")
            running[each.key] = each
        elif before is not None and before.pid == each.pid:
            begun[each.key] = max(begun[each.key], before.at)
            del running[each.key]
    lost = [f"{key} is lost" for key, at in asked.items() if begun[key] < at]
    return found + lost * over

"""Django in a process of its own, and how the test and that process talk: a line of JSON each."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DATABASE, LOCKS = "FENCING_DATABASE", "FENCING_LOCKS"
WITHIN = 60.0  # seconds for an answer, on a busy machine


def environment(database: Mapping[str, Any], locks: Mapping[str, Any]) -> dict[str, str]:
    """What such a process is told of its database and its nodes."""
    return {**os.environ, DATABASE: json.dumps(database), LOCKS: json.dumps(locks)}


def set_up() -> None:
    """Set Django up as ``environment`` says; for the process."""
    import django
    from django.conf import settings

    from tests.support.databases import use_drivers

    use_drivers()
    settings.configure(
        DATABASES={"default": json.loads(os.environ[DATABASE])},
        REDLOCK={"default": json.loads(os.environ[LOCKS])},
        INSTALLED_APPS=["django_redlock"],
        DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    )
    django.setup()


def of_tests() -> None:
    """Set Django up as for the tests; for a command that is none."""
    import django

    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    django.setup()


def say(what: str, **more: Any) -> None:
    """Tell the test, with the time; for the process."""
    print(json.dumps({"what": what, "at": time.monotonic()} | more), flush=True)


def heard() -> Iterator[dict[str, Any]]:
    """What the test says, until it ends; for the process."""
    while line := sys.stdin.readline():
        yield json.loads(line)


class Process:
    """Such a process, as the test has it."""

    def __init__(self, module: str, env: Mapping[str, str], log: Path) -> None:
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", module],
                cwd=ROOT,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._log = log
        threading.Thread(target=self._listen, daemon=True).start()

    def tell(self, **what: Any) -> None:
        """Send a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def hear(self, *expected: str, within: float = WITHIN) -> dict[str, Any]:
        """Return the next line, which must be one of these.

        Raises:
            queue.Empty: there is none in so many seconds.
        """
        try:
            said = self._said.get(timeout=within)
        except queue.Empty:
            assert within < WITHIN, self._log.read_text()[-3000:]
            raise
        assert said["what"] in expected, f"{said}: {self._log.read_text()[-3000:]}"
        return said

    def stop(self) -> None:
        """Let it do nothing, until ``go_on``; return when it does nothing."""
        os.kill(self._process.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        """Undo ``stop``."""
        os.kill(self._process.pid, signal.SIGCONT)

    def end(self) -> None:
        """Kill it."""
        self._process.kill()
        with self._process:
            pass

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.put(json.loads(line))
        self._said.put({"what": "end"})


@contextmanager
def started(
    count: int, module: str, env: Mapping[str, str], folder: Path
) -> Iterator[list[Process]]:
    """So many of them, which end with the block."""
    there: list[Process] = []
    try:
        for number in range(count):
            there.append(Process(module, env, folder / f"{number}.log"))
            there[-1].hear("ready")
        yield there
    finally:
        for each in there:
            each.end()

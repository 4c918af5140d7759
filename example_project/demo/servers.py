"""Run the site's two servers, as child processes: a Celery worker and a web server.

Each has a process group of its own, so that Ctrl-C in the terminal is for the demo alone. Each
writes into a log file, which the demo shows if the server ends by itself.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from http import HTTPStatus
from pathlib import Path

from . import endings
from .browser import Browser

HOST = "127.0.0.1"
START_SECONDS = 180.0
END_SECONDS = 8.0
LINES = 40  # of a log that are shown
ERROR = "Internal Server Error"  # what Django writes for each 500
# Six children of the worker: reports may take four of them.
WORKER = """
    celery -A example_project.celery worker --pool prefork --concurrency 6
    --loglevel WARNING --without-gossip --without-mingle --without-heartbeat
"""
WEB = """
    gunicorn example_project.wsgi --workers 4 --threads 8
    --no-control-socket --graceful-timeout 3 --log-level warning --bind fd://{}
"""


class ServerError(Exception):
    """A server does not start, or has ended; the message has the logs' last lines."""


class Servers:
    """Both; `url` is where the site is."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.url = ""

    def start(self) -> None:
        with socket.create_server((HOST, 0), backlog=64) as listener:
            self.url = f"http://{HOST}:{listener.getsockname()[1]}/"
            self._start("worker", WORKER)
            self._start("web", WEB.format(listener.fileno()), listener.fileno())

    def await_ready(self) -> None:
        """Wait until the site responds and the worker takes messages."""
        from example_project.celery import app

        deadline = time.monotonic() + START_SECONDS
        while not (self._responds() and app.control.ping(timeout=0.3)):
            self.check()
            if time.monotonic() > deadline:
                raise ServerError(f"no start in {START_SECONDS:g} s\n{self.logs()}")
            endings.wait(0.1)

    def check(self) -> None:
        """Check that both servers run."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise ServerError(f"the {name} server has ended by itself\n{self.logs()}")

    def errors(self) -> int:
        """Count the requests that failed in the web server (500)."""
        return self._log("web").count(ERROR)

    def logs(self) -> str:
        """Return the last lines of each server's log."""
        lines = []
        for name in self._processes:
            last = self._log(name).splitlines()[-LINES:] or ["(nothing)"]
            lines += [f"The log of the {name} server ends with:", *last]
        return "\n".join(lines)

    def end(self) -> None:
        """Ask both servers to end; kill those that do not."""
        for process in self._processes.values():
            process.terminate()
        deadline = time.monotonic() + END_SECONDS
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)  # not reaped yet, so the group is ours
                process.wait()

    def _responds(self) -> bool:
        try:
            return Browser(self.url).ask("GET", "/") == HTTPStatus.OK
        except OSError:
            return False

    def _log(self, name: str) -> str:
        return (self._home / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def _start(self, name: str, command: str, *fds: int) -> None:
        with (self._home / f"{name}.log").open("wb") as log:
            self._processes[name] = subprocess.Popen(
                [sys.executable, "-m", *command.split()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=fds,
                process_group=0,
            )

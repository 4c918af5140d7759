"""Run the site's two servers, as child processes: a Celery worker and a web server.

Each has a process group of its own, so that Ctrl-C in the terminal is for the demo alone. Each
writes into a log file, which the demo shows if the server ends by itself.
"""

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from typing import Any, Self

from . import endings
from .browser import Browser

HOST = "127.0.0.1"
CHILDREN = 4  # of the web server
WORKERS = 6  # of the Celery worker: reports may take four of them
THREADS = 8
START_SECONDS = 180.0
END_SECONDS = 8.0
LINES = 20  # of a log that are shown
ERROR = "Internal Server Error"  # what Django writes for each 500
FAILURE = re.compile(rf"^.*{ERROR}.*\n(?:(?!\d{{4}}-).*\n)*", re.MULTILINE)  # and its traceback

WORKER = f"""
    celery -A example_project.celery worker --pool prefork --concurrency {WORKERS}
    --loglevel WARNING --without-gossip --without-mingle --without-heartbeat
"""
GUNICORN = f"""
    gunicorn example_project.wsgi --workers {CHILDREN} --threads {THREADS}
    --no-control-socket --graceful-timeout 3 --log-level warning
"""


class ServerError(Exception):
    """A server does not start, or has ended; the message has the logs' last lines."""


class Servers:
    """Both, from `with` to its end; `url` is where the site is."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.url = ""
        self.web = "gunicorn" if importlib.util.find_spec("gunicorn") else "runserver"

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._end)
            listener = stack.enter_context(socket.create_server((HOST, 0), backlog=64))
            port = listener.getsockname()[1]
            self.url = f"http://{HOST}:{port}/"
            self._start("worker", ["-m", *WORKER.split()])
            if self.web == "gunicorn":
                fd = listener.fileno()
                self._start("web", ["-m", *GUNICORN.split(), "--bind", f"fd://{fd}"], (fd,))
                listener.close()
            else:
                listener.close()
                command = "-m django runserver --noreload --insecure --nostatic"
                self._start("web", [*command.split(), f"{HOST}:{port}"])
            stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end()

    def await_ready(self) -> None:
        """Wait until the site responds and the worker takes messages."""
        from example_project.celery import app

        deadline = time.monotonic() + START_SECONDS
        while not (self._responds() and app.control.ping(timeout=0.3)):
            self.check()
            if time.monotonic() > deadline:
                raise ServerError(
                    f"the servers have not started in {START_SECONDS:g} s\n{self.logs()}"
                )
            time.sleep(0.1)

    def check(self) -> None:
        """Check that both servers run."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                raise ServerError(f"the {name} server has ended by itself\n{self.logs()}")

    def errors(self) -> int:
        """Count the requests that failed in the web server (500)."""
        return self._read("web").count(ERROR)

    def logs(self) -> str:
        """Return the last lines of each server's log, and the first request that failed."""
        told = [_last_lines(name, self._read(name)) for name in self._processes]
        if failure := FAILURE.search(self._read("web")):
            told.append(f"The first request that failed:\n{failure[0]}")
        return "\n".join(told)

    def _responds(self) -> bool:
        try:
            return Browser(self.url).ask("GET", "/") == HTTPStatus.OK
        except OSError:
            return False

    def _log(self, name: str) -> Path:
        return self._home / f"{name}.log"

    def _read(self, name: str) -> str:
        return self._log(name).read_text(encoding="utf-8", errors="replace")

    def _start(self, name: str, command: Sequence[str], fds: Sequence[int] = ()) -> None:
        with self._log(name).open("wb") as log, endings.after_this():
            self._processes[name] = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=fds,
                process_group=0,
            )

    def _end(self) -> None:
        """Ask both servers to end; kill those that do not."""
        for process in self._processes.values():
            process.terminate()
        deadline = time.monotonic() + END_SECONDS
        for process in self._processes.values():
            _wait(process, deadline)


def _last_lines(name: str, log: str) -> str:
    last = log.splitlines()[-LINES:] or ["(nothing)"]
    return "\n".join([f"The log of the {name} server ends with:", *last])


def _wait(process: subprocess.Popen[Any], deadline: float) -> None:
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # it is not reaped yet, so the group is still ours
        process.wait()

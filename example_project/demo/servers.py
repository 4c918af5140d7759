"""The site's two servers, as child processes: a Celery worker and a web server.

Each has a process group of its own, so that Ctrl-C in the terminal is for the demo alone, and
writes into a file, which is shown if it ends by itself.
"""

import importlib.util
import os
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
CHILDREN = 4
THREADS = 8
START_SECONDS = 60.0
END_SECONDS = 8.0
LINES = 20  # of a log that are shown

WORKER = f"""
    celery -A example_project.celery worker --pool prefork --concurrency {CHILDREN}
    --loglevel WARNING --without-gossip --without-mingle --without-heartbeat
"""
GUNICORN = f"""
    gunicorn example_project.wsgi --workers {CHILDREN} --threads {THREADS}
    --no-control-socket --graceful-timeout 3 --log-level warning
"""


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
        """Return when the site answers and the worker takes messages."""
        from example_project.celery import app

        deadline = time.monotonic() + START_SECONDS
        while not (self._answers() and app.control.ping(timeout=0.3)):
            self.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"the servers have not started in {START_SECONDS:g} s")
            time.sleep(0.1)

    def check(self) -> None:
        """See that both are running."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                log = self._log(name).read_text(encoding="utf-8", errors="replace")
                last = "\n".join(log.splitlines()[-LINES:])
                raise RuntimeError(f"the {name} server has ended by itself:\n{last}")

    def _answers(self) -> bool:
        try:
            return Browser(self.url).ask("GET", "/") == HTTPStatus.OK
        except OSError:
            return False

    def _log(self, name: str) -> Path:
        return self._home / f"{name}.log"

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
        """Ask both to end, and insist."""
        for process in self._processes.values():
            process.terminate()
        deadline = time.monotonic() + END_SECONDS
        for process in self._processes.values():
            _wait(process, deadline)


def _wait(process: subprocess.Popen[Any], deadline: float) -> None:
    try:
        process.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)  # it is not reaped yet, so the group is still ours
        process.wait()

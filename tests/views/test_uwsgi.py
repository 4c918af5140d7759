"""uWSGI forks its workers in C, and may keep the interpreter's lock between two requests."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from django_redlock import redlock
from django_redlock.testing import EmbeddedNodes
from tests.support.waiting import eventually
from tests.views.shop.served import end

from .shop.served import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("pyuwsgi") is None, reason="pyuwsgi is missing"),
]

TTL = 4.0
RUN = "import pyuwsgi, sys; pyuwsgi.run(sys.argv[1:])"
ALWAYS = ("--master", "--processes=2", "--module=tests.views.in_uwsgi", "--need-app")


class Server:
    """A server, and its client.

    Attributes:
        log: where it writes.
    """

    def __init__(self, port: int, log: Path) -> None:
        self.log = log
        self._port = port

    def ask(self, path: str) -> dict[str, Any]:
        """What the application says."""
        address = f"http://127.0.0.1:{self._port}{path}"
        with urllib.request.urlopen(address, timeout=60) as response:
            told: dict[str, Any] = json.load(response)
        return told

    def hold_two(self) -> list[dict[str, Any]]:
        """What two workers say that hold a lock at the same time."""
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(self.ask, ["/hold/a", "/hold/b"]))


@contextmanager
def in_uwsgi(nodes: EmbeddedNodes, home: Path, *options: str, **more: str) -> Iterator[Server]:
    """The application in uWSGI with these options."""
    alias = nodes.settings(NODE_TIMEOUT=5, MAX_TTL=60, RESTART_GUARD=False, TTL=TTL)
    log = home / "uwsgi.log"
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener, log.open("w") as written:
        port = listener.getsockname()[1]
        listens = f"--http-socket=fd://{listener.fileno()}"
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, *ALWAYS, "--die-on-term", listens, *options],
            cwd=ROOT,
            env=os.environ | {"REDLOCK": json.dumps(alias), "PYTHONPATH": str(ROOT), **more},
            pass_fds=[listener.fileno()],
            stdout=written,
            stderr=written,
        )
    try:
        with override_settings(REDLOCK={"default": alias}):
            yield Server(port, log)
    finally:
        end(process)


def outlive(server: Server, name: str) -> bool:
    """Whether a lease that outlives its request is still held more than one ttl later."""
    server.ask(f"/take/{name}")
    first, began = redlock(name).state(), time.monotonic()
    eventually(lambda: time.monotonic() > began + 1.5 * TTL, within=60, every=0.1)
    last = redlock(name).state()
    return last.held and last.fence == first.fence


@pytest.mark.parametrize(
    "options",
    [
        ("--enable-threads",),
        ("--enable-threads", "--lazy-apps"),
        ("--enable-threads", "--py-call-uwsgi-fork-hooks"),
    ],
    ids=" ".join,
)
def test_a_worker_keeps_its_leases(options, patient_nodes, tmp_path):
    """Leases of both workers are renewed, in a request and after it."""
    with in_uwsgi(patient_nodes, tmp_path, *options) as server:
        told = server.hold_two()
        assert [each["kept"] for each in told] == [True, True]
        assert [each["forked"] for each in told] == ["--lazy-apps" not in options] * 2
        assert outlive(server, "long")
        assert "enable-threads" not in server.log.read_text()


def test_without_threads_it_is_said_what_is_not_renewed(patient_nodes, tmp_path):
    """A lease is renewed while its request lasts, and not after it; a warning names the option."""
    with in_uwsgi(patient_nodes, tmp_path, BEFORE_2_0_27="1") as server:
        assert [each["kept"] for each in server.hold_two()] == [True, True]
        assert not outlive(server, "long")
        assert server.log.read_text().count("uWSGI runs without enable-threads") == 2  # workers

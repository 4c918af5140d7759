"""Double submits to a real server with several processes, with the decorator and without."""

from __future__ import annotations

import http.client
import json
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from django_redlock.testing import EmbeddedNodes

from .waiting import eventually

ROOT = Path(__file__).resolve().parent.parent
SUBMITS = 300
WORKERS = 4
AT_ONCE = WORKERS // 2  # submits: each keeps two workers busy


class Shop:
    """A gunicorn, and somebody who clicks.

    Attributes:
        database: the SQLite file.
        port: where it listens.
    """

    def __init__(self, home: Path, port: int) -> None:
        self.database = home / "shop.sqlite3"
        self.port = port

    def ask(self, method: str, address: str, **headers: str) -> tuple[int, str]:
        """The status, and the cookie that was set."""
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            connection.request(method, address, headers=headers)
            response = connection.getresponse()
            response.read()
            return response.status, (response.headers["Set-Cookie"] or "").split(";")[0]

    def answers(self) -> bool:
        """Whether it serves already."""
        try:
            return self.ask("GET", "/enter/0")[0] == 204
        except OSError:
            return False

    def double_submit(self, address: str, customer: int) -> list[int]:
        """Click twice at once; the two statuses."""
        together = threading.Barrier(2)
        cookie = self.ask("GET", f"/enter/{customer}")[1]

        def click(_: int) -> int:
            together.wait(60)
            basket = f"{address.strip('/')}{customer}"
            return self.ask("POST", address, Cookie=cookie, Basket=basket)[0]

        with ThreadPoolExecutor(2) as pool:
            return sorted(pool.map(click, range(2)))

    def double_submits(self, address: str) -> tuple[Counter[int], int]:
        """Click twice for each customer; how often each status came, and how many orders."""
        before = self.orders()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            pairs = list(pool.map(lambda n: self.double_submit(address, n), range(SUBMITS)))
        return Counter(status for pair in pairs for status in pair), self.orders() - before

    def orders(self) -> int:
        """How many orders there are."""
        with closing(sqlite3.connect(self.database)) as database:
            return int(database.execute("SELECT count(*) FROM orders").fetchone()[0])


def prepared(home: Path) -> None:
    """Make a shop without orders."""
    with closing(sqlite3.connect(home / "shop.sqlite3")) as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER)")
        database.commit()


@pytest.fixture
def shop(redlock_nodes: EmbeddedNodes, tmp_path: Path) -> Iterator[Shop]:
    """A gunicorn with four processes on five nodes."""
    prepared(tmp_path)
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        server = subprocess.Popen(
            [
                *(sys.executable, "-m", "gunicorn", "tests.shop.wsgi"),
                *(f"--workers={WORKERS}", f"--bind=fd://{listener.fileno()}"),
                *("--no-control-socket", "--log-level=warning", "--timeout=60"),
            ],
            cwd=ROOT,
            env=os.environ
            | {
                "DJANGO_SETTINGS_MODULE": "tests.shop.settings",
                "SHOP_HOME": str(tmp_path),
                "REDLOCK": json.dumps(redlock_nodes.settings(NODE_TIMEOUT=2)),
            },
            pass_fds=[listener.fileno()],
        )
        made = Shop(tmp_path, listener.getsockname()[1])
    try:
        eventually(made.answers, within=60, every=0.1, what="the server")
        yield made
    finally:
        server.terminate()
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait(30)


@pytest.mark.slow
def test_a_double_submit_makes_one_order(shop):
    """FM-40, FM-42: 300 overlapping double submits make 300 orders; without the decorator, 600."""
    statuses, orders = shop.double_submits("/locked/")
    assert (orders, statuses) == (SUBMITS, {201: SUBMITS, 409: SUBMITS})
    statuses, orders = shop.double_submits("/unlocked/")
    assert orders > SUBMITS
    assert statuses == {201: orders}

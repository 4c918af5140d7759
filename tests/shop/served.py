"""The shop on a server of its own, and somebody who clicks."""

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
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
SUBMITS = 300
WORKERS = 4
AT_ONCE = WORKERS // 2  # submits: each keeps two workers busy
# Modules and arguments; {socket} is the number of the one to listen on.
GUNICORN = (
    *("gunicorn", "tests.shop.wsgi", f"--workers={WORKERS}", "--bind=fd://{socket}"),
    *("--no-control-socket", "--log-level=warning", "--timeout=60"),
)
UVICORN = (
    *("uvicorn", "tests.shop.asgi:application", "--fd={socket}"),
    *("--lifespan=off", "--log-level=warning"),
)


class Shop:
    """A server, and somebody who clicks.

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


@contextmanager
def served(server: tuple[str, ...], home: Path, alias: Mapping[str, object]) -> Iterator[Shop]:
    """A shop without orders on such a server, with these nodes."""
    with closing(sqlite3.connect(home / "shop.sqlite3")) as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER)")
        database.commit()
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        process = subprocess.Popen(
            [sys.executable, "-m", *(word.format(socket=listener.fileno()) for word in server)],
            cwd=ROOT,
            env=os.environ
            | {
                "DJANGO_SETTINGS_MODULE": "tests.shop.settings",
                "SHOP_HOME": str(home),
                "REDLOCK": json.dumps(alias),
            },
            pass_fds=[listener.fileno()],
        )
        shop = Shop(home, listener.getsockname()[1])
    try:
        eventually(shop.answers, within=60, every=0.1, what="the server")
        yield shop
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)

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
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[3]
WORKERS = 4


def gunicorn(*more: str, app: str = "tests.views.shop.wsgi") -> tuple[str, ...]:
    """The module and its arguments; {socket} is the number of the one to listen on."""
    always = ("--bind=fd://{socket}", "--no-control-socket", "--log-level=warning", "--timeout=60")
    return ("gunicorn", app, *always, *more)


def uvicorn(*more: str) -> tuple[str, ...]:
    """The same of uvicorn."""
    always = ("--fd={socket}", "--lifespan=off", "--log-level=warning")
    return ("uvicorn", "tests.views.shop.asgi:application", *always, *more)


GUNICORN = gunicorn(f"--workers={WORKERS}")
THREADED = gunicorn("--worker-class=gthread", "--threads=4")  # one process
UVICORN = uvicorn()


class Shop:
    """A server, and somebody who clicks.

    Attributes:
        database: the SQLite file.
        port: where it listens.
        process: the server, or the one that has forked its workers.
    """

    def __init__(self, home: Path, port: int, process: subprocess.Popen[bytes]) -> None:
        self.database = home / "shop.sqlite3"
        self.port = port
        self.process = process

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
        return self.submits(address, customer, customer)

    def submits(self, address: str, *customers: int) -> list[int]:
        """Let two click at once, who may be one; the two statuses."""
        together = threading.Barrier(len(customers))
        cookies = {each: self.ask("GET", f"/enter/{each}")[1] for each in set(customers)}
        basket = "-".join((address.strip("/"), *map(str, customers)))

        def click(customer: int) -> int:
            together.wait(60)
            token = f"Token {customer + 1}"
            headers = {"Cookie": cookies[customer], "Basket": basket, "Authorization": token}
            return self.ask("POST", address, **headers)[0]

        with ThreadPoolExecutor(len(customers)) as pool:
            return sorted(pool.map(click, customers))

    def double_submits(self, address: str, count: int, at_once: int) -> tuple[Counter[int], int]:
        """Click twice for each customer; how often each status came, and how many orders."""
        return self.pairs(address, [(each, each) for each in range(count)], at_once)

    def pairs(
        self, address: str, pairs: Iterable[tuple[int, int]], at_once: int
    ) -> tuple[Counter[int], int]:
        """Let two click at once, and so many such pairs; the same of all of them."""
        before = self.orders()
        with ThreadPoolExecutor(at_once) as pool:
            found = list(pool.map(lambda pair: self.submits(address, *pair), pairs))
        return Counter(status for each in found for status in each), self.orders() - before

    def orders(self) -> int:
        """How many orders there are."""
        with closing(sqlite3.connect(self.database)) as database:
            return int(database.execute("SELECT count(*) FROM orders").fetchone()[0])

    def names(self) -> dict[str, set[int]]:
        """The names under which orders were locked, and whose orders they were."""
        found: dict[str, set[int]] = {}
        with closing(sqlite3.connect(self.database)) as database:
            for name, customer in database.execute("SELECT name, customer FROM orders"):
                if name:
                    found.setdefault(name, set()).add(customer)
        return found


@contextmanager
def served(server: tuple[str, ...], home: Path, alias: Mapping[str, object]) -> Iterator[Shop]:
    """A shop without orders on such a server, with these nodes."""
    with closing(sqlite3.connect(home / "shop.sqlite3")) as database:
        columns = "id INTEGER PRIMARY KEY, customer INTEGER, name TEXT"
        database.execute(f"CREATE TABLE orders ({columns})")
        database.commit()
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        process = subprocess.Popen(
            [sys.executable, "-m", *(word.format(socket=listener.fileno()) for word in server)],
            cwd=ROOT,
            env=os.environ
            | {
                "DJANGO_SETTINGS_MODULE": "tests.views.shop.settings",
                "SHOP_HOME": str(home),
                "REDLOCK": json.dumps(alias),
            },
            pass_fds=[listener.fileno()],
        )
        shop = Shop(home, listener.getsockname()[1], process)
    try:
        eventually(shop.answers, within=60, every=0.1, what="the server")
        yield shop
    finally:
        end(process)


def end(process: subprocess.Popen[bytes]) -> None:
    """Have a server end, by force if it does not end by itself."""
    process.terminate()
    try:
        process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(30)

"""Clients, each with a key of its own, that repeat a request until they have answers."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from typing import Final, NamedTuple

LIMIT: Final = 180.0  # seconds after which a client gives up
MANY: Final = 10  # clients that gave up: then all do, for it would take hours
SILENCE: Final = 60.0  # seconds without a byte after which a connection is broken
PAUSE: Final = 0.3  # seconds before the next try where nobody said how many
MOST: Final = 5  # requests after the first answer
PATIENCE: Final = 2.0  # seconds that a client waits at most, whatever it was told
DONE: Final = 201
REFUSED: Final = (409, 423)  # another request runs
UNAVAILABLE: Final = 503


class Reply(NamedTuple):
    """An answer with the order.

    Attributes:
        replayed: the header that says so; "" is none.
        seen: when the client had it.
    """

    status: int
    body: bytes
    replayed: str = ""
    seen: float = 0.0


class Clients:
    """All of them, and what they saw.

    Attributes:
        answers: those of each key, in the order in which they were seen.
        counts: "sent", "broken", and each other status by its number; "hasty" are refusals that
            do not say when to come again.
        without: keys of clients that gave up.
    """

    def __init__(self, port: int, replayed: str, seed: int) -> None:
        self._port, self._replayed, self._seed = port, replayed, seed
        self._lock = threading.Lock()
        self._over = threading.Event()
        self.answers: dict[str, list[Reply]] = {}
        self.counts: Counter[str] = Counter()
        self.without: set[str] = set()

    def begin(self, keys: Iterable[str], pool: ThreadPoolExecutor) -> list[Future[None]]:
        """Let as many at once begin as the pool has threads; each has two connections."""
        return [pool.submit(self._come, key) for key in keys]

    def end(self) -> None:
        """Let all give up."""
        self._over.set()

    def _come(self, key: str) -> None:
        """Send it twice at once, and then up to five times more: at once, or one after another."""
        draw = random.Random(f"{self._seed} {key}")
        with ThreadPoolExecutor(2) as pair:
            for at_once in self._rounds(draw):
                if self._over.is_set():
                    return
                seeds = [draw.random() for _ in range(at_once)]
                list(pair.map(lambda seed: self._insist(key, random.Random(seed)), seeds))

    def _rounds(self, draw: random.Random) -> Iterator[int]:
        """Yield how many requests come at once."""
        yield 2
        left = draw.randint(1, MOST)
        while left:
            at_once = min(left, draw.choice((1, 2)))
            yield at_once
            left -= at_once

    def _insist(self, key: str, draw: random.Random) -> None:
        """Send it until there is an answer."""
        late = time.monotonic() + LIMIT
        while time.monotonic() < late:
            pause = self._send(key)
            if pause is None:
                return
            # Never all at the same moment, and soon where a connection broke.
            if self._over.wait(min(pause, PATIENCE) * draw.uniform(0.5, 1.5)):
                break
        with self._lock:
            self.without.add(key)
            if len(self.without) >= MANY:
                self._over.set()

    def _send(self, key: str) -> float | None:
        """Send it once; return the seconds until the next try, None after an answer."""
        try:
            status, body, headers = self._ask(key)
        except (OSError, http.client.HTTPException):
            self._count("sent", "broken")
            return PAUSE / 10
        if status == DONE:
            replayed = headers.get(self._replayed, "") if self._replayed else ""
            reply = Reply(status, body, "" if replayed == "false" else replayed, time.monotonic())
            with self._lock:
                self.answers.setdefault(key, []).append(reply)
            self._count("sent", *(["replayed"] if reply.replayed else []))
            return None
        after = headers.get("Retry-After", "")
        refused = status in (*REFUSED, UNAVAILABLE)
        self._count("sent", str(status), *(["hasty"] if refused and not after.isdigit() else []))
        return float(after) if after.isdigit() else PAUSE

    def _ask(self, key: str) -> tuple[int, bytes, http.client.HTTPMessage]:
        with closing(
            http.client.HTTPConnection("127.0.0.1", self._port, timeout=SILENCE)
        ) as connection:
            headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
            body = json.dumps({"item": f"a thing for {key}"})
            connection.request("POST", "/orders/", body, headers)
            response = connection.getresponse()
            return response.status, response.read(), response.headers

    def _count(self, *what: str) -> None:
        with self._lock:
            self.counts.update(what)

"""What most recipes share: a client of one server, and asking again and again."""

from __future__ import annotations

import time
from collections.abc import Callable

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from .interface import Place

POLL = 0.02  # seconds between two tries


def client_of(place: Place, index: int = 0) -> redis.Redis:
    """Return a client of one server that never sends anything twice by itself."""
    return redis.Redis.from_url(
        place.urls[index],
        retry=Retry(NoBackoff(), 0),
        socket_timeout=place.timeout,
        socket_connect_timeout=place.timeout,
    )


def poll(attempt: Callable[[], object], wait: float, pause: float = POLL) -> bool:
    """Try until it works, or the wait is over; return whether it worked."""
    end = time.monotonic() + wait
    while not attempt():
        if time.monotonic() >= end:
            return False
        time.sleep(pause)
    return True


def milliseconds(seconds: float) -> int:
    """Return what PX takes."""
    return round(seconds * 1000)

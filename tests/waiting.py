"""Waiting for something to become true, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    condition: Callable[[], T], *, within: float = 20.0, every: float = 0.005, what: str = ""
) -> T:
    """Return the first true result of ``condition``, or fail when the seconds are over."""
    deadline = time.monotonic() + within
    while True:
        late = time.monotonic() >= deadline
        result = condition()
        if result:
            return result
        assert not late, f"not within {within:g} s: {what or condition}; it was {result!r}"
        time.sleep(every)

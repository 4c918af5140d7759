"""The header of this package in a message: its number, and how often it came back.

    {"message": number, "deferred": times, "again": bool, "waited": seconds}

``again`` says that an earlier run of the message was met.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

HEADER: Final = "redlock"
NUMBER: Final = "message"
_same: ContextVar[bool] = ContextVar("redlock_same_message", default=False)
_copy: ContextVar[bool] = ContextVar("redlock_copy", default=False)


def history(request: Any) -> Mapping[str, Any]:
    """Return the header in a request; anybody may have written it."""
    found = (request.headers or {}).get(HEADER)
    return found if isinstance(found, dict) else {}


def numbered(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of ``apply_async`` with a new number for the message.

    A message that comes back later keeps its number. Any other one is new, also where it has the
    headers of an earlier one: a retry is.
    """
    headers = dict(options.get("headers") or {})
    told = headers.get(HEADER)
    told = dict(told) if isinstance(told, Mapping) else {}
    if not (_same.get() and told.get(NUMBER)):
        told = {key: told[key] for key in told if key not in ("deferred", "waited")}
        told[NUMBER] = secrets.token_hex(16)
    return {**options, "headers": headers | {HEADER: told}}


@contextmanager
def same_message(*, copy: bool = False) -> Iterator[None]:
    """Let the messages that are sent in the block keep their numbers.

    Args:
        copy: whether they are copies, which may end without a run.
    """
    same, copies = _same.set(True), _copy.set(copy)
    try:
        yield
    finally:
        _copy.reset(copies)
        _same.reset(same)


def sends_copy() -> bool:
    """Return True in a block in which copies are sent."""
    return _copy.get()

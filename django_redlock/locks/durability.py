"""Refuse a lock inside a transaction, or warn: its release would come before the COMMIT."""

from __future__ import annotations

import inspect
import sys
import warnings
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

HELPERS: Final = frozenset({"django_redlock", "contextlib", "unittest"})
MACHINERY: Final = frozenset({"asgiref", "asyncio", "celery", "concurrent", "django", "threading"})
# Without a name: Python remembers each text that it has shown for a line.
TEXT: Final = (
    "a lock is taken inside a transaction and is free before the COMMIT, so the next holder does "
    "not see what this one wrote. Take the lock outside: 'with redlock(...).atomic():' begins the "
    "transaction in the lock. Under ATOMIC_REQUESTS use @single_flight, or non_atomic_requests. "
    "If the lock guards no row of this transaction, write durable=False"
)
ADOPTED: Final = (
    "a lease is adopted inside a transaction, and its lock is free before the COMMIT, so the next "
    "holder does not see what this one wrote. Adopt it before the transaction begins. If the lock "
    "guards no row of this transaction, write redlock.using(durable=False).adopt(...)"
)


class LockInTransactionWarning(RuntimeWarning):
    """A lock was taken inside a transaction, and is free before its COMMIT.

    Python shows it once for each line that takes such a lock.
    """


LockInTransactionWarning.__module__ = "django_redlock.errors"


class Place(NamedTuple):
    """A line of code, and the globals of its module."""

    file: str
    lineno: int
    names: dict[str, Any]


def refuse_or_warn(
    lock: object,
    *,
    durable: bool,
    decorated: Callable[..., Any] | None = None,
    text: str = TEXT,
) -> None:
    """Say that the lock is taken inside a transaction.

    Args:
        lock: what is taken.
        durable: whether it must not be.
        decorated: the function whose decorator takes it.
        text: of the warning.

    Raises:
        RuntimeError: it must not be.
    """
    if durable:
        msg = (
            f"{lock!r} is durable and cannot be taken inside a transaction: it would be "
            "released before the COMMIT"
        )
        raise RuntimeError(msg)
    place = _place(sys._getframe(1), decorated)  # noqa: SLF001 - inspect's name for it is slow
    warnings.warn_explicit(
        text,
        LockInTransactionWarning,
        place.file,
        place.lineno,
        module=place.names.get("__name__", "<unknown>"),
        registry=place.names.setdefault("__warningregistry__", {}),
    )


def _place(frame: FrameType, decorated: Callable[..., Any] | None) -> Place:
    """Return the line of the user's code that takes the lock.

    That is the line that called into this package. Where Django, Celery or an event loop called
    a decorated function, it is the function's own; where they called something else, it is the
    line that called them.
    """
    caller = _outside(frame, HELPERS) or frame
    if _package(caller) in MACHINERY:
        function = inspect.unwrap(decorated) if decorated is not None else None
        code = getattr(function, "__code__", None)
        if function is not None and code is not None:
            return Place(code.co_filename, code.co_firstlineno, function.__globals__)
        caller = _outside(caller, HELPERS | MACHINERY) or caller
    return Place(caller.f_code.co_filename, caller.f_lineno, caller.f_globals)


def _outside(frame: FrameType | None, packages: frozenset[str]) -> FrameType | None:
    while frame is not None and _package(frame) in packages:
        frame = frame.f_back
    return frame


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__")).partition(".")[0]

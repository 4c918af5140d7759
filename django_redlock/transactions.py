"""The transactions of ATOMIC_REQUESTS, opened inside a lock instead of around it.

The request handler opens one around a view for every database that asks for it and that is not
in the view's set ``_non_atomic_requests``. A wrapper that carries ``EveryDatabase`` there gets
none from the handler, and opens the same ones itself by ``atomic``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from django.db import connections, transaction

if TYPE_CHECKING:
    from django.http import HttpRequest


class EveryDatabase(set[str]):
    """A mark by which the request handler leaves out every database.

    Its members are those that the project marks by ``transaction.non_atomic_requests``, below
    or above our decorator: they are really left without a transaction.
    """

    def __contains__(self, alias: object) -> bool:
        """Whether the handler leaves it out: yes."""
        return True


def wanted(request: HttpRequest, marked: Iterable[str]) -> list[str]:
    """The databases that get a transaction: as their settings, but for the marked ones.

    A mark may also be on the function that was resolved, set by a decorator of the class.
    """
    match = getattr(request, "resolver_match", None)
    resolved = getattr(match and match.func, "_non_atomic_requests", ())
    left_out = frozenset(marked) | frozenset(resolved)
    return [
        alias
        for alias, settings in connections.settings.items()
        if settings["ATOMIC_REQUESTS"] and alias not in left_out
    ]


def atomic(view: Callable[..., Any], aliases: Iterable[str]) -> Callable[..., Any]:
    """The view in transactions, nested as the request handler does it."""
    for alias in aliases:
        view = transaction.atomic(using=alias)(view)
    return view


def in_transaction() -> bool:
    """Whether this thread is inside a transaction; the ones of a TestCase do not count."""
    return any(
        not getattr(block, "_from_testcase", False)
        for connection in connections.all(initialized_only=True)
        for block in connection.atomic_blocks
    )


def check_none() -> None:
    """See that this thread is in no transaction.

    Raises:
        RuntimeError: it is in one, so what is released now was not committed.
    """
    if in_transaction():
        msg = (
            "single_flight runs inside a transaction, so the lock would be released before "
            "the COMMIT: put it above transaction.atomic, and on 'dispatch' of a class"
        )
        raise RuntimeError(msg)

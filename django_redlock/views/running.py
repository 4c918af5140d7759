"""Run a view in its lock.

Each is inside the one before it, up to the view; then they end in this order:

    lock  ->  transactions of ATOMIC_REQUESTS  ->  view  ->  COMMIT  ->  release

The request handler opens those transactions around the whole view. The lock inside them would be
released before the COMMIT, when the next request cannot see the rows yet. So the wrapper is marked
as non-atomic for every database, and opens the same transactions itself.

A response that is not complete when the view returns keeps the lock: a stream until it is
closed, a template until it is rendered (not until it is sent: a slow client would keep the
lock). Where a response is dropped instead, the lease is renewed no more.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from django_redlock import transactions
from django_redlock.core.errors import LockTaken, NodesUnavailable

from .begun import note_single_flight
from .unfinished import keeps

if TYPE_CHECKING:
    from .rules import Rules

View = Callable[..., Any]
NO_ATOMIC: Final = (
    "You cannot use ATOMIC_REQUESTS with async views: write @transaction.non_atomic_requests below "
    "@single_flight"
)


def blocking(rules: Rules, view: View) -> View:
    """Return the view in its lock and its transactions."""
    rules.answers.check_plain()
    lock_of = rules.reader(view)
    marked = transactions.EveryDatabase(getattr(view, "_non_atomic_requests", ()))

    @functools.wraps(view)
    def single(request: Any, *args: Any, **kwargs: Any) -> Any:
        _enter(request)
        databases = transactions.wanted(request, marked)
        if request.method not in rules.methods:
            return transactions.atomic(view, databases)(request, *args, **kwargs)
        transactions.check_none()
        lock, lease, turn = lock_of(request, *args, **kwargs), None, rules.turn()
        try:
            lease = request.lease = lock.acquire(turn.wait)
        except (LockTaken, NodesUnavailable) as error:
            turn.over = True
            refusal = rules.refusal(error, request, turn)
            if refusal is not None:
                return rules.answers.respond(request, refusal)
        finally:
            turn.over = True

        def until_lost(*args: Any, **kwargs: Any) -> Any:
            response = view(*args, **kwargs)
            if lease is not None:
                lock.left(lease, None)
            return response

        try:
            response = transactions.atomic(until_lost, databases)(request, *args, **kwargs)
            if lease is not None and not keeps(response, lease):
                lease.release()
        except BaseException:  # a signal handler's may come while the lock is released
            if lease is not None:
                lease.release()
            raise
        return response

    single._non_atomic_requests = marked  # type: ignore[attr-defined]  # noqa: SLF001 - Django's
    return single


def awaiting(rules: Rules, view: View) -> View:
    """Return the async view in its lock."""
    lock_of = rules.areader(view)
    marked = transactions.EveryDatabase(getattr(view, "_non_atomic_requests", ()))

    @functools.wraps(view)
    async def single(request: Any, *args: Any, **kwargs: Any) -> Any:
        _enter(request)
        if transactions.wanted(request, marked):
            raise RuntimeError(NO_ATOMIC)
        if request.method not in rules.methods:
            return await view(request, *args, **kwargs)
        lock, lease, turn = await lock_of(request, *args, **kwargs), None, rules.turn()
        try:
            lease = request.lease = await lock.aacquire(turn.wait)
        except (LockTaken, NodesUnavailable) as error:
            turn.over = True
            refusal = rules.refusal(error, request, turn)
            if refusal is not None:
                return await rules.answers.arespond(request, refusal)
        finally:
            turn.over = True
        try:
            response = await view(request, *args, **kwargs)
            if lease is not None:
                lock.left(lease, None)
                if not keeps(response, lease):
                    await lease.arelease()
        except BaseException:  # CancelledError, too: the client has gone
            if lease is not None:
                await lease.arelease()
            raise
        return response

    # Django would refuse the view, too, and not say what to write.
    single._non_atomic_requests = marked  # type: ignore[attr-defined]  # noqa: SLF001 - Django's
    return single


def _enter(request: Any) -> None:
    if callable(request) and not hasattr(request, "META"):
        msg = (
            "single_flight was given a function, and then the view: its first argument is the view "
            "or a text. Name a function that makes the key: @single_flight(key=function)"
        )
        raise TypeError(msg)
    if not hasattr(request, "META"):
        msg = (
            f"single_flight needs the request, not {type(request).__name__}: on a method, write "
            "@method_decorator(single_flight(...))"
        )
        raise TypeError(msg)
    request.lease = None
    note_single_flight(request)

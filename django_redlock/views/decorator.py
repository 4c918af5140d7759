"""``@single_flight``: of the same request that arrives several times at once, one runs.

    @single_flight
    def checkout(request): ...

What stands inside what, and in which order it ends:

    lock  ->  transactions of ATOMIC_REQUESTS  ->  view  ->  COMMIT  ->  release

The request handler opens those transactions around the whole view, which would put the lock
inside them: released before the COMMIT, when the next request cannot see the rows yet. So the
wrapper is marked non-atomic for every database, and opens the same transactions itself.

A response that is not complete when the view returns keeps the lock: a stream until it is
closed, a template until it is rendered (its sending is not waited for: a slow client would
keep the lock). One that is dropped instead releases the lock when it is forgotten.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from asgiref.sync import iscoroutinefunction, sync_to_async

from django_redlock import redlock, transactions
from django_redlock.concurrency.farewells import Farewell
from django_redlock.concurrency.threads import start_thread
from django_redlock.core.errors import LockTaken, NodesUnavailable
from django_redlock.core.policy import check_seconds

from .keys import DEFAULT_KEY
from .responses import BUSY, IgnoreRefusals
from .rules import Rules

if TYPE_CHECKING:
    from django_redlock.leases.lease import Lease

View = Callable[..., Any]
V = TypeVar("V", bound=View)

__all__ = ["IgnoreRefusals", "single_flight"]
METHODS: Final = ("POST", "PUT", "PATCH", "DELETE")


@overload
def single_flight(key: V) -> V: ...


@overload
def single_flight(
    key: str | Sequence[str] | None = None,
    *,
    alias: str | None = None,
    ttl: float | None = None,
    wait: float | None = 0,
    min_hold: float = 0,
    renew: bool | None = None,
    methods: Sequence[str] = METHODS,
    status: int = 409,
    fail_open: bool = False,
) -> Callable[[V], V]: ...


def single_flight(
    key: View | str | Sequence[str] | None = None,
    *,
    alias: str | None = None,
    ttl: float | None = None,
    wait: float | None = 0,
    min_hold: float = 0,
    renew: bool | None = None,
    methods: Sequence[str] = METHODS,
    status: int = 409,
    fail_open: bool = False,
) -> View:
    """Let one of several equal requests run at a time; the others are answered at once.

    For ``def`` and ``async def`` views, and by ``method_decorator`` on ``dispatch`` for classes.
    The view finds its lease in ``request.lease``: None where the request was not locked.

    Args:
        key: which requests are equal: a name with fields from ``request`` and the view's
            arguments. None: same user (else session, else client address), method and path.
        alias: whose nodes decide. None: "default".
        ttl: seconds after which the nodes forget a process that was not heard of.
        wait: seconds that a request may wait for its turn; it keeps a worker meanwhile.
        min_hold: seconds, from the start, during which an equal request is refused, also when
            the first one has finished.
        renew: whether the lease is prolonged while the view runs. None: RENEW.
        methods: the HTTP methods that are locked; others pass.
        status: of the answer when somebody else runs it: 409, 423 or 429.
        fail_open: run the view without the lock, ``request.lease`` being None, when no majority
            of the nodes can be asked. Otherwise the answer is 503.

    A request that lacks what a field names, such as a header, is answered 400.

    Raises:
        TypeError, ValueError: an argument that makes no sense; a field that nothing can fill.
    """
    if wait is not None:
        check_seconds("wait", wait, zero=True)
    if status not in BUSY:
        msg = f"status must be one of {sorted(BUSY)}, not {status!r}"
        raise ValueError(msg)
    if isinstance(methods, str) or not methods:
        msg = "methods must be a list of HTTP methods, e.g. ['POST']"
        raise TypeError(msg)
    view = key if callable(key) else None
    name = DEFAULT_KEY if key is None or callable(key) else key
    template = redlock.using(
        alias, ttl=ttl, wait=wait, renew=renew, min_hold=min_hold, quiet=not fail_open
    )
    rules = Rules(
        template(name),
        by_request=name is DEFAULT_KEY,
        methods=frozenset(method.upper() for method in methods),
        status=status,
        fail_open=fail_open,
    )
    return functools.partial(_decorate, rules) if view is None else _decorate(rules, view)


def _decorate(rules: Rules, view: Any) -> View:
    if not callable(view):
        msg = (
            f"single_flight(...) decorates a view, not {type(view).__name__}: in urls.py write "
            "single_flight('pay:{pk}')(view)"
        )
        raise TypeError(msg)
    if isinstance(view, type):
        msg = (
            f"{view.__qualname__} is a class: write "
            "@method_decorator(single_flight(...), name='dispatch')"
        )
        raise TypeError(msg)
    return (_awaiting if _is_async(view) else _blocking)(rules, view)


def _is_async(view: View) -> bool:
    """Whether calling the view gives something to await.

    ``View.dispatch`` is a plain function that returns what an async handler returns;
    ``method_decorator`` hands it to us as a partial of the bound method.
    """
    bound = view.func if isinstance(view, functools.partial) else None
    owner = getattr(bound, "__self__", None)
    return iscoroutinefunction(view) or bool(getattr(type(owner), "view_is_async", False))


def _blocking(rules: Rules, view: View) -> View:
    lock_of = rules.reader(view)
    marked = transactions.EveryDatabase(getattr(view, "_non_atomic_requests", ()))

    @functools.wraps(view)
    def single(request: Any, *args: Any, **kwargs: Any) -> Any:
        _enter(request)
        run = transactions.atomic(view, transactions.wanted(request, marked))
        if request.method not in rules.methods:
            return run(request, *args, **kwargs)
        transactions.check_none()
        lock, lease = lock_of(request, *args, **kwargs), None
        try:
            lease = request.lease = lock.acquire()
        except (LockTaken, NodesUnavailable) as error:
            refused = rules.refusal(request, error)
            if refused is not None:
                return refused
        try:
            response = run(request, *args, **kwargs)
            if lease is not None and not _keeps(response, lease):
                lease.release()
        except BaseException:  # a signal handler's may come while the lock is released
            if lease is not None:
                lease.release()
            raise
        return response

    single._non_atomic_requests = marked  # type: ignore[attr-defined]  # noqa: SLF001 - Django's
    return single


def _awaiting(rules: Rules, view: View) -> View:
    lock_of = rules.reader(view)

    @functools.wraps(view)
    async def single(request: Any, *args: Any, **kwargs: Any) -> Any:
        _enter(request)
        if transactions.wanted(request, getattr(view, "_non_atomic_requests", ())):
            raise RuntimeError("You cannot use ATOMIC_REQUESTS with async views.")
        if request.method not in rules.methods:
            return await view(request, *args, **kwargs)
        # A key may look at the user, and that may be a query.
        lock, lease = await sync_to_async(lock_of)(request, *args, **kwargs), None
        try:
            lease = request.lease = await lock.aacquire()
        except (LockTaken, NodesUnavailable) as error:
            refused = rules.refusal(request, error)
            if refused is not None:
                return refused
        try:
            response = await view(request, *args, **kwargs)
            if lease is not None and not _keeps(response, lease):
                await lease.arelease()
        except BaseException:  # CancelledError, too: the client has gone
            if lease is not None:
                await lease.arelease()
            raise
        return response

    return single


def _enter(request: Any) -> None:
    if callable(request) and not hasattr(request, "META"):
        msg = (
            "single_flight was given a function, and then the view: a key is no function, but text "
            "with fields, as in @single_flight('pay:{request.user.pk}'). What no field can name, "
            "let a decorator above or a middleware set on the request"
        )
        raise TypeError(msg)
    if not hasattr(request, "META"):
        msg = (
            f"single_flight needs the request, not {type(request).__name__}: on a method, write "
            "@method_decorator(single_flight(...))"
        )
        raise TypeError(msg)
    request.lease = None


def _keeps(response: Any, lease: Lease) -> bool:
    """Whether the response is not complete yet; then the lease ends with it."""
    streams = getattr(response, "streaming", False)
    if not streams and getattr(response, "is_rendered", True):
        return False
    forgotten = Farewell(response, partial(_release_apart, lease))

    def release(*_: object) -> None:
        if forgotten.cancel():
            lease.release()

    if streams:
        response._resource_closers.append(release)  # noqa: SLF001 - Django has no other way
    elif iscoroutinefunction(response.render):
        response.add_post_render_callback(release)  # not called when rendering fails
    else:
        _follow_rendering(response, release)
    return True


def _release_apart(lease: Lease) -> None:
    """Release where nobody may be kept waiting, e.g. while garbage is collected."""
    with suppress(RuntimeError):  # no thread can be had any more: its ttl ends it
        start_thread(lease.release)


def _follow_rendering(response: Any, followed_by: Callable[[], object]) -> None:
    """Have something done when the response has been rendered, or failed to be."""
    reference = weakref.ref(response)  # no cycle: it must be forgotten as soon as it is dropped

    def render() -> Any:
        response: Any = reference()
        del response.render  # a cache pickles the response while it is being rendered
        try:
            return response.render()
        finally:
            followed_by()

    response.render = render

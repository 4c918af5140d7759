"""``@single_flight``: run one of several equal requests that arrive at the same time.

    @single_flight
    def checkout(request): ...

``lock`` says in which order lock, transaction and view begin and end.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from http import HTTPMethod
from typing import Any, Final, Never, TypedDict, TypeVar, Unpack, overload

from asgiref.sync import iscoroutinefunction

from django_redlock import redlock
from django_redlock.core.names import did_you_mean
from django_redlock.core.policy import check_seconds
from django_redlock.locks.advice import unknown_keywords
from django_redlock.locks.options import OnLost

from .keys import Key, Names, ViewKey
from .lock import View, ViewLock
from .refusals import RETRY_AFTER, OnRefused, Responder, Result, RetryAfter, WithoutMajority

V = TypeVar("V", bound=View)
DECORATES: Final = "single_flight_decorates"  # of a decorator: its ViewLock
PLACED: Final = "single_flight_placed"  # of a wrapper, and what decorators copy: its ViewLock
METHODS: Final = ("POST", "PUT", "PATCH", "DELETE")  # that are locked


class Options(TypedDict, total=False):
    """The options of ``single_flight``, for type checkers."""

    alias: str | None
    ttl: float | None
    wait: float | None
    min_hold: float
    renew: bool | None
    max_hold: float | None
    on_lost: OnLost
    methods: Sequence[str]
    status: int
    retry_after: RetryAfter
    on_refused: OnRefused
    result: Result
    on_unavailable: WithoutMajority
    limit: int | None


@overload
def single_flight(view: V, /, **options: Unpack[Options]) -> V: ...


@overload
def single_flight(
    key: Names | None = None,
    /,
    *,
    alias: str | None = None,
    ttl: float | None = None,
    wait: float | None = 0,
    min_hold: float = 0,
    renew: bool | None = None,
    max_hold: float | None = None,
    on_lost: OnLost = None,
    methods: Sequence[str] = METHODS,
    status: int = 409,
    retry_after: RetryAfter = RETRY_AFTER,
    on_refused: OnRefused = None,
    result: Result = None,
    on_unavailable: WithoutMajority = "refuse",
    limit: int | None = None,
) -> Callable[[V], V]: ...  # written out for the documentation, which shows the overloads


@overload
def single_flight(*, key: Key | None, **options: Unpack[Options]) -> Callable[[V], V]: ...


def single_flight(
    first: View | Names | None = None,
    /,
    *,
    key: Key | None = None,
    alias: str | None = None,
    ttl: float | None = None,
    wait: float | None = 0,
    min_hold: float = 0,
    renew: bool | None = None,
    max_hold: float | None = None,
    on_lost: OnLost = None,
    methods: Sequence[str] = METHODS,
    status: int = 409,
    retry_after: RetryAfter = RETRY_AFTER,
    on_refused: OnRefused = None,
    result: Result = None,
    on_unavailable: WithoutMajority = "refuse",
    limit: int | None = None,
    **unknown: Never,
) -> View:
    """Run one of several equal requests at a time; refuse the others at once.

    For ``def`` and ``async def`` views, and by ``method_decorator`` on ``dispatch`` for classes.
    The view finds its lease in ``request.lease``, which is None if the request was not locked.

    Args:
        key: which requests are equal: a name, or several, with fields from ``request``, from
            ``client`` (the user, else the session, else the address) and from the view's
            arguments. Or, by keyword only, a function: ``key(request, *args, **kwargs)`` returns
            the name, or several. None: same client, method and path. A name that is too long
            becomes a digest.
        alias: the alias whose nodes decide. None: "default".
        ttl: seconds after which the nodes forget a process that does not renew its lease. None:
            the alias's TTL.
        wait: seconds that a request may wait for its turn, occupying a worker. None: the alias's
            WAIT. It does not wait while no majority of the nodes can be asked. If
            MAX_WAITING_REQUESTS of the process wait already, it does not either, and gets a 503
            unless the lock is free.
        min_hold: seconds, from the start, during which an equal request is refused, also when
            the first one has finished.
        renew: whether a watchdog renews the lease while the view runs. None: RENEW.
        max_hold: seconds after which the watchdog stops; ``float("inf")``: never. None: MAX_HOLD.
        on_lost: a plain function, called with the lease when it is lost; or "raise": LeaseLost when
            the view has returned, inside the transactions of ATOMIC_REQUESTS, which roll back.
        methods: the HTTP methods that are locked, and HEAD with GET; others pass.
        status: of the response while an equal request runs: 409, 423 or 429.
        retry_after: the ``Retry-After`` of that response, seconds, rounded up: a number, or a
            function that is called with the LockTaken. The response to a request that another
            decorated view has got before has none, and the status 409.
        on_refused: makes the response of a refused request: a function, called with the request
            and the ``Refusal``, which may return None for the usual response; or the name of a
            template, for clients that do not want JSON, with ``refusal`` in its context.
        result: where a visitor sees what the first request has done, for a link on the page of a
            refusal: an address, a name of the URLconf, or a plain function of the request that
            returns either, an object with ``get_absolute_url``, or None. None: the link leads
            back to the page that has sent the request. After an error in the function the link
            leads back, too, and the error is logged.
        on_unavailable: "refuse": answer 503 when no majority of the nodes can be asked; "run": run
            the view without the lock, ``request.lease`` being None.
        limit: how many requests of one key run at a time, 1 to 128; takes one name. None: one.

    The response to a request that lacks what a field names, such as a header, is a 400, and so is
    that to a request for which the function raises ValueError or returns "".

    Raises:
        TypeError, ValueError: an argument makes no sense, or nothing can fill a field.
    """
    if unknown:
        raise unknown_keywords("single_flight", unknown, ("key", *Options.__annotations__))
    if wait is not None:
        check_seconds("wait", wait, zero=True)
    if on_lost == "cancel":
        raise TypeError(
            "on_lost='cancel' is for an 'async with' block, and a view's lock may outlive the "
            "view: give a function or 'raise', or write 'async with redlock(...)' in the view"
        )
    responder = Responder(status, retry_after, on_refused, result)
    if on_unavailable not in ("refuse", "run"):
        raise ValueError(f"on_unavailable={on_unavailable!r} is none of 'refuse', 'run'")
    view = first if callable(first) else None
    if first is not None and view is None:
        if key is not None:
            raise TypeError(
                "single_flight got two keys: one as its first argument, and one as key="
            )
        key = first
    template = redlock.using(
        alias,
        ttl=ttl,
        wait=wait,
        renew=renew,
        max_hold=max_hold,
        min_hold=min_hold,
        on_lost=on_lost,
        limit=limit,
        waits_for="holder",
        quiet=on_unavailable == "refuse",
    )
    unlocked = on_unavailable == "run"
    verbs = verbs_of(methods)
    lock = ViewLock(template, ViewKey(template, key), verbs, responder, runs_unlocked=unlocked)
    return decorating(lock, view)


def decorating(lock: ViewLock, view: View | None) -> View:
    """Return the view in its lock; without one, the decorator that puts a view into it."""
    if view is not None:
        return _decorate(lock, view)
    decorates = functools.partial(_decorate, lock)
    decorates.__dict__[DECORATES] = lock
    return decorates


def verbs_of(methods: Sequence[str]) -> frozenset[str]:
    """Return the HTTP methods that are locked: a view does for HEAD what it does for GET."""
    given: Any = methods
    is_list = isinstance(given, Collection) and not isinstance(given, str) and len(given) > 0
    if not is_list or not all(isinstance(each, str) for each in given):
        raise TypeError("methods must be a list of HTTP methods, e.g. ['POST']")
    for method in methods:
        if not (method.isascii() and method.replace("-", "").isalpha()):  # as in VERSION-CONTROL
            raise ValueError(f"methods has {method!r}, which is no HTTP method: no request has it")
        if method.upper() in HTTPMethod.__members__:
            continue
        # What is far from all of these may be one of WebDAV, or of one's own.
        alike = [each.value for each in HTTPMethod if abs(len(each) - len(method)) <= 1]
        if hint := did_you_mean(method, alike):
            raise ValueError(f"methods has {method!r}, which no request has{hint}")
    verbs = frozenset(method.upper() for method in methods)
    return verbs | {"HEAD"} if "GET" in verbs else verbs


def _decorate(lock: ViewLock, view: Any) -> View:
    name = lock.decorator
    if not callable(view):
        raise TypeError(
            f"{name}(...) decorates a view, not {type(view).__name__}: in urls.py write "
            f"{lock.example}(view)"
        )
    # method_decorator decorates a partial of the bound method, and anew for each request. So only
    # what depends on the object is looked at then; the rest was, with a function of any arguments.
    is_partial = isinstance(view, functools.partial)
    owner = type(getattr(view.func, "__self__", None)) if is_partial else getattr(view, "cls", view)
    if is_of_rest_framework(owner):
        raise TypeError(
            "REST framework authenticates inside of the view, so this lock would know no user of a "
            f"token: on the class, or above @api_view, write @{name}(...) of "
            f"{lock.module}.rest_framework"
        )
    if is_partial:
        # ``View.dispatch`` is a plain function that returns what an async handler returns.
        is_async = iscoroutinefunction(view) or bool(getattr(owner, "view_is_async", False))
        return lock.wrap(view, lock.read, is_async=is_async)
    _refuse_class_and_method(view, lock)
    lock.key.check(view)
    wrapped = lock.wrap(view, lock.key.reader(view), is_async=iscoroutinefunction(view))
    # Frameworks read annotations, and look those that are text up in the wrapper's module.
    with suppress(NameError, AttributeError, SyntaxError, TypeError, ValueError):
        wrapped.__signature__ = inspect.signature(view, eval_str=True)  # type: ignore[attr-defined]
    wrapped.__dict__[PLACED] = lock
    return wrapped


def is_of_rest_framework(cls: Any) -> bool:
    """Return True if it is a class of REST framework's views, or of one that a site derived."""
    kinds = getattr(cls, "__mro__", ())
    return any(each.__module__.startswith("rest_framework.") for each in kinds)


def _is_bound(view: Any) -> bool:
    while view is not None and not isinstance(view, functools.partial):
        view = vars(view).get("__wrapped__") if hasattr(view, "__dict__") else None
    return view is not None


def _refuse_class_and_method(view: Any, lock: ViewLock) -> None:
    name = lock.decorator
    first = ""
    # What as_view() makes has the class's signature, and is no method; nor is what
    # ``method_decorator`` passes to a list of decorators, which is bound.
    if not hasattr(view, "view_class") and not _is_bound(view):
        with suppress(TypeError, ValueError):
            first = next(iter(inspect.signature(view).parameters), "")
    if first == "self":
        raise TypeError(
            f"{view.__qualname__} is a method, whose first argument is no request: write "
            f"@method_decorator({name}(...)) above it, or on the class "
            f"@method_decorator({name}(...), name='dispatch'); for a view of REST framework, on "
            f"its class, @{name}(...) of {lock.module}.rest_framework"
        )
    if isinstance(view, type):
        raise TypeError(
            f"{view.__qualname__} is a class: write @method_decorator({name}(...), name='dispatch')"
        )

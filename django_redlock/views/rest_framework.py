"""``@single_flight`` for Django REST framework.

    @single_flight("pay:{client}:{pk}")
    class Pay(APIView): ...

REST framework authenticates in ``dispatch``: a lock around that knows no user of a token. Here the
lock is taken behind ``initial()``, so after authentication, permissions and throttles, and around
the handler. So are the transactions of ATOMIC_REQUESTS: when REST framework handles an exception of
the handler, they have been rolled back and the lock is free.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from django_redlock import transactions
from django_redlock.extras import needs

from . import decorator
from .decorator import DECORATES, EVERY, LOCKED
from .refusals import PROBLEM_TYPE, refusal_of
from .rules import Options, Unfilled

with needs(__name__, "rest_framework", "djangorestframework"):
    from rest_framework.exceptions import ParseError
    from rest_framework.response import Response
    from rest_framework.views import APIView, set_rollback
    from rest_framework.views import exception_handler as default_handler

if TYPE_CHECKING:
    from .keys import Key

T = TypeVar("T", bound="type[APIView] | Callable[..., Any]")

__all__ = ["exception_handler", "single_flight"]


def single_flight(
    key: Key | None = None,
    *,
    actions: Collection[str] | None = None,
    **options: Unpack[Options],
) -> Callable[[T], T]:
    """Run one of several equal requests at a time, in a view of REST framework.

    It decorates an ``APIView``, a viewset, or, from above, what ``@api_view`` has made. A class is
    changed, and its subclasses are locked with it. In a key, ``{client}`` and ``{request.user}``
    are whom REST framework has authenticated, and keyword arguments of the URL are fields.

    Args:
        key: which requests are equal, as for ``django_redlock.views.single_flight``.
        actions: of a viewset: those to lock, as ``["create", "pay"]``. None: all.
        options: as for ``django_redlock.views.single_flight``.

    Raises:
        TypeError, ValueError: an option makes no sense, or what is decorated is no such view.
    """
    if callable(key) and (isinstance(key, type) or hasattr(key, "cls")):
        raise TypeError("single_flight of REST framework has parentheses: @single_flight()")
    if isinstance(actions, str):
        raise TypeError(f"actions must be a list of names, as [{actions!r}]")
    locked_by = decorator.single_flight(key=key, **options)

    def decorate(view: T) -> T:
        cls = _class_of(view)
        names = _names(cls, actions)
        _prepare(cls)
        locked: Any = vars(cls)[LOCKED]
        if taken := names & locked.keys():
            raise TypeError(f"{cls.__name__} has a single_flight for {_told(set(taken))} already")
        locked.update(dict.fromkeys(names, locked_by))
        if view is not cls:  # as_view() has copied what dispatch had before
            function: Any = view
            function.__dict__.update(cls.dispatch.__dict__)
        return view

    decorate.__dict__[DECORATES] = True
    return decorate


def _class_of(view: Any) -> Any:
    cls = view if isinstance(view, type) else getattr(view, "cls", None)
    if isinstance(cls, type) and issubclass(cls, APIView):
        return cls
    raise TypeError(
        f"{view!r} is no view of REST framework: decorate a class, or write @single_flight() above "
        "@api_view; other views: django_redlock.views.single_flight"
    )


def _names(cls: type[APIView], actions: Collection[str] | None) -> frozenset[str]:
    if actions is None:
        return frozenset({EVERY})
    if not hasattr(cls, "get_extra_actions"):
        raise TypeError(f"{cls.__name__} is no viewset: leave actions= out, or use methods=")
    if missing := [name for name in actions if not callable(getattr(cls, name, None))]:
        raise ValueError(f"{cls.__name__} has no action {', '.join(missing)}")
    return frozenset(actions)


def _told(names: set[str]) -> str:
    return ", ".join(sorted(names - {EVERY})) or "every action"


def _prepare(cls: type[APIView]) -> None:
    """Let the class open transactions itself, and lock the handler of each request."""
    if LOCKED in vars(cls):
        return
    inherited: dict[str, Any] | None = getattr(cls, LOCKED, None)
    setattr(cls, LOCKED, {})
    if inherited is not None:
        return
    dispatch = cls.dispatch

    @functools.wraps(dispatch)
    def dispatch_without_transaction(self: APIView, *args: Any, **kwargs: Any) -> Any:
        # Of the object, so that a subclass whose initial() calls no super() is locked as well.
        self.__dict__["initial"] = functools.partial(_initial_and_lock, self, self.initial)
        return dispatch(self, *args, **kwargs)

    # as_view() copies the attributes of dispatch to the function that Django calls.
    marked = transactions.EveryDatabase(getattr(dispatch, "_non_atomic_requests", ()))
    dispatch_without_transaction.__dict__["_non_atomic_requests"] = marked
    cls.dispatch = dispatch_without_transaction


def _initial_and_lock(
    view: APIView, initial: Callable[..., None], request: Any, *args: Any, **kwargs: Any
) -> None:
    initial(request, *args, **kwargs)
    name = request.method.lower()
    handler = getattr(view, name, None)
    if handler is not None:
        setattr(view, name, _guarded(view, handler))


def _guarded(view: APIView, handler: Callable[..., Any]) -> Callable[..., Any]:
    """Return the handler in its lock, if it has one, and in its transactions."""
    action = getattr(view, "action", None) or EVERY
    for cls in type(view).__mro__:
        locked = vars(cls).get(LOCKED, {})
        locked_by = locked.get(action) or locked.get(EVERY)
        if locked_by is not None:
            return _with_parse_error(locked_by(functools.partial(_called, handler)))

    def in_transactions(request: Any, *args: Any, **kwargs: Any) -> Any:
        request.lease = None
        databases = transactions.wanted(request, ())
        return transactions.atomic(handler, databases)(request, *args, **kwargs)

    return in_transactions


def _with_parse_error(locked: Callable[..., Any]) -> Callable[..., Any]:
    """Let REST framework answer a request that lacks what its key needs; Django's 400 is a page."""

    def called(*args: Any, **kwargs: Any) -> Any:
        try:
            return locked(*args, **kwargs)
        except Unfilled as error:
            raise ParseError from error

    return called


def _called(handler: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call the handler; not a method of a view, which ``single_flight`` refuses."""
    return handler(*args, **kwargs)


def exception_handler(exc: Exception, context: dict[str, Any]) -> Response | None:
    """Answer 409 or 503 where a view takes a lock itself and does not get it.

    Set ``REST_FRAMEWORK["EXCEPTION_HANDLER"]`` to it, or call it from your own. Everything else is
    left to the handler of REST framework.
    """
    refusal = refusal_of(exc, context["request"])
    if refusal is None:
        return default_handler(exc, context)
    set_rollback()
    renderer = getattr(context["request"], "accepted_renderer", None)
    kind = PROBLEM_TYPE if getattr(renderer, "format", "") == "json" else None
    return Response(refusal.problem, refusal.status, headers=refusal.headers, content_type=kind)

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
import inspect
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, TypeVar, Unpack

from django_redlock import transactions
from django_redlock.extras import needs

from . import decorator
from .decorator import DECORATES, Options
from .keys import Key
from .lock import EVERY, LOCKED, Unfilled, ViewLock, lock_of
from .refusals import PROBLEM_TYPE, refusal_of

with needs(__name__, "rest_framework", "djangorestframework"):
    from rest_framework.exceptions import ParseError
    from rest_framework.response import Response
    from rest_framework.views import APIView, set_rollback
    from rest_framework.views import exception_handler as default_handler

ACTIONS: Final = (  # that routers know; an extra action tells its methods itself
    ("get", "list"),
    ("get", "retrieve"),
    ("post", "create"),
    ("put", "update"),
    ("patch", "partial_update"),
    ("delete", "destroy"),
)
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
        TypeError, ValueError: an option makes no sense, nothing can fill a field of the key, or
            what is decorated is no such view.
    """
    check_parentheses("single_flight", key)
    return decorating(decorator.single_flight(key=key, **options), actions)


def check_parentheses(name: str, key: Any) -> None:
    """Check that the first argument of a decorator is not what it is to decorate."""
    if callable(key) and (isinstance(key, type) or hasattr(key, "cls")):
        raise TypeError(f"{name} of REST framework has parentheses: @{name}()")


def decorating(decorates: Any, actions: Collection[str] | None) -> Callable[[T], T]:
    """Return what puts the actions of a view into the lock of a decorator of Django's views."""
    given: Any = actions
    is_list = isinstance(given, Collection) and not isinstance(given, str) and len(given) > 0
    if given is not None and not (is_list and all(isinstance(each, str) for each in given)):
        example = repr(given) if isinstance(given, str) else "'create'"
        raise TypeError(f"actions must be a list of names, as [{example}]")
    lock: ViewLock = decorates.__dict__[DECORATES]
    lock.check_plain()

    def decorate(view: T) -> T:
        cls = _class_of(view, lock)
        names = _names(cls, actions, lock)
        for handler in _handlers(cls, lock, names):
            lock.key.check(_signature(handler))
        _prepare(cls)
        locks: dict[str, ViewLock] = vars(cls)[LOCKED]
        if twice := names & locks.keys():
            those = ", ".join(sorted(twice - {EVERY})) or "every action"
            before = next(locks[each] for each in sorted(twice)).decorator
            raise TypeError(f"{cls.__name__} has a {before} for {those} already")
        locks.update(dict.fromkeys(names, lock))
        if view is not cls:  # as_view() has copied what dispatch had before
            function: Any = view
            function.__dict__.update(cls.dispatch.__dict__)
        return view

    return decorate


def _class_of(view: Any, lock: ViewLock) -> Any:
    cls = view if isinstance(view, type) else getattr(view, "cls", None)
    if isinstance(cls, type) and issubclass(cls, APIView):
        return cls
    name = lock.decorator
    raise TypeError(
        f"{view!r} is no view of REST framework: decorate a class, or write @{name}() above "
        f"@api_view; other views: {lock.module}.{name}"
    )


def _names(cls: Any, actions: Collection[str] | None, lock: ViewLock) -> frozenset[str]:
    if actions is None:
        return frozenset({EVERY})
    if not hasattr(cls, "get_extra_actions"):
        raise TypeError(f"{cls.__name__} is no viewset: leave actions= out, or use methods=")
    if missing := [name for name in actions if not callable(getattr(cls, name, None))]:
        raise ValueError(f"{cls.__name__} has no action {', '.join(missing)}")
    for each in cls.get_extra_actions():
        for name in set(actions).intersection(each.mapping.values()):
            verbs = {verb.upper() for verb, bound in each.mapping.items() if bound == name}
            if verbs.isdisjoint(lock.methods):
                raise ValueError(
                    f"{cls.__name__}.{name} is for {', '.join(sorted(verbs))}, which is not in "
                    "methods=, so no request to it would be locked"
                )
    return frozenset(actions)


def _handlers(cls: Any, lock: ViewLock, names: Collection[str]) -> Iterator[Callable[..., Any]]:
    """Yield the methods of the class that the lock is for, as far as the class tells them.

    A viewset learns the HTTP methods of its actions from a router, which binds the usual ones in
    one way. An action that has a lock of its own is left out.
    """
    verbs: dict[str, set[str]] = {}
    if hasattr(cls, "get_extra_actions"):
        bound = [
            *ACTIONS,
            *(pair for each in cls.get_extra_actions() for pair in each.mapping.items()),
        ]
    else:
        bound = [(verb, verb) for verb in cls.http_method_names]
    for verb, name in bound:
        verbs.setdefault(name, set()).add(verb.upper())
    chosen = verbs.keys() - getattr(cls, LOCKED, {}).keys() if EVERY in names else names
    view = object.__new__(cls)  # so that a method is bound, whatever kind it is of
    for name in sorted(chosen):
        handler = getattr(view, name, None)
        if handler is not None and verbs.get(name, lock.methods) & lock.methods:
            yield handler


def _signature(handler: Callable[..., Any]) -> inspect.Signature:
    """Return what a handler is called with: the request by position, the rest by name."""
    if getattr(handler, "__module__", "") == "rest_framework.decorators":  # of @api_view
        handler = inspect.getclosurevars(handler).nonlocals.get("func", handler)
    request = inspect.Parameter("request", inspect.Parameter.POSITIONAL_ONLY)
    rest = inspect.signature(functools.partial(handler, None)).parameters.values()
    return inspect.Signature([request, *rest])


def _prepare(cls: type[APIView]) -> None:
    """Let the class open transactions itself, and lock the handler of each request."""
    if LOCKED in vars(cls):
        return
    is_prepared = hasattr(cls, LOCKED)
    setattr(cls, LOCKED, {})
    if is_prepared:
        return
    dispatch = cls.dispatch

    @functools.wraps(dispatch)
    def dispatch_without_transaction(self: APIView, *args: Any, **kwargs: Any) -> Any:
        # Of the object, so that a subclass whose initial() calls no super() is locked as well.
        self.__dict__["initial"] = functools.partial(_initial, self, self.initial)
        return dispatch(self, *args, **kwargs)

    # as_view() copies the attributes of dispatch to the function that Django calls.
    marked = transactions.EveryDatabase(getattr(dispatch, "_non_atomic_requests", ()))
    dispatch_without_transaction.__dict__["_non_atomic_requests"] = marked
    cls.dispatch = dispatch_without_transaction


def _initial(
    view: APIView, initial: Callable[..., None], request: Any, *args: Any, **kwargs: Any
) -> None:
    """Authenticate and so on; then put the handler, which ``dispatch`` calls next, in its lock."""
    initial(request, *args, **kwargs)
    name = request.method.lower()
    handler = getattr(view, name, None)
    if handler is not None:
        lock = lock_of(type(view), getattr(view, "action", None) or EVERY)
        setattr(view, name, functools.partial(_handle, lock, handler))


def _handle(
    lock: ViewLock | None,
    handler: Callable[..., Any],
    request: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Call the handler of a request in its lock, if it has one, and in its transactions."""
    if lock is None:
        request.lease = None
        databases = transactions.wanted(request, ())
        return transactions.atomic(handler, databases)(request, *args, **kwargs)
    try:
        return lock.run(handler, lock.read, (), request, *args, **kwargs)
    except Unfilled as error:  # for REST framework to answer: Django's 400 is a page
        raise ParseError from error


def exception_handler(exc: Exception, context: dict[str, Any]) -> Response | None:
    """Answer 409 or 503, without ``Retry-After``, where a view does not get a lock that it takes.

    Set ``REST_FRAMEWORK["EXCEPTION_HANDLER"]`` to it, or call it from your own. Everything else is
    left to the handler of REST framework.
    """
    refusal = refusal_of(exc)
    if refusal is None:
        return default_handler(exc, context)
    set_rollback()
    renderer = getattr(context["request"], "accepted_renderer", None)
    kind = PROBLEM_TYPE if getattr(renderer, "format", "") == "json" else None
    return Response(refusal.problem, refusal.status, headers=refusal.headers, content_type=kind)

"""Let operations of django-ninja open the transactions of ATOMIC_REQUESTS inside their locks.

    @api.post("/orders/{pk}/pay")
    @single_flight("pay:{client}:{pk}")
    def pay(request, pk: int): ...

    urlpatterns = [path("api/", non_atomic(api.urls))]

django-ninja authenticates before it calls an operation, so ``django_redlock.views.single_flight``
is right there. But the request handler opens its transaction around the whole API: the lock would
be released before the COMMIT, and an exception that the API answers rolls nothing back.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.db import connections
from django.urls import URLPattern

from django_redlock.transactions import EveryDatabase

Urls: TypeAlias = tuple[Sequence[Any], str, str]  # as ``NinjaAPI.urls``

__all__ = ["non_atomic", "operations_of"]


def non_atomic(urls: Urls) -> Urls:
    """Return the URLs of an API around which the request handler opens no transaction.

    An operation under ``single_flight`` opens those of ATOMIC_REQUESTS itself, in its lock. The
    other operations have none: decorate with ``transaction.atomic`` what writes more than once.

    Args:
        urls: ``api.urls``, of a ``NinjaAPI``.

    Raises:
        TypeError: it is something else.
    """
    given: Any = urls
    if not isinstance(given, tuple) or len(given) != 3:  # noqa: PLR2004 - as path() takes it
        raise TypeError(
            "non_atomic() takes the URLs of a NinjaAPI: path('api/', non_atomic(api.urls))"
        )
    patterns, app, namespace = urls
    return [_marked(each) for each in patterns], app, namespace


def _marked(pattern: Any) -> Any:
    if not isinstance(pattern, URLPattern):
        raise TypeError(f"non_atomic() knows paths of operations, not {pattern!r}")
    view = pattern.callback

    @functools.wraps(view)
    def called(*args: Any, **kwargs: Any) -> Any:
        return view(*args, **kwargs)

    if iscoroutinefunction(view):
        markcoroutinefunction(called)
        # Tasks have no transactions: single_flight finds every database marked by its name.
        called.__dict__["_non_atomic_requests"] = set(connections)
    else:
        called.__dict__["_non_atomic_requests"] = EveryDatabase()
    return URLPattern(pattern.pattern, called, pattern.default_args, pattern.name)


def operations_of(view: Any) -> list[Any]:
    """Return the operations that a view of django-ninja serves, one for each method; of others, [].

    Django-ninja makes a function for each path, and nothing but a cell of the function tells the
    path.
    """
    while view is not None:
        owners = [getattr(view, "__self__", None)]
        for cell in getattr(view, "__closure__", None) or ():
            with suppress(ValueError):  # it is still empty
                owners.append(cell.cell_contents)
        for owner in owners:  # of which a lazy object, or a mock, has any attribute
            if any(each.__module__.startswith("ninja.") for each in type(owner).__mro__):
                return list(getattr(owner, "operations", ()))
        view = getattr(view, "__dict__", {}).get("__wrapped__")  # of ``non_atomic``
    return []

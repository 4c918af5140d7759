"""``@idempotent`` for Django REST framework.

    @idempotent()
    class Pay(APIView): ...

As ``single_flight`` there, it acts behind ``initial()``: after authentication, permissions and
throttles. What REST framework answers to an exception of the handler, such as a 400, is stored as
well, after the transaction has been rolled back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NoReturn, Unpack

from django_redlock.core.errors import RedlockError
from django_redlock.extras import needs
from django_redlock.views.decorator import DECORATES
from django_redlock.views.lock import View

from . import decorator
from .decorator import Options, Outcome

with needs(__name__, "rest_framework", "djangorestframework"):
    from django_redlock.views.rest_framework import T, check_parentheses, decorating

__all__ = ["idempotent"]


def idempotent(
    view: Any = None,
    /,
    *,
    actions: Collection[str] | None = None,
    **options: Unpack[Options],
) -> Callable[[T], T]:
    """Do the work of a request once, in a view of REST framework.

    It decorates an ``APIView``, a viewset, or, from above, what ``@api_view`` has made. A class is
    changed, and its subclasses with it.

    Args:
        actions: of a viewset: those that are meant, as ``["create", "pay"]``. None: all.
        options: as for ``django_redlock.idempotency.idempotent``.

    Raises:
        TypeError, ValueError: an option makes no sense, nothing can fill a field of the key, or
            what is decorated is no such view.
    """
    check_parentheses("idempotent", view)
    if view is not None:
        raise TypeError("idempotent of REST framework takes its options by name")
    decorates: Any = decorator.idempotent(**options)
    decorates.__dict__[DECORATES].answering = _answering
    return decorating(decorates, actions)


def _answering(handler: View, request: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Call the handler, and return its response with all that REST framework knows of it.

    What REST framework answers to an exception, it decides when the work has been rolled back.

    Raises:
        RedlockError: a lock was not to be had, or is lost; no repetition must get to see that.
    """
    view = request.parser_context["view"]
    try:
        response = handler(request, *args, **kwargs)
    except RedlockError:
        raise
    except Exception as error:  # noqa: BLE001 - REST framework decides which it answers
        return Outcome(afterwards=partial(_answered, view, error, request, *args, **kwargs))
    return view.finalize_response(request, response, *args, **kwargs)


def _answered(view: Any, error: Exception, request: Any, /, *args: Any, **kwargs: Any) -> Any:
    try:
        response = view.handle_exception(error)
    except Exception:
        view.handle_exception = _raise  # ``dispatch`` would ask once more
        raise
    return view.finalize_response(request, response, *args, **kwargs)


def _raise(error: Exception) -> NoReturn:
    raise error

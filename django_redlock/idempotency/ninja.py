"""What an operation of django-ninja answers: ``@idempotent`` stands below ``@api.post(...)``.

An operation returns data, of which django-ninja makes the response when the operation is over. The
answer has to be known before the COMMIT, so it is made here, by django-ninja itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import HttpResponse

__all__ = ["response_of"]


def response_of(request: Any, result: Any, arguments: Mapping[str, Any]) -> Any:
    """Return the response that django-ninja makes of a result; the result where it serves none.

    Args:
        request: the request.
        result: what the operation has returned.
        arguments: with which it was called: one may be the response that its headers go to.
    """
    operation = _operation(request)
    if operation is None:
        return result
    given = (each for each in arguments.values() if isinstance(each, HttpResponse))
    response = next(given, None) or operation.api.create_temporal_response(request)
    return operation._result_to_response(request, result, response)  # noqa: SLF001 - no other way


def _operation(request: Any) -> Any:
    """Return the operation that serves the request: its path has one for each method."""
    view = getattr(getattr(request, "resolver_match", None), "func", None)
    while view is not None:  # a method of the path, or a function that has it in a cell
        cells = (cell.cell_contents for cell in getattr(view, "__closure__", None) or ())
        for owner in (getattr(view, "__self__", None), *cells):
            operations = getattr(owner, "operations", None)
            if isinstance(operations, list):
                return next((each for each in operations if request.method in each.methods), None)
        view = getattr(view, "__wrapped__", None)
    return None

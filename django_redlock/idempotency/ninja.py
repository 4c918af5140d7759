"""What an operation of django-ninja answers: ``@idempotent`` stands below ``@api.post(...)``.

An operation returns data, of which django-ninja makes the response when the operation is over. The
answer has to be known before the COMMIT, so it is made here, by django-ninja itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import HttpResponse

from django_redlock.views.ninja import operations_of

__all__ = ["response_of"]


def response_of(request: Any, result: Any, arguments: Mapping[str, Any]) -> Any:
    """Return the response that django-ninja makes of a result; the result where it serves none.

    Args:
        request: the request.
        result: what the operation has returned.
        arguments: with which it was called: one may be the response that its headers go to.
    """
    view = getattr(getattr(request, "resolver_match", None), "func", None)
    serving = (each for each in operations_of(view) if request.method in each.methods)
    operation = next(serving, None)
    if operation is None:
        return result
    given = (each for each in arguments.values() if isinstance(each, HttpResponse))
    response = next(given, None) or operation.api.create_temporal_response(request)
    return operation._result_to_response(request, result, response)  # noqa: SLF001 - no other way

"""What a request is told that may not run now: constant bodies, and when to come back.

Nothing in them depends on the lock: no name, no holder, no node, no reason. Whoever may send the
request learns that the same one is running, and for how long at the most.
"""

from __future__ import annotations

import json
import logging
import math
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from django.http import HttpResponse

if TYPE_CHECKING:
    from django.http import HttpRequest

BUSY: Final = frozenset({409, 423, 429})  # how "somebody else runs it" may be said
LONGEST_RETRY: Final = 60  # seconds; nobody is sent away for longer
UNAVAILABLE_RETRY: Final = 5  # seconds; nobody knows when the nodes come back

_MARK: Final = "redlock_refused"  # the request's attribute: the status it was refused with
_TYPES: Final = ("text/html", "application/problem+json", "application/json")
_TEXT: Final = dict.fromkeys(BUSY, "This request is already being processed.") | {
    503: "This request cannot be processed at the moment."
}
_PAGE: Final = (
    '<!doctype html>\n<html lang="en">\n<title>{title}</title>\n'
    "<h1>{title}</h1>\n<p>{text} Please try again later.</p>\n"
)


def busy(request: HttpRequest, status: int, retry_after: float | None) -> HttpResponse:
    """Somebody else runs it."""
    seconds = 1 if retry_after is None else math.ceil(min(retry_after, LONGEST_RETRY))
    return _response(request, status, max(1, seconds))


def unavailable(request: HttpRequest) -> HttpResponse:
    """Nobody can say whether somebody else runs it."""
    return _response(request, 503, UNAVAILABLE_RETRY)


class IgnoreRefusals(logging.Filter):
    """A filter for the logger ``django.request``: without lines about what was refused.

    Django logs every answer from 400 on: a 409 as a warning, and a 503 as an error, which its
    default settings mail to the ADMINS. An error that is raised after the refusal, in a
    middleware, is logged as ever.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        refused = getattr(getattr(record, "request", None), _MARK, None)
        status = getattr(record, "status_code", None)
        return refused is None or status != refused or record.exc_info is not None


def _response(request: Any, status: int, retry_after: int) -> HttpResponse:
    title = HTTPStatus(status).phrase
    if (request.get_preferred_type(_TYPES) or "").endswith("json"):
        problem = {"type": "about:blank", "title": title, "status": status}
        body, content_type = json.dumps(problem), "application/problem+json"
    else:
        body, content_type = _PAGE.format(title=title, text=_TEXT[status]), None
    # A framework's request may stand around Django's, which is the one that Django logs.
    for each in (request, getattr(request, "_request", None)):
        if each is not None:
            setattr(each, _MARK, status)
    return HttpResponse(
        body,
        status=status,
        content_type=content_type,
        headers={"Retry-After": str(retry_after), "Cache-Control": "no-store"},
    )

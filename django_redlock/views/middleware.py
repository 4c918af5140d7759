"""Answer a request whose view does not get a lock that it takes itself.

MIDDLEWARE = [..., "django_redlock.views.RedlockMiddleware"]
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from asgiref.sync import iscoroutinefunction, markcoroutinefunction

from .begun import note_view
from .refusals import RETRY_AFTER
from .responses import Answers

if TYPE_CHECKING:
    from django.http import HttpRequest
    from django.http.response import HttpResponseBase


class RedlockMiddleware:
    """Turn a LockTaken or NodesUnavailable that a view raises into a response, 409 or 503.

    The responses are those of ``single_flight``; a subclass changes them by its attributes, or by
    methods of these names. A view that has held a lock before is answered 409 or 503 without
    ``Retry-After``: part of its work may be done. For the same reason LeaseLost passes, and so
    does a NodesUnavailable of ``Lease.extend``.

    Attributes:
        status: of the response while the lock is held by another: 409, 423 or 429.
        retry_after: the ``Retry-After`` of that response, see ``single_flight``.
        on_refused: makes the responses, see ``single_flight``; a plain function, also where views
            are async.
    """

    sync_capable = True
    async_capable = True
    status: ClassVar[int] = 409
    retry_after: ClassVar[Any] = RETRY_AFTER  # or a method, which has another signature
    on_refused: ClassVar[Any] = None

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._answers = Answers(self.status, self.retry_after, self.on_refused)
        self._answers.check_plain()
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        """Pass the request on; an awaitable in a chain of async middleware."""
        note_view(request)  # not in process_view, which Django would run in a thread
        return self.get_response(request)

    def process_exception(
        self, request: HttpRequest, exception: Exception
    ) -> HttpResponseBase | None:
        """Return the response, or None for an exception that is no refusal."""
        refusal = self._answers.decide(exception, request)
        return None if refusal is None else self._answers.respond(request, refusal)

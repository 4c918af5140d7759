"""Decide what is answered to a request that does not get a lock; make no response.

``responses`` makes one of Django's. An exception handler of another framework makes its own of a
``Refusal``. No text depends on the lock: it has no name, no holder, no node, no reason.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from django.utils.translation import gettext, gettext_noop

from django_redlock.core.errors import LockTaken, NodesUnavailable
from django_redlock.core.policy import check_seconds
from django_redlock.core.reasons import ReasonCode

from .begun import has_begun

logger = logging.getLogger("django_redlock")

RetryAfter: TypeAlias = "float | Callable[[LockTaken], float | None]"

BUSY: Final = frozenset({409, 423, 429})  # statuses that may say that an equal request is running
PROBLEM_TYPE: Final = "application/problem+json"
RETRY_AFTER: Final = 1.0  # seconds: most requests are over sooner than their ttl
UNAVAILABLE_RETRY: Final = 5  # seconds; it is unknown when the nodes come back

# The lock was had, and some of its work may be done: no answer invites to try again.
_OF_A_HOLDER: Final = frozenset({ReasonCode.NOT_EXTENDED, ReasonCode.NOT_ASKED})
_TITLES: Final = {
    409: gettext_noop("Conflict"),
    423: gettext_noop("Locked"),
    429: gettext_noop("Too Many Requests"),
    503: gettext_noop("Service Unavailable"),
}
# The browser shows the answer to the second click of a double click. An invitation to try again
# would make the customer order twice, so only the 503 without a majority has one. The lock may
# also be held by somebody else's request or by a task: the sentences are true for that, too.
_TAKEN: Final = gettext_noop(
    "This request was not carried out, because the same or related work is being done, or was "
    "done a moment ago. If you sent it twice, the first request goes on: please look at its result."
)
_UNAVAILABLE: Final = gettext_noop(
    "This request was not carried out, because it cannot be processed at the moment. "
    "Please try again later."
)
_BEGUN: Final = gettext_noop(
    "This request was not completed, and part of it may have been processed. "
    "Please look at the result before you repeat it."
)
_HEADINGS: Final = {
    _TAKEN: gettext_noop("One moment, please"),
    _UNAVAILABLE: gettext_noop("Not possible at the moment"),
    _BEGUN: gettext_noop("Please look at the result"),
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """What is answered to a request that does not get a lock.

    Attributes:
        status: of the response.
        retry_after: whole seconds after which the client may try again; None if ``begun``.
        error: why, for logs: its text names the lock, its holder and the nodes, so do not show it.
        begun: whether the view has worked under another lock before. Part of its work may be done,
            so the client shall not repeat the request blindly.
    """

    status: int
    retry_after: int | None
    error: LockTaken | NodesUnavailable
    begun: bool = False

    @property
    def title(self) -> str:
        """The status in words, in the language of the request."""
        return gettext(_TITLES.get(self.status) or HTTPStatus(self.status).phrase)

    @property
    def detail(self) -> str:
        """A text for people, in the language of the request."""
        return gettext(self._message)

    @property
    def heading(self) -> str:
        """The line above it on a page; the status in words would tell a customer nothing."""
        return gettext(_HEADINGS[self._message])

    @property
    def _message(self) -> str:
        if self.begun:
            return _BEGUN
        # Where too many requests wait, the lock is held although the status is 503.
        return _TAKEN if isinstance(self.error, LockTaken) else _UNAVAILABLE

    @property
    def problem(self) -> dict[str, Any]:
        """The body for programs: problem details, RFC 9457."""
        about = {"type": "about:blank", "title": self.title, "status": self.status}
        return about | {"detail": self.detail}

    @property
    def headers(self) -> dict[str, str]:
        """The headers that belong to it."""
        again = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return again | {"Cache-Control": "no-store"}


def refusal_of(
    error: BaseException,
    request: Any,
    *,
    status: int = 409,
    retry_after: RetryAfter = RETRY_AFTER,
) -> Refusal | None:
    """Decide what is answered when ``error`` was raised; log it if the view has begun.

    Args:
        error: any exception.
        request: the request whose view raised it; Django's, or that of REST framework.
        status: while the lock is held by another: 409, 423 or 429.
        retry_after: seconds after which the client may try again then: a number, or a function
            that is called with the LockTaken; None is one second.

    Returns:
        The refusal. None if it is none: LeaseLost, and a NodesUnavailable of a lease that could
        not be extended, are raised in the middle of the work.
    """
    if isinstance(error, LockTaken):
        return refuse(error, request, status, _whole(retry_after, error))
    if isinstance(error, NodesUnavailable) and error.code not in _OF_A_HOLDER:
        return refuse(error, request, 503, UNAVAILABLE_RETRY)
    return None


def refuse(
    error: LockTaken | NodesUnavailable, request: Any, status: int, retry_after: int
) -> Refusal:
    """Return the refusal; that of a view which has begun invites to no repetition.

    It has a status of its own where a lock is held: clients repeat after a 423 or a 429.
    """
    if not has_begun(request):
        return Refusal(status, retry_after, error)
    status = 409 if isinstance(error, LockTaken) else 503
    text = "a request is answered %d although its view has begun, and part of it may be done: %s"
    told = {"redlock_name": error.name, "redlock_code": error.code}
    logger.warning(text, status, error, extra=told)
    return Refusal(status, None, error, begun=True)


def _whole(retry_after: RetryAfter, error: LockTaken) -> int:
    seconds = retry_after(error) if callable(retry_after) else retry_after
    if seconds is None:
        seconds = RETRY_AFTER
    if isinstance(seconds, int | float):  # else the check refuses it
        seconds = max(0.0, seconds)
    return max(1, math.ceil(check_seconds("retry_after", seconds, zero=True)))

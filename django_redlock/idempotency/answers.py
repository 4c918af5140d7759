"""What is stored of a response, how it is replayed, and what is answered instead of either.

A response is stored as it leaves the view: status, some headers, the body. What a middleware adds,
such as the cookie of a session, it adds to a replay as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from asgiref.sync import iscoroutinefunction
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.utils.translation import gettext, gettext_noop

from django_redlock.views.refusals import Refusal

from .keys import Unkeyed
from .models import Record

REPLAYED: Final = "Idempotency-Replayed"
ERROR: Final = 400
SERVER_ERROR: Final = 500
MAX_BODY: Final = 2**20  # bytes of a body that is stored
HEADERS: Final = (
    "Allow",
    "Cache-Control",
    "Content-Disposition",
    "Content-Encoding",
    "Content-Language",
    "Content-Type",
    "ETag",
    "Last-Modified",
    "Link",
    "Location",
    "WWW-Authenticate",
)
OF_A_BODY: Final = {"content-type", "content-encoding"}  # without them nobody can read it

_TITLES: Final = {
    400: gettext_noop("Bad Request"),
    413: gettext_noop("Content Too Large"),
    422: gettext_noop("Unprocessable Content"),
}
_HEADING: Final = gettext_noop("We could not process this form")
_DETAILS: Final = {
    "key": gettext_noop(
        "This request was not carried out, because it has no Idempotency-Key: send one that you "
        "have made for this request, and send it again with each repetition."
    ),
    "format": gettext_noop(
        "This request was not carried out, because its Idempotency-Key is not valid: send 1 to 255 "
        "visible characters of ASCII, such as a UUID."
    ),
    "client": gettext_noop(
        "This request was not carried out, because nobody is logged in: its Idempotency-Key could "
        "be that of somebody else."
    ),
    "lacks": gettext_noop(
        "This request was not carried out, because it lacks a value that its key is made of."
    ),
    "size": gettext_noop("This request was not carried out, because its content is too large."),
    "other": gettext_noop(
        "This request was not carried out, because its Idempotency-Key was sent before with "
        "another content. If you meant to change something, send it with a new key."
    ),
}
# Of keys a visitor knows nothing: what is wrong with them is the developer's, and is logged. A page
# that was open while the site got a new version has no key, and has one when it is loaded again.
_RELOAD: Final = gettext_noop(
    "Please open the form again and send it once more. If you see this page again, please tell the "
    "people who run this site."
)
_FOR_PEOPLE: Final = dict.fromkeys(("key", "format", "client", "lacks"), _RELOAD) | {
    "other": gettext_noop(
        "This request was not carried out, because it was sent before with another content."
    ),
}


# A holder that has died keeps its lock for a ttl, and nobody can tell it from one that works. A
# request that is sent again with its key does no harm, so both sentences ask for that.
_AGAIN: Final = gettext_noop(
    "This request was not carried out, because it was sent before, and the first one is still "
    "being processed or was interrupted. Please load this page again in a moment: the request is "
    "carried out only once."
)
_AGAIN_FOR_PROGRAMS: Final = gettext_noop(
    "This request was not carried out, because it was sent before, and the first one is still "
    "being processed or was interrupted. Send it again in a moment with the same key: it is "
    "carried out only once."
)


class NotReplayable(TypeError):  # noqa: N818 - a state of the response
    """The response of a view cannot be stored, so its work is rolled back."""


NotReplayable.__module__ = "django_redlock.idempotency"


class SentAgain(Refusal):
    """What is answered to a request while the lock of its first one is held."""

    leads_back: ClassVar[bool] = False  # the form there has a new key, and would order once more

    @property
    def detail(self) -> str:
        """A text for people, in the language of the request."""
        return gettext(_AGAIN)

    @property
    def problem(self) -> dict[str, Any]:
        """The body for programs, whose authors know of keys."""
        return super().problem | {"detail": gettext(_AGAIN_FOR_PROGRAMS)}


class KeyRefusal(Refusal):
    """What is answered to a request whose key cannot be used; ``error`` is an ``Unkeyed``."""

    @property
    def title(self) -> str:
        """The status, in words."""
        return gettext(_TITLES[self.status])

    @property
    def detail(self) -> str:
        """A text for people, in the language of the request."""
        return gettext(_FOR_PEOPLE.get(self._why) or _DETAILS[self._why])

    @property
    def problem(self) -> dict[str, Any]:
        """The body for programs, whose authors know of keys."""
        return super().problem | {"detail": gettext(_DETAILS[self._why])}

    @property
    def _why(self) -> str:
        return getattr(self.error, "why", "lacks")

    @property
    def heading(self) -> str:
        """The line above it on a page."""
        return gettext(_HEADING)


def of_another_request(record: Record) -> Unkeyed:
    """Return the error of a request whose key was sent with another content."""
    text = f"its key {record.key!r} has the record of a request with another content"
    return Unkeyed("other", f"{text}: let key= name all that tells requests apart", status=422)


class Storing:
    """What is stored of a response, by the options of ``idempotent``.

    Args:
        store: says of a response whether it is stored; None: one below 500, unless it is an error
            that asks for a repetition by ``Retry-After``.
        headers: the names of those that are stored.
        max_body: bytes of a body, at most.
        store_body: whether a body is stored at all.

    Raises:
        TypeError, ValueError: an option makes no sense.
    """

    def __init__(
        self,
        store: Callable[[Any], bool] | None,
        headers: Sequence[str],
        max_body: int,
        *,
        store_body: bool,
    ) -> None:
        given: Any = store
        if not (given is None or callable(given)) or iscoroutinefunction(given):
            raise TypeError("store must be a plain function that is called with the response")
        names: Any = headers
        if isinstance(names, str) or not all(isinstance(each, str) for each in names):
            raise TypeError("headers must be a list of names, as ['Content-Type', 'Location']")
        if any(each.lower() == "set-cookie" for each in names):
            raise ValueError("headers cannot have Set-Cookie: a cookie is not replayed")
        largest: Any = max_body
        if isinstance(largest, bool) or not isinstance(largest, int) or largest < 0:
            raise TypeError(f"max_body must be a number of bytes, not {largest!r}")
        self._store = store
        chosen = frozenset(each.lower() for each in names)
        self._headers: Final = chosen | OF_A_BODY if store_body else chosen - OF_A_BODY
        self._max_body = max_body
        self._store_body = store_body

    def answer_of(self, response: Any) -> dict[str, Any] | None:
        """Return what is stored of a response; None: nothing, and the work is rolled back.

        Raises:
            NotReplayable: it should be stored, and cannot be.
        """
        if not isinstance(response, HttpResponseBase):
            kind = type(response).__name__
            raise NotReplayable(f"the view returned {kind}, and only a response can be replayed")
        if not (self._store or _is_stored)(response):
            return None
        self._check(response)
        return {
            "status": response.status_code,
            "headers": [
                [name, value] for name, value in response.items() if name.lower() in self._headers
            ],
            "body": response.content if self._store_body else None,  # type: ignore[attr-defined]
        }

    def _check(self, response: Any) -> None:
        if response.streaming:
            for close in response._resource_closers:  # noqa: SLF001 - close() ends the request
                close()
            problem = "it is a stream, whose end comes after the COMMIT"
        elif response.cookies or "Set-Cookie" in response:
            names = ", ".join(sorted(response.cookies)) or response["Set-Cookie"].partition("=")[0]
            problem = f"it sets the cookie {names}, and a cookie is not stored"
        elif self._store_body and len(response.content) > self._max_body:
            size = len(response.content)
            problem = f"its body has {size} bytes, more than max_body={self._max_body}"
        else:
            return
        raise NotReplayable(
            f"the response cannot be replayed: {problem}. The work is rolled back. Answer with a "
            "small response, such as a redirect to what was made; or let store= return False for "
            "it, and the work of such a response is rolled back as well"
        )


def _is_stored(response: Any) -> bool:
    # The "202 Accepted" of an API that is polled has a Retry-After, too, and is a success.
    asks_again = response.status_code >= ERROR and "Retry-After" in response
    return response.status_code < SERVER_ERROR and not asks_again


def replay(record: Record) -> HttpResponse:
    """Return the response of a record."""
    response = HttpResponse(bytes(record.body or b""), status=record.status)
    del response["Content-Type"]
    for name, value in record.headers:
        response[name] = value
    response[REPLAYED] = "true"
    return response

"""Answer requests that do not get a lock.

``Responder`` makes Django's response, by default with a constant body. ``RedlockMiddleware``
answers for locks that a view takes itself. ``refusal_of`` decides the same and makes no response:
an exception handler of another framework makes its own of a ``Refusal``.

Only the outermost ``@single_flight`` or ``@idempotent`` refuses a request before its view begins,
so only its answer has a ``Retry-After``. Of any other refusal nobody knows what the view has done
before.

No text depends on the lock: it has no name, no holder, no node, no reason.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, ClassVar, Final, Literal, TypeAlias

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.apps import apps
from django.core.exceptions import DisallowedHost, ImproperlyConfigured
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.templatetags.static import static
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import get_language, get_language_bidi, gettext, gettext_noop

from django_redlock.core.errors import LockTaken, NodesUnavailable
from django_redlock.core.policy import check_seconds
from django_redlock.core.reasons import ReasonCode
from django_redlock.locks.callables import check_call

BUSY: Final = frozenset({409, 423, 429})  # statuses that may say that an equal request is running
PROBLEM_TYPE: Final = "application/problem+json"
RETRY_AFTER: Final = 1.0  # seconds: most requests are over sooner than their ttl
UNAVAILABLE_RETRY: Final = 5  # seconds; it is unknown when the nodes come back

# The view had the lock, and does not know any more for how long: a fault, which somebody looks at.
_OF_A_HOLDER: Final = frozenset({ReasonCode.NOT_EXTENDED, ReasonCode.NOT_ASKED})
_TITLES: Final = {
    409: gettext_noop("Conflict"),
    423: gettext_noop("Locked"),
    429: gettext_noop("Too Many Requests"),
    503: gettext_noop("Service Unavailable"),
}
# The browser shows the response to the second click of a double click. An invitation to try again
# would make the customer order twice, so only the 503 without a majority has one. The lock may
# also be held by somebody else's request or by a task, or be left by a process that has died and
# goes on no more: the sentences are true for that, too.
_TAKEN: Final = gettext_noop(
    "This request was not carried out, because the same or related work is being done, or was "
    "begun a moment ago. If you sent it twice, please look at the result of the first request."
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
        status: the status of the response.
        retry_after: whole seconds after which the name may be free; None if ``begun``.
        error: the reason, for logs: its text names the lock, its holder and the nodes, so do not
            show it.
        begun: whether the lock was refused inside of a view. Part of the work may be done, so the
            client shall not repeat the request blindly.
        form: the address of the form whose request ``idempotent`` refuses, for a link; else "".
        result: the address that ``result=`` of the view names, for a link; "" if it names none, and
            where no request has begun the work.
        back: the address of the page that has sent the request, for a link; "" if it is not of
            this site, and where a form that is opened anew would do the work twice.
    """

    status: int
    retry_after: int | None
    error: Exception
    begun: bool = False
    form: str = ""
    result: str = ""
    back: str = ""
    # Whether the page that has sent the request may be opened anew.
    leads_back: ClassVar[bool] = True

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
        """The body for programs, problem details of RFC 9457."""
        about = {"type": "about:blank", "title": self.title, "status": self.status}
        return about | {"detail": self.detail}

    @property
    def headers(self) -> dict[str, str]:
        """The headers that belong to it."""
        again = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return again | {"Cache-Control": "no-store"}


RetryAfter: TypeAlias = "float | Callable[[LockTaken], float | None]"
WithoutMajority: TypeAlias = Literal["refuse", "run"]
OnRefused: TypeAlias = "str | Callable[[Any, Refusal], Any] | None"
Result: TypeAlias = "str | Promise | Callable[[Any], Any] | None"  # a promise of reverse_lazy


# -- the decision ----------------------------------------------------------------------------------


def refusal_of(error: BaseException) -> Refusal | None:
    """Decide what is answered when a view raises ``error``.

    Args:
        error: any exception.

    Returns:
        The refusal, a 409 or a 503. It has no ``Retry-After``, because part of the work may be
        done, and many clients repeat a request by themselves after a 423 or a 429, or where they
        are told a time.
        None if the error is no refusal: LeaseLost, and a NodesUnavailable of a lease that could
        not be extended, are raised in the middle of the work.
    """
    if isinstance(error, LockTaken | NodesUnavailable) and error.code not in _OF_A_HOLDER:
        return refused_inside(error)
    return None


def refused_inside(error: LockTaken | NodesUnavailable) -> Refusal:
    """Return the refusal of a lock inside of a view: a client does not repeat it by itself."""
    return Refusal(409 if isinstance(error, LockTaken) else 503, None, error, begun=True)


def _whole_seconds(retry_after: RetryAfter, error: LockTaken) -> int:
    seconds = retry_after(error) if callable(retry_after) else retry_after
    if seconds is None:
        seconds = RETRY_AFTER
    if isinstance(seconds, int | float):  # else the check refuses it, and NaN, too
        seconds = 0.0 if seconds < 0 else seconds
    return max(1, math.ceil(check_seconds("retry_after", seconds, zero=True)))


def djangos_request(request: Any) -> Any:
    """Return Django's request, which that of a framework may wrap."""
    return getattr(request, "_request", request)


def page_before(request: Any) -> str:
    """Return the address of the page that has sent a request; "" if it names none of this site."""
    page = request.headers.get("Referer", "")
    with suppress(DisallowedHost):
        host = request.get_host() if page else ""
        if url_has_allowed_host_and_scheme(page, host, require_https=request.is_secure()):
            return str(page)
    return ""


# -- the response ----------------------------------------------------------------------------------

_REFUSED: Final = "redlock_refused"  # the request's attribute: the status of its refusal
_PAGES: Final = ("text/html", "application/xhtml+xml")
_FRAMEWORKS: Final = frozenset({"rest_framework", "ninja", "ninja_extra"})
_PAGE: Final = (
    '<!doctype html>\n<html lang="{}" dir="{}">\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    '<meta name="color-scheme" content="light dark">\n'
    "{}<title>{}</title>\n<main>\n<h1>{}</h1>\n<p>{}</p>\n{}</main>\n"
)
_STYLE: Final = '<link rel="stylesheet" href="{}">\n'  # a CSP would refuse a style in the page
_LINK: Final = '<p><a href="{}">{}</a></p>\n'


@dataclass(frozen=True, slots=True)
class Responder:
    """Makes the responses to refused requests, by the options of ``single_flight``.

    Raises:
        TypeError, ValueError: an option makes no sense.
    """

    status: int = 409
    retry_after: RetryAfter = RETRY_AFTER
    on_refused: OnRefused = None
    result: Result = None
    no_result: Callable[[Exception], object] | None = None  # called where result= fails

    def __post_init__(self) -> None:
        given: Any = self.status  # a list cannot be looked up in a set
        if not isinstance(given, int) or given not in BUSY:
            raise ValueError(f"status must be one of {sorted(BUSY)}, not {self.status!r}")
        if iscoroutinefunction(self.retry_after):
            raise TypeError(
                "retry_after must be a number of seconds or a plain function, not a coroutine one"
            )
        if callable(self.retry_after):
            check_call("retry_after", self.retry_after, "taken")
        else:
            check_seconds("retry_after", self.retry_after)
        named = isinstance(self.on_refused, str) and self.on_refused
        if not (self.on_refused is None or named or callable(self.on_refused)):
            raise TypeError(
                "on_refused must be a function of the request and the refusal, or the name of a "
                f"template, not {self.on_refused!r}"
            )
        if isinstance(self.on_refused, type) and issubclass(self.on_refused, HttpResponseBase):
            raise TypeError(
                f"on_refused must make a response: write a function, not {self.on_refused!r}"
            )
        if callable(self.on_refused):
            check_call("on_refused", self.on_refused, "request", "refusal")
        if iscoroutinefunction(self.result) or not (
            self.result is None or isinstance(self.result, str | Promise) or callable(self.result)
        ):
            raise TypeError(
                "result must be an address, the name of one in the URLconf, or a plain function of "
                f"the request, not {self.result!r}"
            )
        if callable(self.result):
            check_call("result", self.result, "request")

    def check_plain(self) -> None:
        """Check that no response has to be awaited.

        Raises:
            TypeError: ``on_refused`` is a coroutine function.
        """
        if iscoroutinefunction(self.on_refused):
            raise TypeError(
                "on_refused is a coroutine function, and the view is none: write a plain function"
            )

    def refusal(self, error: LockTaken | NodesUnavailable) -> Refusal:
        """Decide what is answered to a request whose view has not begun."""
        if isinstance(error, LockTaken):
            return Refusal(self.status, _whole_seconds(self.retry_after, error), error)
        return Refusal(503, UNAVAILABLE_RETRY, error)

    def respond(self, request: Any, refusal: Refusal) -> HttpResponseBase:
        """Make the response, and mark the request for ``IgnoreRefusals``."""
        refusal = self._with_links(request, refusal)
        made = None
        if callable(self.on_refused):
            made = self.on_refused(request, refusal)
        elif self.on_refused is not None and not wants_json(request):
            shown, status = {"refusal": refusal}, refusal.status
            made = render(djangos_request(request), self.on_refused, shown, status=status)
        return _finished(request, refusal, made)

    async def arespond(self, request: Any, refusal: Refusal) -> HttpResponseBase:
        """Make the response as ``respond`` does, in a task."""
        if iscoroutinefunction(self.on_refused):
            refusal = await sync_to_async(self._with_links)(request, refusal)
            return _finished(request, refusal, await self.on_refused(request, refusal))
        if self.on_refused is None and not callable(self.result):
            return self.respond(request, refusal)
        respond = sync_to_async(self.respond)  # a page may show the user, and that may be a query
        return await respond(request, refusal)

    def _with_links(self, request: Any, refusal: Refusal) -> Refusal:
        """Return the refusal with the addresses that a page may link to."""
        if not callable(self.on_refused) and wants_json(request):  # no page, so nothing is asked
            return refusal
        has_begun = refusal.begun or isinstance(refusal.error, LockTaken)
        result = self._address(request) if has_begun else ""
        back = page_before(request) if refusal.leads_back else ""
        return replace(refusal, result=result, back=back)

    def _address(self, request: Any) -> str:
        try:
            named: Any = self.result(request) if callable(self.result) else self.result
            return "" if named is None else str(redirect(named).url)
        # Such as DoesNotExist, of what the first request has not committed yet. A page without a
        # link is better than none.
        except Exception as error:  # noqa: BLE001 - the site's
            if self.no_result is not None:
                self.no_result(error)
            return ""


def _finished(request: Any, refusal: Refusal, made: Any) -> HttpResponseBase:
    """Return the response that ``on_refused`` has made, or the usual one, with its headers."""
    if made is None:
        made = _usual(request, refusal)
    if not isinstance(made, HttpResponseBase):
        raise TypeError(
            f"on_refused must return a response, or None for the usual one, not {type(made)}"
        )
    if made.status_code == HTTPStatus.OK:  # early releases of Django 5.2 would cache it
        made.headers.setdefault("Cache-Control", "no-store, private")
    for name, value in refusal.headers.items():
        made.headers.setdefault(name, value)
    # A framework's request may wrap Django's, which is the one that Django logs.
    for each in (request, djangos_request(request)):
        setattr(each, _REFUSED, made.status_code)
    return made


def _usual(request: Any, refusal: Refusal) -> HttpResponse:
    if wants_json(request):
        body, content_type = json.dumps(refusal.problem), PROBLEM_TYPE
        return HttpResponse(body, status=refusal.status, content_type=content_type)
    language = get_language() or "en"
    direction = "rtl" if get_language_bidi() else "ltr"
    heading, detail = refusal.heading, refusal.detail
    address = refusal.form or refusal.result or refusal.back
    if refusal.form:
        text = gettext("Open the form again")
    elif refusal.result:
        text = gettext("Look at the result")
    else:
        text = gettext("Back to the previous page")
    link = format_html(_LINK, address, text) if address else ""
    page = format_html(_PAGE, language, direction, _style(), heading, heading, detail, link)
    return HttpResponse(page, status=refusal.status)


def _style() -> str:
    """Return the link to the style sheet; "" where the site cannot serve it."""
    if all(map(apps.is_installed, ("django.contrib.staticfiles", "django_redlock"))):
        with suppress(ImproperlyConfigured, ValueError):  # it is not in the manifest
            return format_html(_STYLE, static("django_redlock/refused.css"))
    return ""


def wants_json(request: Any) -> bool:
    """Return True if a response to the request should be JSON.

    It should if the client prefers JSON; and, unless it asks for a page, if the request itself is
    JSON or a framework for APIs serves it.
    """
    inner = djangos_request(request)
    # Without parameters, for Django's own choice would not find JSON in a type with a charset.
    accepted = [f"{each.main_type}/{each.sub_type}" for each in inner.accepted_types]
    for kind in accepted:  # what the client prefers is first
        if _is_json(kind) or kind in _PAGES:
            return _is_json(kind)
    return _is_json(inner.content_type or "") or _is_of_an_api(request)


def _is_json(kind: str) -> bool:
    return kind == "application/json" or kind.endswith("+json")


def _is_of_an_api(request: Any) -> bool:
    if not isinstance(request, HttpRequest) and hasattr(request, "_request"):
        return True
    view = getattr(getattr(request, "resolver_match", None), "func", None)
    kinds = getattr(getattr(view, "cls", None), "__mro__", ())
    modules = (getattr(each, "__module__", None) or "" for each in (view, *kinds))
    return any(module.partition(".")[0] in _FRAMEWORKS for module in modules)


# -- what a site writes into its settings ----------------------------------------------------------


class IgnoreRefusals(logging.Filter):
    """A filter for the logger ``django.request`` that drops the lines about refusals.

    Django logs every response from 400 on: a 409 as a warning, and a 503 as an error, which its
    default settings mail to the ADMINS. An error that a middleware raises after the refusal is
    still logged.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the line is to be written."""
        refused = getattr(getattr(record, "request", None), _REFUSED, None)
        status = getattr(record, "status_code", None)
        return refused is None or status != refused or record.exc_info is not None


class RedlockMiddleware:
    """Turn a LockTaken or NodesUnavailable that a view raises into a response, 409 or 503.

    It has no ``Retry-After``: part of the work of the view may be done. LeaseLost passes, and so
    does a NodesUnavailable of ``Lease.extend``: the view had the lock, and somebody should look.

    Attributes:
        on_refused: makes the responses, see ``single_flight``; a plain function, also where views
            are async. A subclass has a method of this name.
    """

    sync_capable = True
    async_capable = True
    on_refused: ClassVar[Any] = None

    def __init__(self, get_response: Callable[[HttpRequest], Any]) -> None:
        self.get_response = get_response
        self._responder = Responder(on_refused=self.on_refused)
        self._responder.check_plain()
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> Any:
        """Pass the request on; an awaitable in a chain of async middleware."""
        return self.get_response(request)

    def process_exception(
        self, request: HttpRequest, exception: Exception
    ) -> HttpResponseBase | None:
        """Return the response, or None for an exception that is no refusal."""
        refusal = refusal_of(exception)
        return None if refusal is None else self._responder.respond(request, refusal)

"""Make the response of a request that does not get a lock: by default with a constant body."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.utils.html import format_html
from django.utils.translation import get_language, get_language_bidi

from django_redlock.core.policy import check_seconds

from .calls import check_call
from .refusals import BUSY, PROBLEM_TYPE, RETRY_AFTER, Refusal, RetryAfter, refusal_of

OnRefused: TypeAlias = "str | Callable[[Any, Refusal], Any] | None"

_MARK: Final = "redlock_refused"  # the request's attribute: the status of its refusal
_JSON: Final = (PROBLEM_TYPE, "application/json")
_PAGES: Final = ("text/html", "application/xhtml+xml")
_FRAMEWORKS: Final = frozenset({"rest_framework", "ninja", "ninja_extra"})
_PAGE: Final = (
    '<!doctype html>\n<html lang="{}" dir="{}">\n<meta charset="utf-8">\n'
    '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
    '<meta name="color-scheme" content="light dark">\n'  # no style, which a CSP would refuse
    "<title>{}</title>\n<main>\n<h1>{}</h1>\n<p>{}</p>\n</main>\n"
)


class IgnoreRefusals(logging.Filter):
    """A filter for the logger ``django.request`` that drops the lines about refusals.

    Django logs every response from 400 on: a 409 as a warning, and a 503 as an error, which its
    default settings mail to the ADMINS. An error that a middleware raises after the refusal is
    still logged.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Return True if the line is to be written."""
        refused = getattr(getattr(record, "request", None), _MARK, None)
        status = getattr(record, "status_code", None)
        return refused is None or status != refused or record.exc_info is not None


@dataclass(frozen=True, slots=True)
class Answers:
    """How refused requests are answered; see ``single_flight``.

    Raises:
        TypeError, ValueError: an option makes no sense.
    """

    status: int = 409
    retry_after: RetryAfter = RETRY_AFTER
    on_refused: OnRefused = None

    def __post_init__(self) -> None:
        if self.status not in BUSY:
            msg = f"status must be one of {sorted(BUSY)}, not {self.status!r}"
            raise ValueError(msg)
        if iscoroutinefunction(self.retry_after):
            msg = "retry_after must be a number of seconds or a plain function, not a coroutine one"
            raise TypeError(msg)
        if not callable(self.retry_after):
            check_seconds("retry_after", self.retry_after)
        named = isinstance(self.on_refused, str) and self.on_refused
        if not (self.on_refused is None or named or callable(self.on_refused)):
            msg = (
                "on_refused must be a function of the request and the refusal, or the name of a "
                f"template, not {self.on_refused!r}"
            )
            raise TypeError(msg)
        if isinstance(self.on_refused, type) and issubclass(self.on_refused, HttpResponseBase):
            msg = f"on_refused must make a response: write a function, not {self.on_refused!r}"
            raise TypeError(msg)
        if callable(self.on_refused):
            check_call("on_refused", self.on_refused, "request", "refusal")
        if callable(self.retry_after):
            check_call("retry_after", self.retry_after, "taken")

    def check_plain(self) -> None:
        """Check that no answer has to be awaited.

        Raises:
            TypeError: ``on_refused`` is a coroutine function.
        """
        if iscoroutinefunction(self.on_refused):
            msg = "on_refused is a coroutine function, and the view is none: write a plain function"
            raise TypeError(msg)

    def decide(self, error: BaseException, request: Any) -> Refusal | None:
        """Decide what is answered when ``error`` was raised; None: it is no refusal."""
        return refusal_of(error, request, status=self.status, retry_after=self.retry_after)

    def respond(self, request: Any, refusal: Refusal) -> HttpResponseBase:
        """Make the response, and mark the request for ``IgnoreRefusals``."""
        found = None
        if callable(self.on_refused):
            found = _checked(self.on_refused(request, refusal))
        elif self.on_refused is not None and not wants_json(request):
            inner = getattr(request, "_request", request)
            context = {"refusal": refusal}
            found = render(inner, self.on_refused, context, status=refusal.status)
        return _finished(request, refusal, found)

    async def arespond(self, request: Any, refusal: Refusal) -> HttpResponseBase:
        """Make the response as ``respond`` does, in a task."""
        if self.on_refused is None:
            return self.respond(request, refusal)
        if iscoroutinefunction(self.on_refused):
            found = _checked(await self.on_refused(request, refusal))
            return _finished(request, refusal, found)
        respond = sync_to_async(self.respond)  # a page may show the user, and that may be a query
        return await respond(request, refusal)


def _checked(found: Any) -> HttpResponseBase | None:
    if found is None or isinstance(found, HttpResponseBase):
        return found
    msg = f"on_refused must return a response, or None for the usual one, not {type(found)}"
    raise TypeError(msg)


def _finished(request: Any, refusal: Refusal, found: HttpResponseBase | None) -> HttpResponseBase:
    response = _constant(request, refusal) if found is None else found
    if response.status_code == HTTPStatus.OK:  # early releases of Django 5.2 would cache it
        response.headers.setdefault("Cache-Control", "no-store, private")
    for name, value in refusal.headers.items():
        response.headers.setdefault(name, value)
    # A framework's request may wrap Django's, which is the one that Django logs.
    for each in (request, getattr(request, "_request", None)):
        if each is not None:
            setattr(each, _MARK, response.status_code)
    return response


def _constant(request: Any, refusal: Refusal) -> HttpResponse:
    if wants_json(request):
        body, content_type = json.dumps(refusal.problem), PROBLEM_TYPE
        return HttpResponse(body, status=refusal.status, content_type=content_type)
    language = get_language() or "en"
    direction = "rtl" if get_language_bidi() else "ltr"
    heading, detail = refusal.heading, refusal.detail
    page = format_html(_PAGE, language, direction, heading, heading, detail)
    return HttpResponse(page, status=refusal.status)


def wants_json(request: Any) -> bool:
    """Tell whether a response to the request should be JSON.

    It should if the client prefers JSON; and, unless it asks for a page, if the request itself is
    JSON or a framework for APIs serves it.
    """
    inner = getattr(request, "_request", request)
    if inner.get_preferred_type([*_PAGES, *_JSON]) in _JSON:
        return True
    if any(str(each).split(";")[0].strip() in _PAGES for each in inner.accepted_types):
        return False
    kind = inner.content_type or ""
    return kind == "application/json" or kind.endswith("+json") or _is_of_an_api(request)


def _is_of_an_api(request: Any) -> bool:
    if not isinstance(request, HttpRequest) and hasattr(request, "_request"):
        return True
    view = getattr(getattr(request, "resolver_match", None), "func", None)
    kinds = getattr(getattr(view, "cls", None), "__mro__", ())
    modules = (getattr(each, "__module__", None) or "" for each in (view, *kinds))
    return any(module.partition(".")[0] in _FRAMEWORKS for module in modules)

"""Which requests are the same one, sent again: their key, whose it is, and what they ask for.

The key is the header ``Idempotency-Key`` (draft-ietf-httpapi-idempotency-key-header), or a field of
a form, which can send no header. A key is a client's own: keys of two users do not meet.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from decimal import Decimal
from io import BytesIO
from sys import float_info
from typing import Any, Final, NamedTuple

from asgiref.sync import async_to_sync, iscoroutinefunction
from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from django.core.files.uploadedfile import UploadedFile
from django.core.files.uploadhandler import load_handler
from django.http import QueryDict, RawPostDataException
from django.http.multipartparser import MultiPartParser
from django.utils.datastructures import MultiValueDict

from django_redlock.locks.lock import Lock
from django_redlock.locks.template import LockTemplate
from django_redlock.views.keys import Key, ViewKey, client
from django_redlock.views.refusals import page_before

HEADER: Final = "Idempotency-Key"
FIELD: Final = "idempotency_key"  # of a form
LARGEST: Final = 8 * 2**20  # bytes of a request's content that are read for the fingerprint
NOT_CONTENT: Final = frozenset({"csrfmiddlewaretoken", FIELD})  # differ from page to page
FORM: Final = "application/x-www-form-urlencoded"
MULTIPART: Final = "multipart/form-data"
KEY: Final = re.compile(r"[\x21-\x7e]{1,255}")
QUOTED: Final = re.compile(r'"((?:[\x20\x21\x23-\x5b\x5d-\x7e]|\\["\\]){1,255})"')  # RFC 8941


class Unkeyed(ValueError):  # noqa: N818 - a state
    """The request has no key, or none that can be used; its text tells the developer what to do.

    Attributes:
        status: the status of the response.
        why: the name of the text in ``answers`` that the client gets.
    """

    def __init__(self, why: str, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.why: Final = why
        self.status: Final = status


class Missing(Unkeyed):
    """The request has no key at all, so it may be answered without one."""


class Identity(NamedTuple):
    """Which request it is."""

    scope: str
    key: str


class RequestKey(ViewKey):
    """The scope and the key of a view's requests.

    Args:
        template: what makes locks.
        key: a template, or a function; None: the header, or the field of a form.
        scope: the same; None: the user, else the session.

    Raises:
        TypeError, ValueError: neither can be one.
    """

    def __init__(self, template: LockTemplate, key: Key | None, scope: Key | None) -> None:
        for name, value in (("key", key), ("scope", scope)):
            if not (value is None or isinstance(value, str) or callable(value)):
                raise TypeError(f"{name} must be a text or a function, not {type(value).__name__}")
        # Strict: None as part of a scope would be one client for all.
        super().__init__(template, _plain(key) or sent_key, strict=True)
        self.by_session: Final = scope is None  # where there is no user
        self.is_sent: Final = key is None  # by the client, which makes a new one for each request
        self._scope = ViewKey(template, _plain(scope) or client_of, strict=True)
        self._functions = {"key": callable(key) or key is None, "scope": not isinstance(scope, str)}

    def check(self, view: Any) -> None:
        """Check both against the arguments of a view."""
        super().check(view)
        self._scope.check(view)

    def reader(self, view: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Return the function that tells the identity of a call of the view.

        It raises Unkeyed for a request that lacks what they need.
        """
        key_of, scope_of = super().reader(view), self._scope.reader(view)

        def read(*args: Any, **kwargs: Any) -> Identity:
            key = self._text("key", key_of, args, kwargs)
            return Identity(self._text("scope", scope_of, args, kwargs), key)

        return read

    def _text(self, name: str, lock_of: Callable[..., Lock], args: Any, kwargs: Any) -> str:
        try:
            names = lock_of(*args, **kwargs).names
        except Unkeyed:
            raise
        except ValueError as error:  # the request decides it
            if self._functions[name]:
                raise Unkeyed("lacks", str(error)) from error
            raise (Missing if name == "key" else Unkeyed)("lacks", str(error)) from error
        except TypeError as error:
            if self._functions[name]:
                raise
            raise Unkeyed("lacks", str(error)) from error  # None, of an anonymous user for one
        if len(names) != 1:
            raise TypeError(f"{name}= must return one text, not {len(names)}")
        return names[0]


def _plain(function: Any) -> Any:
    """Return a plain function for a coroutine one: views of both kinds run in a thread."""
    return async_to_sync(function) if iscoroutinefunction(function) else function


def client_of(request: Any, *_: Any, **__: Any) -> str:
    """Return whose key it is: the user's, else the session's. An address is many people's."""
    found = client(request)
    if found.startswith("address:"):
        raise Unkeyed(
            "client",
            "it has no user and no session, so nobody knows whose key it has. In a template that "
            "is rendered with its request, {% idempotency_key %} starts a session, by the "
            "SessionMiddleware. Where there is none, write scope=, or demand a login above",
        )
    return found


def sent_key(request: Any, *_: Any, **__: Any) -> str:
    """Return the key that the client has sent."""
    text, inner = request.headers.get(HEADER), getattr(request, "_request", request)
    if text is None and request.method == "POST" and inner.content_type in {FORM, MULTIPART}:
        text = request.POST.get(FIELD)
    if text is None:
        raise Missing(
            "key",
            f"it has no header {HEADER} and no field {FIELD}: write {{% load idempotency %}}"
            "{% idempotency_key %} into the form, or key=, or required=False",
        )
    if KEY.fullmatch(text) and not text.startswith('"'):
        return str(text)
    if quoted := QUOTED.fullmatch(text):
        return re.sub(r"\\(.)", r"\1", quoted[1])
    raise Unkeyed("format", f"the {HEADER} is not valid: 1 to 255 visible characters of ASCII")


def sending_page(request: Any) -> str:
    """Return the address of the page that has sent a form; where it tells none of ours, its own."""
    return page_before(request) or str(request.get_full_path())


# -- what a request asks for -----------------------------------------------------------------------


def fingerprint(request: Any) -> str:
    """Return a digest of method, path, query and content of a request.

    Of the content as it is parsed: each encoding of a form with a file has a boundary of its own,
    and two programs write the same JSON in two ways. Of files the first 8 MiB of a request and
    the sizes of all count.

    Raises:
        Unkeyed: there is more than may be read.
    """
    digest = Digest()
    method = "GET" if request.method == "HEAD" else request.method  # the view does the same
    digest.add(method, request.path, request.META.get("QUERY_STRING", ""))
    try:
        digest.add_value(_content(request))
    except RecursionError:
        raise Unkeyed("size", "the request's content is nested too deeply", status=413) from None
    return digest.hexdigest()


def _content(request: Any) -> Any:
    inner = getattr(request, "_request", request)
    kind = inner.content_type or ""
    if kind != MULTIPART:
        _bound(inner)
    if kind == "application/json" or kind.endswith("+json"):
        with suppress(RawPostDataException, RequestDataTooBig):  # REST framework streams it
            return _of_json(inner.body)
    if request.META.get("CONTENT_LENGTH"):  # what comes in chunks, both would take for empty
        if request is not inner and hasattr(request, "data"):  # as REST framework has parsed it
            return _canonical(request.data)
        if kind in {FORM, MULTIPART} and (request.method == "POST" or _is_parsed(request)):
            return [request.POST, request.FILES]
    _bound(request)
    body = _bounded(request.body)
    with suppress(LookupError, UnicodeError):  # a charset in which no text can be
        if kind == MULTIPART:  # Django parses only those of a POST
            meta = request.META | {"CONTENT_LENGTH": str(len(body))}
            handlers = [load_handler(each, request) for each in settings.FILE_UPLOAD_HANDLERS]
            parser = MultiPartParser(meta, BytesIO(body), handlers, request.encoding)
            return list(parser.parse())
        if kind == FORM:
            return QueryDict(body, encoding=request.encoding)
    return body


def _of_json(body: bytes) -> str | bytes:
    """Return a text that is the same however the JSON is written; what has none, as it is."""
    _bounded(body)
    with suppress(ValueError, ArithmeticError):  # of no JSON, too, which the view answers
        return json.dumps(json.loads(body, parse_float=_exact), sort_keys=True)
    return body


def _exact(text: str) -> float:
    """Return the number, if a float has all its digits; an int, where JSON may write it as one.

    Python writes ``1e+16``; JavaScript, and a column of jsonb, 10000000000000000.

    Raises:
        ValueError, ArithmeticError: it has not, so two numbers would be one.
    """
    number = float(text)
    may_be_inexact = len(text) > float_info.dig or "e" in text.lower()
    if not may_be_inexact:
        return number
    exact = Decimal(text)
    if Decimal(repr(number)) != exact:
        raise ValueError
    return int(exact) if number.is_integer() and "e" in repr(number) else number


def _is_parsed(request: Any) -> bool:
    """Return whether a middleware has parsed a form that Django does not."""
    return bool(getattr(request, "_post", None) or getattr(request, "_files", None))


def _bound(request: Any) -> None:
    length = request.META.get("CONTENT_LENGTH") or "0"
    if length.isdigit() and int(length) > LARGEST:
        raise _too_large()


def _bounded(body: bytes) -> bytes:
    """Return the body, which tells its length last if it came in chunks."""
    if len(body) > LARGEST:
        raise _too_large()
    return body


def _too_large() -> Unkeyed:
    return Unkeyed("size", f"the request has more than {LARGEST} bytes", status=413)


def _canonical(value: Any) -> Any:
    """Return the text of what JSON can have, which is much quicker than to walk through it."""
    if isinstance(value, MultiValueDict):
        return value
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):  # a parser of the project has made something else
        return value


class Digest:
    """A digest of texts, fields and files, each of which ends where it ends."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._left = LARGEST  # bytes of files that are still read

    def hexdigest(self) -> str:
        """Return it as a text."""
        return self._digest.hexdigest()

    def add(self, *parts: str | bytes) -> None:
        """Add texts, each with its length before it."""
        for part in parts:
            data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
            self._digest.update(b"%d:" % len(data) + data)

    def add_value(self, value: Any) -> None:
        """Add what a parser has made."""
        if isinstance(value, bytes):
            self.add("bytes", value)
        elif isinstance(value, UploadedFile):
            self._add_file(value)
        elif isinstance(value, MultiValueDict):
            lists = {name: value.getlist(name) for name in value if name not in NOT_CONTENT}
            self._add_items("fields", lists)
        elif isinstance(value, Mapping):
            self._add_items("object", value)
        elif isinstance(value, Iterable) and not isinstance(value, str):
            values = list(value)
            self.add("list", str(len(values)))
            for each in values:
                self.add_value(each)
        else:
            self.add(type(value).__name__, str(value))

    def _add_items(self, kind: str, items: Mapping[Any, Any]) -> None:
        self.add(kind, str(len(items)))
        for name in sorted(items, key=str):
            self.add(str(name))
            self.add_value(items[name])

    def _add_file(self, file: Any) -> None:
        self.add("file", file.name or "", str(file.size), file.content_type or "")
        file.seek(0)
        begin = file.read(self._left)
        self._left -= len(begin)
        self.add(begin)
        file.seek(0)  # for the view

"""System checks of views under ``@single_flight``. They contact no node."""

from __future__ import annotations

import inspect
import string
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.http import HttpRequest
from django.template import TemplateDoesNotExist, TemplateSyntaxError
from django.template.loader import get_template
from django.urls import get_resolver
from django.utils.module_loading import import_string

from django_redlock.checks import check_options, documented
from django_redlock.core.names import NoIdentity, refuse_record, root

from .decorator import DECORATES, PLACED, is_of_rest_framework
from .lock import EVERY, ViewLock, lock_of, view_locks
from .refusals import RedlockMiddleware

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

E004: Final = "django_redlock.E004"  # a single_flight where each request fails
W021: Final = "django_redlock.W021"  # a template for refusals that cannot be loaded
W022: Final = "django_redlock.W022"  # a key with a field that the URL does not fill


def check_views() -> list[checks.CheckMessage]:
    """Report E003, E004, W021 and W022 of the views that the URLs of the project import."""
    routed = []
    if getattr(settings, "ROOT_URLCONF", None):
        # It imports the views; what that raises, Django's check raises.
        routed = [message for each in _routes(get_resolver()) for message in _of_route(each)]
    found = [message for lock in sorted(view_locks, key=_where) for message in _of_view(lock)]
    once = {(message.id, message.msg): message for message in routed}  # of several URLs of a view
    return documented([*found, *once.values(), *_of_middleware()])


def _where(lock: ViewLock) -> tuple[str, int]:
    module, _, number = lock.place.partition(", line ")
    return module, int(number)


def _of_view(lock: ViewLock) -> Iterator[checks.CheckMessage]:
    where = f"The {lock.decorator} of {lock.place}"
    broken = f"{where} answers each request with a 500"
    yield from check_options(broken, lock.alias, lock.options)
    for problem in _without_identity(lock.key.templates):
        yield checks.Error(
            f"{where} answers each request that it locks with a {lock.keyless}: {problem}.",
            hint="Correct the key there.",
            id=E004,
        )
    yield from _of_template(where, lock.responder.on_refused)


class User:
    """A user of whatever class; its name is in the text of the error."""

    is_anonymous = True
    pk = None


class Session:
    """A session of whatever backend: a project may have none of Django's."""


def _without_identity(names: Sequence[str]) -> Iterator[str]:
    """Yield what a request would be told of its own objects in a key, such as ``request.user``."""
    request: Any = HttpRequest()
    request.user, request.session = User(), Session()
    fields = {part[1]: None for name in names for part in string.Formatter().parse(name)}
    for field in fields:
        if field is None or root(field) != "request":
            continue
        try:
            found, _ = string.Formatter().get_field(field, (), {"request": request})
            refuse_record(field, found)
        except NoIdentity as error:
            yield str(error)
        except (AttributeError, LookupError, TypeError, ValueError):
            continue  # of this request; what others have nobody knows here


# -- how a view is placed --------------------------------------------------------------------------


class Route(NamedTuple):
    """A URL and its view."""

    path: str  # as the project has written it
    view: Any
    arguments: frozenset[str]  # the names of what it is called with


def _routes(
    resolver: Any, path: str = "", arguments: frozenset[str] = frozenset()
) -> Iterator[Route]:
    for each in resolver.url_patterns:
        own = each.default_kwargs if hasattr(each, "url_patterns") else each.default_args
        names = arguments | own.keys() | each.pattern.regex.groupindex.keys()
        if hasattr(each, "url_patterns"):
            yield from _routes(each, f"{path}{each.pattern}", names)
        else:
            yield Route(f"{path}{each.pattern}", each.callback, names)


class Found(NamedTuple):
    """A single_flight, or an idempotent, on the way of a request."""

    lock: ViewLock
    wrapper: Any  # what it has made; of a method, what method_decorator tried it with
    is_method: bool
    opened: str  # what is around it and opens a transaction: a decorator; "" if none is

    @property
    def where(self) -> str:
        """What it is, for a sentence."""
        return f"The {self.lock.decorator} of {self.lock.place}"

    @property
    def rest_framework(self) -> str:
        """The module with the same decorator for views of REST framework."""
        return f"{self.lock.module}.rest_framework"


def _of_route(route: Route) -> Iterator[checks.CheckMessage]:
    view = route.view
    if DECORATES in getattr(view, "__dict__", ()):
        lock = view.__dict__[DECORATES]
        yield checks.Error(
            f"The view of the URL {route.path!r} is {lock.decorator}(...) without a view: each "
            "request is answered with a 500.",
            hint=f"Write {lock.example}(view) there.",
            id=E004,
        )
        return
    cls: Any = getattr(view, "view_class", None) or getattr(view, "cls", None)
    verbs = set(getattr(cls, "http_method_names", ()))
    if cls is not None:
        verbs &= set(getattr(view, "actions", None) or filter(partial(hasattr, cls), verbs))
    functions = [view, *(getattr(cls, name, None) for name in sorted(verbs | {"dispatch"}))]
    seen: set[int] = set()
    for found in (each for function in functions for each in _found(function, seen)):
        if found.is_method and is_of_rest_framework(cls):
            yield _broken(
                found,
                f"{cls.__name__} is a view of REST framework, which authenticates inside of it",
                f"Write @{found.lock.decorator}(...) of {found.rest_framework} on the class.",
            )
        else:
            is_async = found.is_method and getattr(cls, "view_is_async", False)
            yield from _in_transaction(route, found, is_async=is_async)
            yield from _unnamed(route, found, verbs)
    actions = getattr(view, "actions", None) or {}
    for verb in sorted(verbs):  # of REST framework's own decorator
        lock = lock_of(cls, actions.get(verb, EVERY))
        if lock is not None:
            found = Found(lock, _takes_anything, is_method=True, opened="")
            yield from _unnamed(route, found, {verb})


def _takes_anything(*args: Any, **kwargs: Any) -> None:
    """Take the place of a class's handler: only its URL tells what that is called with."""


def _found(function: Any, seen: set[int], *, opened: str = "") -> Iterator[Found]:
    """Yield each single_flight of a function, from outside, also below other decorators.

    A decorator without ``functools.wraps`` has what it decorates in its closure, and the view of an
    API of django-ninja has operations.
    """
    if not callable(function) or isinstance(function, type) or id(function) in seen:
        return
    seen.add(id(function))
    cells = _cells(function)
    placed = getattr(function, "__dict__", {}).get(PLACED)
    # method_decorator makes the wrapper anew for each request, and tells of one that it has tried.
    is_method = {"decorators", "method"} <= cells.keys()
    if placed is not None and (is_method or placed.wrapper is function):
        yield Found(placed.lock, placed.wrapper, is_method, opened)
        if placed.lock.opens_transaction:
            opened = f"@{placed.lock.decorator}"
    applied = [*cells.values(), *(cells["decorators"] if is_method else ())]
    if any(isinstance(each, transaction.Atomic) or each is transaction.atomic for each in applied):
        opened = opened or "transaction.atomic"
    # Nothing is asked for an attribute that may answer any, such as a lazy object or a mock.
    below = [getattr(function, "__dict__", {}).get("__wrapped__")]
    below += [function.func] if isinstance(function, partial) else []
    for owner in cells.values():
        if type(owner).__module__.startswith("ninja."):
            below += [each.view_func for each in getattr(owner, "operations", ())]
    for each in (*below, *cells.values()):
        yield from _found(each, seen, opened=opened)


def _cells(function: Any) -> dict[str, Any]:
    """Return what a function has from the one that made it, by name."""
    with suppress(TypeError, ValueError):  # no function of Python, or a cell that is still empty
        return dict(inspect.getclosurevars(function).nonlocals)
    return {}


def _in_transaction(route: Route, found: Found, *, is_async: bool) -> Iterator[checks.CheckMessage]:
    marks: Any = getattr(route.view, "_non_atomic_requests", ())
    wanted = [name for name, each in connections.settings.items() if each["ATOMIC_REQUESTS"]]
    if found.opened or any(name not in marks for name in wanted):
        opens = found.opened or "ATOMIC_REQUESTS"
        yield _broken(
            found,
            f"{opens} opens a transaction around it, so the lock would be released before the "
            "COMMIT",
            "Put it above transaction.atomic and @idempotent, and on 'dispatch' of a class; a "
            "decorator above it needs functools.wraps. For a view of REST framework take "
            f"{found.lock.decorator} of {found.rest_framework}, for django-ninja non_atomic of "
            "django_redlock.views.ninja.",
        )
    elif not found.lock.async_has_transactions and (is_async or iscoroutinefunction(found.wrapper)):
        marked = frozenset(marks) | frozenset(getattr(found.wrapper, "_non_atomic_requests", ()))
        if any(name not in marked for name in wanted):
            yield _broken(
                found,
                "an async view can have no transaction of ATOMIC_REQUESTS",
                "Write @transaction.non_atomic_requests below @single_flight.",
            )


def _unnamed(route: Route, found: Found, verbs: set[str]) -> Iterator[checks.CheckMessage]:
    """Yield W022; of a function that names its arguments, its decoration has looked at the key."""
    parameters = inspect.signature(found.wrapper).parameters.values()
    if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return
    if verbs and found.lock.methods.isdisjoint(each.upper() for each in verbs):
        return
    missing = found.lock.key.arguments - route.arguments - {each.name for each in parameters}
    if missing:
        fields = ", ".join(f"{{{each}}}" for each in sorted(missing))
        yield checks.Warning(
            f"{found.where} has {fields} in its key, and the URL {route.path!r} has no such "
            "argument: each request that it locks is answered 400.",
            hint="Name an argument of the URL, or give the field a default: {pk|none}.",
            id=W022,
        )


def _broken(found: Found, problem: str, hint: str) -> checks.CheckMessage:
    text = f"{found.where} answers each request that it locks with a 500: {problem}."
    return checks.Error(text, hint=hint, id=E004)


# -- templates -------------------------------------------------------------------------------------


def _of_middleware() -> Iterator[checks.CheckMessage]:
    for path in settings.MIDDLEWARE:
        with suppress(ImportError):  # Django itself tells of that
            middleware = import_string(path)
            if isinstance(middleware, type) and issubclass(middleware, RedlockMiddleware):
                yield from _of_template(f"The middleware {path}", middleware.on_refused)


def _of_template(where: str, on_refused: Any) -> Iterator[checks.CheckMessage]:
    if not isinstance(on_refused, str):
        return
    try:
        get_template(on_refused)
    except (TemplateDoesNotExist, TemplateSyntaxError, ImproperlyConfigured) as error:
        kind = type(error).__name__
        yield checks.Warning(
            f"{where} names the template {on_refused!r} in on_refused, and it cannot be loaded "
            f"({kind}: {error}): a refused request is answered 500.",
            hint="Correct its name, or put it where TEMPLATES looks.",
            id=W021,
        )

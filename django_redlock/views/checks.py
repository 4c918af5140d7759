"""System checks of views under ``@single_flight``. They contact no node."""

from __future__ import annotations

import inspect
import string
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from asgiref.sync import iscoroutinefunction
from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.http import HttpRequest
from django.template import TemplateDoesNotExist, TemplateSyntaxError
from django.template.loader import get_template
from django.urls import NoReverseMatch, get_resolver, reverse
from django.utils.module_loading import import_string

from django_redlock.checks import KnownLock, check_options, documented, of_names
from django_redlock.core.names import NoIdentity, refuse_record, root

from .decorator import DECORATES, PLACED, Placed, is_of_rest_framework
from .keys import DEFAULT_KEY
from .lock import EVERY, ViewLock, lock_of, view_locks
from .ninja import operations_of
from .refusals import RedlockMiddleware

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

E004: Final = "django_redlock.E004"  # a single_flight where each request fails
W021: Final = "django_redlock.W021"  # a template or an address for refusals that there is not
W022: Final = "django_redlock.W022"  # a key with a field that the URL does not fill
W032: Final = "django_redlock.W032"  # a key that is one for all guests


def check_views() -> list[checks.CheckMessage]:
    """Report E003, E004, W021, W022 and W032 of the views that the URLs of the project import."""
    routed = []
    if getattr(settings, "ROOT_URLCONF", None):
        # It imports the views; what that raises, Django's check raises.
        routed = [message for each in _routes(get_resolver()) for message in _of_route(each)]
    found = [message for lock in sorted(view_locks, key=_by_line) for message in _of_view(lock)]
    once = {(message.id, message.msg): message for message in routed}  # of several URLs of a view
    return documented([*found, *once.values(), *_of_middleware()])


def known_locks() -> Iterator[KnownLock]:
    """Yield the locks of views whose keys are texts, for the check of limits."""
    for lock in sorted(view_locks, key=_by_line):
        names = [each for each in lock.key.names if each != DEFAULT_KEY]
        where, limit = f"the {lock.decorator} of {lock.line}", lock.options.limit
        yield from of_names(where, lock.alias, names, limit)


def _by_line(lock: ViewLock) -> tuple[str, int]:
    module, _, number = lock.line.partition(", line ")
    return module, int(number)


def _named(lock: ViewLock) -> str:
    return f"The {lock.decorator} of {lock.line}"


def _of_view(lock: ViewLock) -> Iterator[checks.CheckMessage]:
    where = _named(lock)
    broken = f"{where} answers each request with a 500"
    yield from check_options(broken, lock.alias, lock.options)
    for problem in _without_identity(lock.key.templates):
        yield checks.Error(
            f"{where} answers each request that it locks with a {lock.keyless}: {problem}.",
            hint="Correct the key there.",
            id=E004,
        )
    yield from _of_template(where, lock.responder.on_refused)
    if getattr(settings, "ROOT_URLCONF", None):
        yield from _of_result(where, lock.responder.result)


class User:
    """A user of whatever class; its name is in the text of the error."""

    is_anonymous = True
    pk = None


class Session:
    """A session of whatever backend: a project may have none of Django's."""


def _without_identity(names: Sequence[str]) -> Iterator[str]:
    """Yield the error that a request would get for each of its own objects in a key."""
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


def _of_route(route: Route) -> Iterator[checks.CheckMessage]:
    view = route.view
    if DECORATES in getattr(view, "__dict__", ()):
        lock = view.__dict__[DECORATES]
        yield checks.Error(
            f"The view of the URL {route.path!r} is {lock.decorator}(...) without a view: each "
            "request gets a 500.",
            hint=f"Write {lock.example}(view) there.",
            id=E004,
        )
        return
    cls: Any = getattr(view, "view_class", None) or getattr(view, "cls", None)
    verbs = set(getattr(cls, "http_method_names", ()))
    actions = getattr(view, "actions", None) or {}
    verbs &= set(actions or filter(partial(hasattr, cls), verbs))
    methods = _placed(getattr(cls, name, None) for name in sorted(verbs | {"dispatch"}))
    for each in methods:
        if is_of_rest_framework(cls):
            yield _broken(
                each.lock,
                f"{cls.__name__} is a view of REST framework, which authenticates inside of it",
                f"Write @{each.lock.decorator}(...) of {each.lock.module}.rest_framework on the "
                "class.",
            )
        else:
            is_async = getattr(cls, "view_is_async", False)
            yield from _in_transaction(route, each, is_async=is_async)
            yield from _unnamed(route, each.lock, each.wrapper, verbs)
            yield from _of_guests(route, each.lock, cls)
    for each in _placed([view, *(operation.view_func for operation in operations_of(view))]):
        if each not in methods:  # as_view() has copied the attributes of ``dispatch``
            yield from _in_transaction(route, each, is_async=iscoroutinefunction(each.wrapper))
            yield from _unnamed(route, each.lock, each.wrapper, verbs)
            yield from _of_guests(route, each.lock, cls)
    for verb in sorted(verbs):  # of REST framework's own decorator
        own = lock_of(cls, actions.get(verb, EVERY))
        if own is not None:
            yield from _unnamed(route, own, _takes_anything, {verb})


def _placed(functions: Iterable[Any]) -> list[Placed]:
    """Return what wrappers tell of themselves; decorators above them have copied it."""
    found = (getattr(each, "__dict__", {}).get(PLACED) for each in functions)
    return [each for each in found if each is not None]


def _takes_anything(**_: Any) -> None:
    """Take the place of a class's handler: only its URL tells what that is called with."""


def _in_transaction(
    route: Route, placed: Placed, *, is_async: bool
) -> Iterator[checks.CheckMessage]:
    lock, marks = placed.lock, getattr(route.view, "_non_atomic_requests", ())
    wanted = [name for name, each in connections.settings.items() if each["ATOMIC_REQUESTS"]]
    if any(name not in marks for name in wanted):
        yield _broken(
            lock,
            "ATOMIC_REQUESTS opens a transaction around it, so the lock would be released before "
            "the COMMIT",
            "Put it on 'dispatch' of a class. For a view of REST framework take "
            f"{lock.decorator} of {lock.module}.rest_framework, for django-ninja non_atomic of "
            "django_redlock.views.ninja.",
        )
    elif is_async and not lock.async_has_transactions:
        marked = frozenset(marks) | frozenset(getattr(placed.wrapper, "_non_atomic_requests", ()))
        if any(name not in marked for name in wanted):
            yield _broken(
                lock,
                "an async view can have no transaction of ATOMIC_REQUESTS",
                "Write @transaction.non_atomic_requests below @single_flight.",
            )


def _unnamed(
    route: Route, lock: ViewLock, view: Callable[..., Any], verbs: set[str]
) -> Iterator[checks.CheckMessage]:
    """Yield W022; of a function that names its arguments, its decoration has looked at the key."""
    parameters = inspect.signature(view).parameters.values()
    if not any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters):
        return
    if verbs and lock.methods.isdisjoint(each.upper() for each in verbs):
        return
    missing = lock.key.arguments - route.arguments - {each.name for each in parameters}
    if missing:
        fields = ", ".join(f"{{{each}}}" for each in sorted(missing))
        yield checks.Warning(
            f"{_named(lock)} has {fields} in its key, and the URL {route.path!r} has no such "
            "argument: each request that it locks gets a 400.",
            hint="Name an argument of the URL, or write a function: key=function.",
            id=W022,
        )


def _of_guests(route: Route, lock: ViewLock, cls: Any) -> Iterator[checks.CheckMessage]:
    """Yield W032 where visitors who are not logged in may come, as far as Django knows that."""
    fields = {part[1] for name in lock.key.templates for part in string.Formatter().parse(name)}
    shared = [each for each in ("request.user.pk", "request.user.id") if each in fields]
    knows_users = (
        hasattr(route.view, "login_url")  # of @login_required and its like
        or any(each.__name__ == "AccessMixin" for each in getattr(cls, "__mro__", ()))
        or any(path.endswith(".LoginRequiredMiddleware") for path in settings.MIDDLEWARE)
        or bool(operations_of(route.view))  # of django-ninja, which asks by itself
    )
    is_refused = lock.keyless != HTTPStatus.INTERNAL_SERVER_ERROR
    if shared and "client" not in fields and not knows_users and not is_refused:
        yield checks.Warning(
            f"{_named(lock)} has {{{shared[0]}}} in its key, which is None for each visitor who "
            f"is not logged in: at {route.path!r} a guest is refused because of another one.",
            hint="Write {client}, which tells guests apart, or decorate by @login_required.",
            id=W032,
        )


def _broken(lock: ViewLock, problem: str, hint: str) -> checks.CheckMessage:
    return checks.Error(
        f"{_named(lock)} answers each request that it locks with a 500: {problem}.",
        hint=hint,
        id=E004,
    )


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
            f"({kind}: {error}): a refused request gets a 500.",
            hint="Correct its name, or put it where TEMPLATES looks.",
            id=W021,
        )


def _of_result(where: str, result: Any) -> Iterator[checks.CheckMessage]:
    """Yield W021 for what is neither an address nor, where it needs no argument, a name."""
    if not isinstance(result, str) or "/" in result or "." in result:
        return
    try:
        reverse(result)
    except NoReverseMatch as error:
        if "with no arguments" in str(error) and "pattern(s) tried" in str(error):
            why = "needs arguments: write a function of the request"
        else:
            why = "is none of the URLconf"
        yield checks.Warning(
            f"{where} has result={result!r}, which {why}: the page of a refusal has no link to it.",
            hint="Correct the name in result=.",
            id=W021,
        )

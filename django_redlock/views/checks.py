"""The system check of views under ``@single_flight``. It contacts no node."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.core import checks
from django.urls import get_resolver

from django_redlock.checks import KnownLock, documented, of_names

from .decorator import PLACED
from .keys import DEFAULT_KEY
from .lock import ViewLock, view_locks

if TYPE_CHECKING:
    from collections.abc import Iterator

W032: Final = "django_redlock.W032"  # a key that is one for all guests


def check_views() -> list[checks.CheckMessage]:
    """Report W032 of the views that the URLs of the project import."""
    if not getattr(settings, "ROOT_URLCONF", None):
        return []
    # It imports the views; what that raises, Django's check raises.
    found = [message for route in _routes(get_resolver()) for message in _of_guests(*route)]
    return documented({message.msg: message for message in found}.values())  # of several URLs


def known_locks() -> Iterator[KnownLock]:
    """Yield the locks of views whose keys are texts, for the check of limits."""
    for lock in sorted(view_locks, key=_by_line):
        names = [each for each in lock.key.names if each != DEFAULT_KEY]
        where, limit = f"the {lock.decorator} of {lock.line}", lock.options.limit
        yield from of_names(where, lock.alias, names, limit)


def _by_line(lock: ViewLock) -> tuple[str, int]:
    module, _, number = lock.line.partition(", line ")
    return module, int(number)


def _routes(resolver: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each URL, as the project has written it, and its view."""
    for each in resolver.url_patterns:
        whole = f"{path}{each.pattern}"
        if hasattr(each, "url_patterns"):
            yield from _routes(each, whole)
        else:
            yield whole, each.callback


def _of_guests(path: str, view: Any) -> Iterator[checks.CheckMessage]:
    """Yield W032 where visitors who are not logged in may come, as far as Django knows that."""
    cls: Any = getattr(view, "view_class", None)
    knows_users = (
        hasattr(view, "login_url")  # of @login_required and its like
        or any(each.__name__ == "AccessMixin" for each in getattr(cls, "__mro__", ()))
        or any(each.endswith(".LoginRequiredMiddleware") for each in settings.MIDDLEWARE)
    )
    verbs = (getattr(cls, each, None) for each in getattr(cls, "http_method_names", ()))
    places = (view, getattr(cls, "dispatch", None), *verbs)
    # Decorators above a wrapper have copied what it tells.
    locks = {getattr(each, "__dict__", {}).get(PLACED): None for each in places}
    for lock in () if knows_users else filter(None, locks):
        fields = {part[1] for name in lock.key.names for part in string.Formatter().parse(name)}
        shared = [each for each in ("request.user.pk", "request.user.id") if each in fields]
        if shared and "client" not in fields and not lock.key.strict:
            yield checks.Warning(
                f"The {lock.decorator} of {lock.line} has {{{shared[0]}}} in its key, which is "
                f"None for each visitor who is not logged in: at {path!r} a guest is refused "
                "because of another one.",
                hint="Write {client}, which tells guests apart, or decorate by @login_required.",
                id=W032,
            )

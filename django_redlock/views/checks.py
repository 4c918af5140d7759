"""System checks of views under ``@single_flight``. They contact no node."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.template import TemplateDoesNotExist, TemplateSyntaxError
from django.template.loader import get_template
from django.urls import get_resolver
from django.utils.module_loading import import_string

from django_redlock.checks.options import check_options

from .middleware import RedlockMiddleware
from .rules import Rules, made

if TYPE_CHECKING:
    from collections.abc import Iterator

W021: Final = "django_redlock.W021"  # a template for refusals that cannot be loaded


def check_views() -> list[checks.CheckMessage]:
    """Report E003 and W021 of the views that the URLs of the project import."""
    if getattr(settings, "ROOT_URLCONF", None):
        _ = get_resolver().url_patterns  # imports the views; what it raises, Django's check raises
    found = [message for rules in sorted(made, key=_where) for message in _of_view(rules)]
    return found + list(_of_middleware())


def _where(rules: Rules) -> tuple[str, int]:
    module, _, number = rules.place.partition(", line ")
    return module, int(number)


def _of_view(rules: Rules) -> Iterator[checks.CheckMessage]:
    where = f"The single_flight of {rules.place}"
    broken = f"{where} answers each request with a 500"
    yield from check_options(broken, rules.alias, rules.locks.options)
    yield from _of_template(where, rules.answers.on_refused)


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

"""Check whether a lock with the options of a view or a task can be taken at all."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from django_redlock import conf

from .ids import E003

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django_redlock.locks.options import Options


def check_options(where: str, alias: str, options: Options) -> Iterator[checks.CheckMessage]:
    """Yield E003; if ``REDLOCK`` itself is wrong or missing, its own checks tell of that.

    Args:
        where: what has such a lock, and what becomes of it.
        alias: the alias of the lock.
        options: of the lock.
    """
    problem = _problem(alias, options)
    if problem:
        yield checks.Error(
            f"{where}: {problem}.",
            hint="Correct alias=, ttl= or min_hold= there, or REDLOCK.",
            id=E003,
        )


def _problem(alias: str, options: Options) -> str:
    try:
        known = list(conf.aliases())
    except ImproperlyConfigured:
        return ""
    if known and alias not in known:
        return conf.no_alias(alias, known)
    with suppress(ImproperlyConfigured):
        backend = conf.backend(alias)
        try:
            backend.check_ttl(backend.ttl if options.ttl is None else options.ttl)
            backend.check_min_hold(options.min_hold or 0.0)
        except ValueError as error:
            return str(error)
    return ""

"""What ``manage.py check`` reports of ``REDLOCK``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from django_redlock import conf

from .caches import shared_databases
from .ids import E001, W003, documented
from .nodes import check_nodes
from .timing import check_timing

if TYPE_CHECKING:
    from collections.abc import Iterator


@checks.register(checks.Tags.security)
def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """Report E001 for what ``conf`` refuses, and warnings for what works but is risky.

    Missing settings are no error: a command that takes no lock, such as ``collectstatic``, needs
    none.
    """
    return documented(_found())


def _found() -> list[checks.CheckMessage]:
    if getattr(settings, "REDLOCK", {}) == {}:
        return [_missing()]
    found: list[checks.CheckMessage] = []
    try:
        for alias in conf.aliases():
            found += _check_alias(alias)
    except ImproperlyConfigured as error:
        found.append(_error(error))
    return found


def _check_alias(alias: str) -> Iterator[checks.CheckMessage]:
    try:
        conf.backend(alias)
    except ImproperlyConfigured as error:
        yield _error(error)
        return
    values, addresses = conf.values_of(alias), conf.addresses_of(alias)
    yield from check_nodes(alias, values["NODES"], addresses)
    yield from check_timing(alias, values, in_memory=not addresses)
    yield from shared_databases(alias, values["NODES"], addresses)


def _missing() -> checks.CheckMessage:
    return checks.Warning(
        "The app django_redlock is installed, and REDLOCK names no nodes: every lock raises "
        "ImproperlyConfigured.",
        hint=f"Set REDLOCK = {conf.EXAMPLE}.",
        id=W003,
    )


def _error(error: ImproperlyConfigured) -> checks.CheckMessage:
    return checks.Error(
        str(error), hint="Correct what it names; commands that take no lock stop, too.", id=E001
    )

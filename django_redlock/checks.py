"""System checks: what is wrong or risky in ``REDLOCK``, with what to do. No node is contacted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from . import conf

if TYPE_CHECKING:
    from collections.abc import Iterator

E001 = "django_redlock.E001"
W001 = "django_redlock.W001"
W002 = "django_redlock.W002"


@checks.register(checks.Tags.security)
def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """E001 for what ``conf`` refuses; W001 and W002 for what works but should not stay."""
    if not hasattr(settings, "REDLOCK"):
        return []
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
    nodes = settings.REDLOCK[alias]["NODES"]
    if any(_has_password(node) for node in nodes):
        yield checks.Warning(
            f"REDLOCK[{alias!r}]['NODES'] has a password in a URL: Django's debug page shows it.",
            hint='Write {"URL": "redis://host:6379/0", "PASSWORD": …}: that is masked.',
            id=W001,
        )
    if len(nodes) % 2 == 0:
        yield checks.Warning(
            f"REDLOCK[{alias!r}]['NODES'] has {len(nodes)} nodes: as many may fail as with "
            f"{len(nodes) - 1}, and one more can.",
            hint="Use an odd number of nodes: 1, 3 or 5.",
            id=W002,
        )


def _has_password(node: object) -> bool:
    url = node.get("URL") if isinstance(node, dict) else node
    if not isinstance(url, str):
        return False
    return urlsplit(url).password is not None or "password=" in urlsplit(url).query


def _error(error: ImproperlyConfigured) -> checks.CheckMessage:
    return checks.Error(
        str(error), hint="See 'Settings' in the documentation of django-redlock.", id=E001
    )

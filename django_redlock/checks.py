"""System checks: what is wrong or risky in ``REDLOCK``, with what to do. No node is contacted."""

from __future__ import annotations

from contextlib import suppress
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
W003 = "django_redlock.W003"
W004 = "django_redlock.W004"
W005 = "django_redlock.W005"


@checks.register(checks.Tags.security)
def check_settings(**_: Any) -> list[checks.CheckMessage]:
    """E001 for what ``conf`` refuses; W001 to W003 for what works but should not stay.

    Missing settings are no error: what takes no lock, such as a build of static files, needs none.
    """
    if getattr(settings, "REDLOCK", {}) == {}:
        return [_missing()]
    found: list[checks.CheckMessage] = []
    try:
        for alias in conf.aliases():
            found += _check_alias(alias)
    except ImproperlyConfigured as error:
        found.append(_error(error))
    return found


@checks.register(checks.Tags.security, deploy=True)
def check_deployment(**_: Any) -> list[checks.CheckMessage]:
    """W004 and W005: what is for tests and development, told by ``check --deploy`` only."""
    found: list[checks.CheckMessage] = []
    for alias in _usable_aliases():
        setting = settings.REDLOCK[alias]
        nodes = setting["NODES"]
        if any(map(_is_in_memory, nodes)):
            found.append(_in_memory(alias))
        elif len(nodes) > 1 and not setting.get("RESTART_GUARD", True):
            found.append(_unguarded(alias))
    return found


def _usable_aliases() -> Iterator[str]:
    """The aliases in whose settings nothing is wrong; ``check_settings`` tells of the others."""
    try:
        for alias in conf.aliases():
            with suppress(ImproperlyConfigured):
                conf.backend(alias)
                yield alias
    except ImproperlyConfigured:
        return


def _missing() -> checks.CheckMessage:
    return checks.Warning(
        "The app django_redlock is installed, and REDLOCK names no nodes: every lock raises "
        "ImproperlyConfigured.",
        hint="Set REDLOCK = {'default': {'NODES': ['redis://10.0.0.1:6379/0', …]}}.",
        id=W003,
    )


def _in_memory(alias: str) -> checks.CheckMessage:
    return checks.Warning(
        f"REDLOCK[{alias!r}]['NODES'] are memory:// nodes, of which every process has its own: two "
        "processes can hold the same lock.",
        hint="Name servers that all processes share: ['redis://10.0.0.1:6379/0', …].",
        id=W004,
    )


def _unguarded(alias: str) -> checks.CheckMessage:
    return checks.Warning(
        f"REDLOCK[{alias!r}]['RESTART_GUARD'] is False: a node that restarts grants locks that "
        "others still hold.",
        hint="Remove RESTART_GUARD. With a single node, whose locks only save work, it may be "
        "False.",
        id=W005,
    )


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


def _is_in_memory(node: object) -> bool:
    return isinstance(node, str) and node.startswith(conf.MEMORY)


def _has_password(node: object) -> bool:
    url = node.get("URL") if isinstance(node, dict) else node
    if not isinstance(url, str):
        return False
    return urlsplit(url).password is not None or "password=" in urlsplit(url).query


def _error(error: ImproperlyConfigured) -> checks.CheckMessage:
    return checks.Error(
        str(error), hint="See 'Settings' in the documentation of django-redlock.", id=E001
    )

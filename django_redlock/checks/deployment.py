"""What ``manage.py check --deploy`` reports of ``REDLOCK`` as well: what matters in production."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from django.core import checks
from django.core.exceptions import ImproperlyConfigured

from django_redlock import conf

from .ids import W004, W005, documented
from .network import check_network
from .timing import check_guard

if TYPE_CHECKING:
    from collections.abc import Iterator


@checks.register(checks.Tags.security, deploy=True)
def check_deployment(**_: Any) -> list[checks.CheckMessage]:
    """Report what tests and development may do, and a deployment should not."""
    return documented(message for alias in _usable_aliases() for message in _check_alias(alias))


def _check_alias(alias: str) -> Iterator[checks.CheckMessage]:
    values, addresses = conf.values_of(alias), conf.addresses_of(alias)
    if not addresses:
        yield _in_memory(alias)
        return
    if len(addresses) > 1 and not values["RESTART_GUARD"]:
        yield _unguarded(alias)
    yield from check_guard(alias, values)
    yield from check_network(alias, addresses)


def _usable_aliases() -> Iterator[str]:
    """Yield the aliases with valid settings; ``check_settings`` reports the others."""
    try:
        for alias in conf.aliases():
            with suppress(ImproperlyConfigured):
                conf.backend(alias)
                yield alias
    except ImproperlyConfigured:
        return


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

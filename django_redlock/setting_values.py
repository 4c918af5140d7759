"""Check the values of an alias's settings; ``conf`` reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import ImproperlyConfigured

from django_redlock.core.policy import check_seconds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PLACE: Final = frozenset({"host", "port", "path"})
LONGEST_PREFIX: Final = 512  # bytes
# Seconds. Some things wait for several node timeouts, and ``poll`` for no more than 24 days.
LONGEST_TIMEOUT: Final = 86_400


def check_values(where: str, values: Mapping[str, Any]) -> None:
    """Check that the settings of an alias, defaults included, have values that make sense.

    Raises:
        ImproperlyConfigured: a value does not; the text names it after ``where``, without a URL.
    """
    _check_numbers(where, values)
    for key in ("RENEW", "RESTART_GUARD"):
        if not isinstance(values[key], bool):
            msg = f"{where}[{key!r}] must be True or False"
            raise ImproperlyConfigured(msg)
    prefix = values["KEY_PREFIX"]
    if not (
        isinstance(prefix, str) and prefix.isprintable() and len(prefix.encode()) <= LONGEST_PREFIX
    ):
        msg = (
            f"{where}['KEY_PREFIX'] must be text of at most {LONGEST_PREFIX} bytes without control "
            "characters"
        )
        raise ImproperlyConfigured(msg)
    if not isinstance(values["OPTIONS"], dict):
        msg = f"{where}['OPTIONS'] must be a dictionary of redis-py connection arguments"
        raise ImproperlyConfigured(msg)
    for key in PLACE & set(values["OPTIONS"]):
        msg = f"{where}['OPTIONS'] is for all nodes: write {key!r} into each node's URL in NODES"
        raise ImproperlyConfigured(msg)
    _check_nodes(f"{where}['NODES']", values["NODES"])


def check_distinct(where: str, identities: Sequence[str]) -> None:
    """Check that no node of an alias is listed twice.

    Raises:
        ImproperlyConfigured: one is; the text names it after ``where``.
    """
    for position, identity in enumerate(identities):
        first = identities.index(identity)
        if first != position:
            msg = (
                f"{where}['NODES'][{position}] is the same server as NODES[{first}]; a majority "
                "needs independent ones (another database number does not make one)"
            )
            raise ImproperlyConfigured(msg)


def _check_nodes(where: str, nodes: object) -> None:
    if isinstance(nodes, list | tuple) and nodes:
        return
    example = "['redis://10.0.0.1:6379/0']"
    if isinstance(nodes, list | tuple):
        msg = f"{where} is empty: it must be a list of nodes, as in {example}"
    elif isinstance(nodes, str):  # not quoted: it may have a password in it
        msg = f"{where} must be a list, not one text: put each URL into a list, as in {example}"
    elif isinstance(nodes, dict):
        msg = f"{where} must be a list, not a dictionary: put it into a list, as in [{{'URL': …}}]"
    else:
        msg = f"{where} must be a list of nodes, as in {example}, not {type(nodes).__name__}"
    raise ImproperlyConfigured(msg)


def _check_numbers(where: str, values: Mapping[str, Any]) -> None:
    numbers: dict[str, dict[str, Any]] = {
        "TTL": {},
        "MAX_TTL": {},
        "WAIT": {"zero": True, "endless": True},
        "NODE_TIMEOUT": {"most": LONGEST_TIMEOUT},
        "CLOCK_SKEW": {"zero": True},
    }
    if values["MAX_HOLD"] is not None:
        numbers["MAX_HOLD"] = {"endless": True}
    for key, allowed in numbers.items():
        try:
            check_seconds(key, values[key], **allowed)
        except (TypeError, ValueError) as error:
            msg = f"{where}: {error}"
            raise ImproperlyConfigured(msg) from None
    most = values["MAX_WAITING_REQUESTS"]
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
        msg = (
            f"{where}['MAX_WAITING_REQUESTS'] is a number of requests: 1 or more, or None for any "
            "number; write wait=0 for views that shall not wait"
        )
        raise ImproperlyConfigured(msg)
    drift = values["CLOCK_DRIFT"]
    if isinstance(drift, bool) or not isinstance(drift, int | float) or not 0 <= drift < 1:
        msg = f"{where}['CLOCK_DRIFT'] is a part of the ttl: a number from 0 to below 1, e.g. 0.01"
        raise ImproperlyConfigured(msg)

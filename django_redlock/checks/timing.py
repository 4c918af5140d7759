"""Check that the seconds of an alias fit together."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

from django.core import checks

from django_redlock import conf
from django_redlock.core.policy import looks_like_milliseconds
from django_redlock.leases.lease import RENEWALS

from .ids import W014, W015, W019, W020, W023

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DRIFT: Final = 0.0002  # by which clocks drift that nobody corrects
LONGEST_GUARD: Final = 3600.0  # seconds
# Seconds from which a setting may be meant in milliseconds. No node takes 10 s for a reply.
SUSPICIOUS: Final = {
    "NODE_TIMEOUT": 10.0,
    "TTL": 1000.0,
    "MAX_TTL": 1000.0,
    "WAIT": 1000.0,
    "MAX_HOLD": 100_000.0,  # work of a night is no mistake
    "CLOCK_SKEW": 1000.0,
}


def check_timing(
    alias: str, values: Mapping[str, Any], *, in_memory: bool
) -> Iterator[checks.CheckMessage]:
    """Yield W014, W015, W020 and W023.

    Args:
        values: the settings of the alias, defaults included.
        in_memory: whether its nodes are; they answer at once and have our clock.
    """
    where = f"REDLOCK[{alias!r}]"
    ttl, timeout, max_hold = values["TTL"], values["NODE_TIMEOUT"], values["MAX_HOLD"]
    yield from _milliseconds(where, values)
    if not in_memory and ttl < RENEWALS * timeout:
        yield checks.Warning(
            f"{where}['TTL'] is {ttl:g} s and NODE_TIMEOUT is {timeout:g} s: a lease is renewed "
            f"every {ttl / RENEWALS:g} s, and is lost while one renewal waits for its nodes.",
            hint="Lower NODE_TIMEOUT."
            if _is_suspicious("NODE_TIMEOUT", timeout)
            else f"Raise TTL to {10 * timeout:g} or more, or lower NODE_TIMEOUT.",
            id=W014,
        )
    if max_hold is not None and max_hold < ttl:
        yield checks.Warning(
            f"{where}['MAX_HOLD'] is {max_hold:g} s and TTL is {ttl:g} s: a lease lasts for its "
            "ttl all the same, because MAX_HOLD only ends renewals.",
            hint=f"Lower TTL to {max_hold:g} or less, or raise MAX_HOLD above TTL.",
            id=W015,
        )
    if not in_memory and values["CLOCK_DRIFT"] < DRIFT:
        yield checks.Warning(
            f"{where}['CLOCK_DRIFT'] is {values['CLOCK_DRIFT']:g}, and clocks that are left alone "
            f"drift by up to {DRIFT:g}: a holder would rely on its lease after a node forgot it.",
            hint=f"Remove CLOCK_DRIFT: the default is {conf.DEFAULTS['CLOCK_DRIFT']:g}.",
            id=W020,
        )


def _milliseconds(where: str, values: Mapping[str, Any]) -> Iterator[checks.CheckMessage]:
    """Yield W023: such a value is allowed, and hardly ever meant."""
    found = [key for key in SUSPICIOUS if _is_suspicious(key, values[key])]
    if found:
        yield checks.Warning(
            f"{where} has numbers of seconds that look like milliseconds: "
            f"{', '.join(f'{key} is {values[key]:g} s' for key in found)}.",
            hint="Write the seconds, if milliseconds were meant: "
            f"{', '.join(f'{key!r}: {values[key] / 1000:g}' for key in found)}.",
            id=W023,
        )


def _is_suspicious(key: str, seconds: float | None) -> bool:
    if seconds is None or not SUSPICIOUS[key] <= seconds < math.inf:
        return False
    return key == "NODE_TIMEOUT" or looks_like_milliseconds(seconds)


def check_guard(alias: str, values: Mapping[str, Any]) -> Iterator[checks.CheckMessage]:
    """Yield W019."""
    guard = conf.guard_of(values)
    if guard > LONGEST_GUARD:
        key = "MAX_TTL" if values["MAX_TTL"] >= values["CLOCK_SKEW"] else "CLOCK_SKEW"
        yield checks.Warning(
            f"REDLOCK[{alias!r}][{key!r}] is {values[key]:g} s: a node that restarts has "
            f"no vote for {guard:g} s, by the restart guard.",
            hint="Lower MAX_TTL to a minute or so: a lease is renewed for as long as its block "
            "runs, so no ttl needs to be as long as the work."
            if key == "MAX_TTL"
            else "Lower CLOCK_SKEW to what your clocks may be apart: 10 s is the default.",
            id=W019,
        )

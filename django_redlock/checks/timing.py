"""Check that the seconds of an alias fit together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.core import checks

from django_redlock import conf
from django_redlock.leases.state import RENEWALS

from .ids import W014, W015, W019, W020

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DRIFT: Final = 0.0002  # by which clocks drift that nobody corrects
LONGEST_GUARD: Final = 3600.0  # seconds


def check_timing(
    alias: str, values: Mapping[str, Any], *, in_memory: bool
) -> Iterator[checks.CheckMessage]:
    """Yield W014, W015 and W020.

    Args:
        values: the settings of the alias, defaults included.
        in_memory: whether its nodes are; they answer at once and have our clock.
    """
    where = f"REDLOCK[{alias!r}]"
    ttl, timeout, max_hold = values["TTL"], values["NODE_TIMEOUT"], values["MAX_HOLD"]
    if not in_memory and ttl < RENEWALS * timeout:
        yield checks.Warning(
            f"{where}['TTL'] is {ttl:g} s and NODE_TIMEOUT is {timeout:g} s: a lease is renewed "
            f"every {ttl / RENEWALS:g} s, and is lost while one renewal waits for its nodes.",
            hint=f"Raise TTL to {10 * timeout:g} or more, or lower NODE_TIMEOUT.",
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


def check_guard(alias: str, values: Mapping[str, Any]) -> Iterator[checks.CheckMessage]:
    """Yield W019."""
    guard = conf.guard_of(values)
    if guard > LONGEST_GUARD:
        yield checks.Warning(
            f"REDLOCK[{alias!r}]['MAX_TTL'] is {values['MAX_TTL']:g} s: a node that restarts has "
            f"no vote for {guard:g} s, by the restart guard.",
            hint="Lower MAX_TTL to a minute or so: a lease is renewed for as long as its block "
            "runs, so no ttl needs to be as long as the work.",
            id=W019,
        )

"""The ids of the system checks of ``REDLOCK``, and where each is explained.

The ids stay: projects silence checks by them.

``celery.checks`` has E002, E005 and W006 to W009, ``fencing`` has W010 and W011, ``views.checks``
has E004, W021 and W022.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django_redlock.core.reasons import CHECKS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.core.checks import CheckMessage

E001: Final = "django_redlock.E001"  # conf refuses a setting
E003: Final = "django_redlock.E003"  # an alias, ttl or min_hold that no lock can have
W001: Final = "django_redlock.W001"  # a password in a URL
W002: Final = "django_redlock.W002"  # an even number of nodes
W003: Final = "django_redlock.W003"  # no REDLOCK
W004: Final = "django_redlock.W004"  # --deploy: nodes in memory
W005: Final = "django_redlock.W005"  # --deploy: several nodes without the restart guard
W012: Final = "django_redlock.W012"  # two nodes
W013: Final = "django_redlock.W013"  # one server by two names
W014: Final = "django_redlock.W014"  # TTL too short for NODE_TIMEOUT
W015: Final = "django_redlock.W015"  # MAX_HOLD below TTL
W016: Final = "django_redlock.W016"  # a cache in the database of a node
W017: Final = "django_redlock.W017"  # --deploy: no TLS to a host elsewhere
W018: Final = "django_redlock.W018"  # --deploy: TLS that verifies nothing
W019: Final = "django_redlock.W019"  # --deploy: a restart guard of more than an hour
W020: Final = "django_redlock.W020"  # CLOCK_DRIFT below what clocks drift by
W023: Final = "django_redlock.W023"  # seconds that look like milliseconds


def documented(found: Iterable[CheckMessage]) -> list[CheckMessage]:
    """Return the messages of this package, each with the address of its section in the hint."""
    messages = list(found)
    for each in messages:
        app, _, number = (each.id or "").partition(".")
        address = f"{CHECKS}{number.lower()}"
        if app == "django_redlock" and address not in (each.hint or ""):
            each.hint = f"{each.hint or ''} See {address}".lstrip()
    return messages

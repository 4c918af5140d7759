"""The table of the settings, of ``django_redlock.conf``."""

from __future__ import annotations

from typing import Any, Final

from django_redlock import conf

from . import markdown
from .markdown import code

# What only a check of the value tells; tests try each of these types.
TYPES: Final = {
    "NODES": "list or tuple",
    "MAX_WAITING_REQUESTS": "whole number ≥ 1, or `None`",
    "CLOCK_DRIFT": "0 ≤ number < 1",
}
UNITS: Final = {"MAX_WAITING_REQUESTS": "requests", "CLOCK_DRIFT": "part of a ttl"}


def kind_of(key: str) -> str:
    """Return what the column "Type" says of a key."""
    if key in TYPES:
        return TYPES[key]
    default = conf.DEFAULTS[key]
    if key not in conf.SECONDS:
        return type(default).__name__
    allowed = conf.SECONDS[key]
    more = ['`float("inf")`'] * ("endless" in allowed) + ["`None`"] * (default is None)
    least = f"number {'≥' if 'zero' in allowed else '>'} 0"
    if not more:
        return least
    return f"{', '.join([least, *more[:-1]])}, or {more[-1]}"


def _default(value: Any) -> str:
    return code(f'"{value}"' if isinstance(value, str) else repr(value))


def _slug(key: str) -> str:
    return key.lower().replace("_", "-")


def rows() -> list[tuple[str, str, str, str]]:
    """Return key, type, unit and default of each key."""
    return [
        (
            f"[`{key}`](#{_slug(key)})",
            kind_of(key),
            "seconds" if key in conf.SECONDS else UNITS.get(key, ""),
            _default(default) + (": must be set" if key == "NODES" else ""),
        )
        for key, default in conf.DEFAULTS.items()
    ]


def table() -> str:
    """Return the table of all keys."""
    return markdown.table(("Key", "Type", "Unit", "Default"), rows())

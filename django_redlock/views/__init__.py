"""``@single_flight`` for views."""

from __future__ import annotations

from .decorator import single_flight
from .responses import IgnoreRefusals

__all__ = ["IgnoreRefusals", "single_flight"]

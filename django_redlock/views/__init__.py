"""``@single_flight`` for views, and what is answered to requests that get no lock."""

from __future__ import annotations

from .decorator import single_flight
from .keys import client
from .lock import LockedRequest
from .refusals import IgnoreRefusals, RedlockMiddleware, Refusal, refusal_of

__all__ = [
    "IgnoreRefusals",
    "LockedRequest",
    "RedlockMiddleware",
    "Refusal",
    "client",
    "refusal_of",
    "single_flight",
]

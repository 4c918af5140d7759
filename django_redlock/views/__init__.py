"""``@single_flight`` for views, and what is answered to requests that get no lock."""

from __future__ import annotations

from .decorator import single_flight
from .keys import client
from .middleware import RedlockMiddleware
from .refusals import Refusal, refusal_of
from .requests import LockedRequest
from .responses import IgnoreRefusals

__all__ = [
    "IgnoreRefusals",
    "LockedRequest",
    "RedlockMiddleware",
    "Refusal",
    "client",
    "refusal_of",
    "single_flight",
]

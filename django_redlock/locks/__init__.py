"""Describe and take locks: ``Lock`` and ``LockTemplate``."""

from __future__ import annotations

from .lock import Lock
from .template import LockTemplate

__all__ = ["Lock", "LockTemplate"]

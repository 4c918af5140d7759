"""The errors of this package; they live in ``core.errors``."""

from __future__ import annotations

from .core.errors import LeaseLost, LockTaken, NodesUnavailable, RedlockError, _rebuild

__all__ = ["LeaseLost", "LockTaken", "NodesUnavailable", "RedlockError", "_rebuild"]

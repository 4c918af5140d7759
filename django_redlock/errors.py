"""Re-export the errors of this package, which ``core.errors`` defines."""

from __future__ import annotations

from .core.errors import (
    DuplicateTask,
    LeaseLost,
    LockTaken,
    NodesUnavailable,
    RedlockError,
)
from .locks.durability import LockInTransactionWarning

__all__ = [
    "DuplicateTask",
    "LeaseLost",
    "LockInTransactionWarning",
    "LockTaken",
    "NodesUnavailable",
    "RedlockError",
]

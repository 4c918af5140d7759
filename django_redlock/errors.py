"""The errors of this package, and the votes that they carry; ``core`` defines most of them."""

from __future__ import annotations

from .core.errors import DuplicateTask, LeaseLost, LockTaken, NodesUnavailable, RedlockError
from .core.protocol import Answer, Vote
from .locks.atomic import LockInTransactionWarning

__all__ = [
    "Answer",
    "DuplicateTask",
    "LeaseLost",
    "LockInTransactionWarning",
    "LockTaken",
    "NodesUnavailable",
    "RedlockError",
    "Vote",
]

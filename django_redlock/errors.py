"""Re-export the errors of this package, which ``core.errors`` defines.

``_rebuild`` is here for pickles of an earlier version, such as stored Celery results: they name it
as the function of this module that makes the error.
"""

from __future__ import annotations

from .core.errors import (
    DuplicateTask,
    LeaseLost,
    LockTaken,
    NodesUnavailable,
    RedlockError,
    _rebuild,
)
from .locks.atomic import LockInTransactionWarning

__all__ = [
    "DuplicateTask",
    "LeaseLost",
    "LockInTransactionWarning",
    "LockTaken",
    "NodesUnavailable",
    "RedlockError",
    "_rebuild",
]

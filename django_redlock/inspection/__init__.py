"""What is held on the nodes, by whom, and what is wrong with a node."""

from __future__ import annotations

from .results import GUARDED, Health, HeldLock, LockStatus, Owner, Survey, age, shown
from .survey import LIMIT, MOST, survey

Kind = LockStatus  # its name in earlier versions

__all__ = [
    "GUARDED",
    "LIMIT",
    "MOST",
    "Health",
    "HeldLock",
    "Kind",
    "LockStatus",
    "Owner",
    "Survey",
    "age",
    "shown",
    "survey",
]

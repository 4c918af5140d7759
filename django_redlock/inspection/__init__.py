"""What is held, and what is wrong with the nodes: the one way from them to a person's eyes.

probe    the record of a node; asks one all that can be asked, and judges a deployment
survey   asks all nodes what is held: a report, or the state of one lock
revoke   takes a lock away
rows     texts, tables and JSON of all that, for every face
"""

from __future__ import annotations

from .probe import Health, NodeReport, NodeState
from .survey import LIMIT, MOST, HeldLock, LockState, LockStatus, Report, survey

__all__ = [
    "LIMIT",
    "MOST",
    "Health",
    "HeldLock",
    "LockState",
    "LockStatus",
    "NodeReport",
    "NodeState",
    "Report",
    "survey",
]

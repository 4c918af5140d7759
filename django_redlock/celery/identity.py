"""Write task ids and task names as short texts, for owner labels and marks on the nodes."""

from __future__ import annotations

import hashlib
import re
from typing import Final

ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}").fullmatch
NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,80}").fullmatch


def short_id(task_id: str) -> str:
    """Return the task id, or a digest of it, as 1 to 64 letters, digits, ``_``, ``.`` and ``-``."""
    return task_id if ID(task_id) else _digest(task_id)


def short_name(name: str) -> str:
    """Return the name of a task, or a digest of it, as ``short_id`` does, up to 80 of them."""
    return name if NAME(name) else _digest(name)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

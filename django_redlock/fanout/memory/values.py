"""Read what a key of a node in memory holds, as the Lua does on a real node."""

from __future__ import annotations

import hashlib
import re

VALUE = re.compile(r"([0-9a-fA-F]+):(\d+):(?P<label>.*)", re.DOTALL)
NEXT = "next::"
WAKEUP = re.compile(r"([0-9]+):([0-9a-fA-F]+)")  # as a grant carries it
MARK = re.compile(r"([0-9a-fA-F]+):([A-Za-z0-9_.-]+)")
RUN = re.compile(r"\(([^():]+)\):([A-Za-z0-9_.-]+)\Z")  # at the end of a label
TASK = re.compile(r"\(([A-Za-z0-9_.-]+)\):([A-Za-z0-9_.-]+)\Z")  # as ``identity`` writes them
RESTING = re.compile(r"rest::(?P<label>.*)", re.DOTALL)
DONE = re.compile(r"done::(?P<label>.*)", re.DOTALL)


def label_in(value: str) -> str:
    """Return the owner label of a lock or of a resting name; "" in a foreign value."""
    match = VALUE.fullmatch(value) or RESTING.fullmatch(value) or DONE.fullmatch(value)
    return match["label"] if match else ""


def owner_of(value: str) -> str:
    """Return what tells owners apart; "" where the name is reserved."""
    match = VALUE.fullmatch(value)
    return "" if value == NEXT else digest(match[1] if match else value)


def digest(owner: str) -> str:
    """Digest what must not be shown."""
    return hashlib.sha1(owner.encode(), usedforsecurity=False).hexdigest()[:16]

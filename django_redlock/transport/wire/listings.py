"""Check the parts of replies, and the replies to commands that list what a node has."""

from __future__ import annotations

import re
from typing import Any, Final, TypeGuard

from django_redlock.core.protocol import Answer, Command, Vote

MOST_NUMBER: Final = 2**53  # to which a node's counters are exact
LONGEST_LEFT: Final = 10**14  # milliseconds, 3,000 years; longer is told as that
OWNER: Final = re.compile(rb"(?:[0-9a-f]{16})?").fullmatch  # "": the name is reserved
TASK_ID: Final = re.compile(rb"[A-Za-z0-9_.-]{1,64}").fullmatch  # in a mark
ROW: Final = 5  # items that a survey or a list of tasks returns for a name
TASK_KINDS: Final = frozenset({b"mark", b"lock", b"done"})


def is_count(told: object, most: int) -> TypeGuard[int]:
    """Tell whether this is a number from 0 to ``most``."""
    return isinstance(told, int) and 0 <= told <= most


def is_pttl(told: object) -> TypeGuard[int]:
    """Tell whether this is what a node says of how long a key lasts."""
    return isinstance(told, int) and told >= -2  # noqa: PLR2004 - what Redis says where no key is


def seconds_left(pttl: int) -> float | None:
    """Return the seconds until a key is gone; None: it never is."""
    return None if pttl == -1 else min(max(0, pttl), LONGEST_LEFT) / 1000


def as_text(found: bytes) -> str:
    """Return bytes that any client may have written, as text."""
    return found.decode("utf-8", "backslashreplace")


def _found(node: str, answer: list[Any], asked: int) -> Vote | None:
    if len(answer) != 4:  # noqa: PLR2004 - as unpacked below
        return None
    _, _, rows, looked_at = answer
    if not (is_count(looked_at, asked) and isinstance(rows, list) and len(rows) <= asked):
        return None
    return Vote(node, Answer.YES, looked_at, data=rows) if all(map(_is_row, rows)) else None


def _listed(node: str, answer: list[Any], asked: int) -> Vote | None:
    if len(answer) != 4:  # noqa: PLR2004 - as unpacked below
        return None
    _, _, names, after = answer
    if not (isinstance(names, list) and len(names) <= asked and is_count(after, MOST_NUMBER)):
        return None
    return Vote(node, Answer.YES, after, data=names) if all(map(_is_bytes, names)) else None


def _tasks(node: str, answer: list[Any], asked: int) -> Vote | None:
    if len(answer) != 4:  # noqa: PLR2004 - as unpacked below
        return None
    _, _, rows, after = answer
    if not (isinstance(rows, list) and len(rows) <= asked and is_count(after, MOST_NUMBER)):
        return None
    return Vote(node, Answer.YES, after, data=rows) if all(map(_is_task, rows)) else None


def is_memory(told: object) -> TypeGuard[list[Any]]:
    """Tell whether this is what a node says of its memory."""
    if not (isinstance(told, list) and len(told) == 3):  # noqa: PLR2004 - as unpacked below
        return False
    limit, policy, evicted = told
    return is_count(limit, MOST_NUMBER) and _is_bytes(policy) and is_count(evicted, MOST_NUMBER)


def _is_bytes(told: object) -> bool:
    return isinstance(told, bytes)


def _is_row(row: object) -> bool:
    if not (isinstance(row, list) and len(row) == ROW):
        return False
    name, owner, left, number, label = row
    return (
        isinstance(name, bytes)
        and isinstance(owner, bytes)
        and OWNER(owner) is not None
        and is_pttl(left)
        and isinstance(number, bytes)
        and (number == b"" or number.isdigit())
        and isinstance(label, bytes)
    )


def _is_task(row: object) -> bool:
    if not (isinstance(row, list) and len(row) == ROW):
        return False
    name, kind, task, task_id, left = row
    texts = all(isinstance(each, bytes) for each in (name, kind, task, task_id))
    return texts and TASK_ID(task_id) is not None and kind in TASK_KINDS and is_pttl(left)


LISTING: Final = {Command.SURVEY: _found, Command.INDEX: _listed, Command.TASKS: _tasks}

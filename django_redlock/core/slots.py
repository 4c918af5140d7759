"""A lock that up to k processes hold: k *slots*, each of which is an ordinary lock.

Slot 2 of the name "openai" is the lock whose name is "openai", the character ``MARK`` and "2". No
user can write that character in a name, so a plain lock named "openai" is another lock. What a
client takes for k stands behind ``MARK`` in the owner label that it leaves in the key, for people
to see: two clients may have different ones, as while a new version is being rolled out.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MARK: Final = "\x1f"
MOST: Final = 128  # slots of a name
_NUMBERS: Final = frozenset(map(str, range(MOST)))  # as this package writes them: no "007"
_LIMIT: Final = re.compile(MARK + r"([0-9]*)")  # behind an owner label, which may be cut off


class Slot(NamedTuple):
    """What the name of a lock on a node says.

    Attributes:
        name: as the user wrote it.
        slot: the slot, from 0; None: it is a plain lock.
    """

    name: str
    slot: int | None


def name_of(name: str, slot: int) -> str:
    """Return the name of the lock that is a slot of ``name``."""
    return f"{name}{MARK}{slot}"


def slot_of(name: str) -> Slot:
    """Return what the name of a lock on a node says; other clients may have written it."""
    plain, mark, digits = name.rpartition(MARK)
    if mark and digits in _NUMBERS:
        return Slot(plain, int(digits))
    return Slot(name, None)


def label_with(label: str, limit: int) -> str:
    """Return an owner label that tells what its holder takes for k."""
    return f"{label}{MARK}{limit}"


def label_of(label: str) -> tuple[str, int | None]:
    """Return the owner label as people see it, and what its holder takes for k, if it tells.

    Behind the label there may be why the lock was taken away.
    """
    found = _LIMIT.search(label)
    if found is None:
        return label, None
    told = found[1]
    return without_limit(label), int(told) if 0 < len(told) <= len(str(MOST)) else None


def shown(slot: int | None, limit: int | None = None) -> str:
    """Return what people see behind a name, as in "openai (slot 3 of 5)"; "" without a slot."""
    if slot is None:
        return ""
    return f" (slot {slot})" if limit is None else f" (slot {slot} of {limit})"


def without_limit(text: str) -> str:
    """Return a text in which an owner label is, as people see it."""
    return _LIMIT.sub("", text)

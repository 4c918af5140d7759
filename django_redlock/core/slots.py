"""How a slot of a limited lock is written on the nodes, and shown to people.

A lock that up to k processes hold has k *slots*, each of which is an ordinary lock. A process knows
it by a name and a ``Slot``. On the nodes, slot 2 of "openai" is the *entry* "openai", the character
``MARK`` and "2". No user can write that character in a name, so a plain lock named "openai" is
another lock. What the holder takes for k stands behind ``MARK`` in the owner label in the key, for
people to see: two clients may have different ones, as while a new version is being rolled out.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

MARK: Final = "\x1f"
MOST: Final = 128  # slots of a name
_NUMBERS: Final = frozenset(map(str, range(MOST)))  # as this package writes them: no "007"
_OF: Final = re.compile(MARK + r"([0-9]*)")  # behind an owner label, which may be cut off


class Slot(NamedTuple):
    """A slot of a limited lock.

    Attributes:
        number: from 0.
        of: what the client takes for k; 0: it is unknown.
    """

    number: int
    of: int = 0


class Entry(NamedTuple):
    """What an entry on a node says.

    Attributes:
        name: as the user wrote it.
        slot: the number of the slot; None: it is a plain lock.
    """

    name: str
    slot: int | None


def entry_of(name: str, slot: int | None) -> str:
    """Return what stands for a name, or for a slot of it, in the keys and indexes of a node."""
    return name if slot is None else f"{name}{MARK}{slot}"


def read_entry(entry: str) -> Entry:
    """Return what an entry on a node says; other clients may have written it."""
    plain, mark, digits = entry.rpartition(MARK)
    if mark and digits in _NUMBERS:
        return Entry(plain, int(digits))
    return Entry(entry, None)


def label_with(label: str, slot: Slot | None) -> str:
    """Return an owner label as a key has it: of a slot, with what the holder takes for k."""
    return f"{label}{MARK}{slot.of}" if slot and slot.of else label


def read_label(text: str) -> tuple[str, int | None]:
    """Return the label of a key as people see it, and what its holder takes for k, if it tells.

    Behind the label there may be why the lock was taken away.
    """
    found = _OF.search(text)
    if found is None:  # as nearly always
        return text, None
    digits = found[1]
    return shown_label(text), int(digits) if 0 < len(digits) <= len(str(MOST)) else None


def shown_label(text: str) -> str:
    """Return a text in which an owner label is, as people see it."""
    return _OF.sub("", text)


def shown(slot: int | None, of: int | None = None) -> str:
    """Return what people see behind a name, as in "openai (slot 3 of 5)"; "" without a slot."""
    if slot is None:
        return ""
    return f" (slot {slot} of {of})" if of else f" (slot {slot})"

"""What happened to locks in this process lately: its last 200 events, for the admin's page of one.

A process records from when the admin's addresses are made, so only a process that can show the page
pays for it: a lock whose events have a listener costs some 20 µs more. Renewals are left
out: a lease that is held for long would push out all else.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from typing import Final, NamedTuple

from django_redlock import events
from django_redlock.core.errors import RedlockError
from django_redlock.events import Event, EventKind
from django_redlock.nodes.background import reset_in_child

MOST: Final = 200
KINDS: Final = tuple(kind for kind in EventKind if kind is not EventKind.EXTENDED)


class Past(NamedTuple):
    """What the record keeps of an event: no lease, and of its error no traceback.

    Attributes:
        when: ``time.time`` when it was told.
        kind, alias, name, seconds, fence, error: as those of the event.
    """

    when: float
    kind: EventKind
    alias: str
    name: str | tuple[str, ...]
    seconds: float
    fence: int | None
    error: RedlockError | None


class _Record:
    """The events of this process, the oldest first."""

    def __init__(self) -> None:
        self.reset()
        reset_in_child(self)

    def reset(self) -> None:
        """Forget all: what happened to the parent did not happen to its child."""
        self.events: deque[Past] = deque(maxlen=MOST)

    def note(self, event: Event) -> None:
        """Append an event, in one step that no thread and no signal handler can divide.

        The lease, and the frames that a traceback has, would live on in the record.
        """
        kind, alias, name, seconds, fence = event[:5]
        error = event.error and copy.copy(event.error)
        self.events.append(Past(time.time(), kind, alias, name, seconds, fence, error))


_record: Final = _Record()


def record() -> None:
    """Record what happens in this process from now on; to begin twice is to begin once."""
    events.subscribe(_record.note, KINDS)


def forget() -> None:
    """Record no more, and forget what was recorded."""
    events.unsubscribe(_record.note, KINDS)
    _record.reset()


def happened(alias: str, name: str) -> list[Past]:
    """Return what is recorded of a lock, the latest first."""

    def concerns(past: Past) -> bool:
        names = (past.name,) if isinstance(past.name, str) else past.name
        return past.alias == alias and name in names

    return [past for past in reversed(tuple(_record.events)) if concerns(past)]

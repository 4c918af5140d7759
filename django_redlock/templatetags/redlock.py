"""``{% load redlock %}{% redlock_state "export:42" as export %}``: who is at work, for a page."""

from __future__ import annotations

import math
from typing import NamedTuple

from django import template

from django_redlock import conf
from django_redlock.core.names import check_names, check_no_fields
from django_redlock.core.quorum import majority_of
from django_redlock.inspection.results import HeldLock, LockStatus, shown
from django_redlock.inspection.survey import survey

register = template.Library()


class State(NamedTuple):
    """A lock as it was a moment ago; good for words on a page, not for a decision.

    Attributes:
        known: whether enough nodes answered to tell; if not, nobody knows who holds it.
        held: whether somebody holds it, for certain.
        holder: the holder's label, "" if nobody holds it or it left none.
        remaining: seconds until it is free unless the holder renews it; None where it never
            expires, 0 where it is not taken.
        kind: ``held``, ``resting``, ``partial``, ``split``, ``unclear`` or ``free``.
    """

    known: bool
    held: bool
    holder: str
    remaining: float | None
    kind: str


@register.simple_tag
def redlock_state(name: str, *, alias: str = "default") -> State:
    """Ask the nodes of an alias about one lock.

    Raises:
        TemplateSyntaxError: nothing can be locked under this name.
        ImproperlyConfigured: there is no such alias, or its settings are wrong.
        SynchronousOnlyOperation: an event loop runs in this thread, and would be held up.
    """
    try:
        names = check_names([name])
        check_no_fields(names)
    except (TypeError, ValueError) as error:
        msg = f"redlock_state: {error}"
        raise template.TemplateSyntaxError(msg) from None
    backend = conf.backend(alias)
    backend.refuse_event_loop()
    (lock,) = survey(backend, names).locks
    held = lock.kind is LockStatus.HELD
    return State(
        known=lock.kind is not LockStatus.UNCLEAR,
        held=held,
        holder=shown(lock.holder) if held else "",
        remaining=_until_free(lock) if held or lock.kind is LockStatus.RESTING else 0.0,
        kind=lock.kind.value,
    )


def _until_free(lock: HeldLock) -> float | None:
    """Seconds until the owner's keys are fewer than a majority."""
    owner = lock.owners[0].owner
    left = sorted(
        (math.inf if cell.left is None else cell.left)
        for cell in lock.cells
        if cell is not None and cell.owner == owner
    )
    last = left[-majority_of(lock.of)]
    return None if last == math.inf else last

"""Look at a lock, in a thread or in a task, for ``Lock.state`` and ``Lock.astate``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_redlock.core.names import check_no_fields

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_redlock.backend import Backend
    from django_redlock.core.protocol import Steps
    from django_redlock.inspection.state import LockState


def look_at(backend: Backend, names: Sequence[str], *, filled: bool) -> LockState:
    """Return the state of these names, by blocking calls.

    Args:
        filled: whether braces in the names are text.
    """
    backend.refuse_event_loop()
    return backend.run(_looking(backend, names, filled=filled))


async def alook_at(backend: Backend, names: Sequence[str], *, filled: bool) -> LockState:
    """Return the state as ``look_at`` does, in a task."""
    return await backend.arun(_looking(backend, names, filled=filled))


def _looking(backend: Backend, names: Sequence[str], *, filled: bool) -> Steps[LockState]:
    from django_redlock.inspection.state import look  # not imported by those who only lock

    if not filled:
        check_no_fields(names)
    return look(backend, names)

"""Work that is done once: endpoints whose clients retry, tasks that are delivered twice.

An app of its own, with one table: ``INSTALLED_APPS += ["django_redlock.idempotency"]``.

    @idempotent
    def pay(request, pk): ...

The record that the work was done is a row, written in the transaction of the work. Its primary key
is what makes "once" true; the lock in front only lets equal requests wait for the first one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .answers import NotReplayable as NotReplayable
    from .decorator import idempotent as idempotent
    from .work import IdempotentWork as IdempotentWork
    from .work import idempotent_work as idempotent_work

# Django imports this package before it can import a model, which some of these need.
_MODULES: Final = {
    "NotReplayable": "answers",
    "idempotent": "decorator",
    "IdempotentWork": "work",
    "idempotent_work": "work",
}
__all__ = ["IdempotentWork", "NotReplayable", "idempotent", "idempotent_work"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)

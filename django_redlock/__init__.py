"""Mutual exclusion across processes and machines by the Redlock algorithm, for Django.

    with redlock("invoice:42") as lease:
        ...

Importing this package imports no Django; settings are read at the first use.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from django_redlock.locks.template import LockTemplate

from .core.errors import LeaseLost, LockTaken, NodesUnavailable, RedlockError
from .leases.context import assert_locked, current_lease

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from .backend import Backend

__all__ = [
    "LeaseLost",
    "LockTaken",
    "NodesUnavailable",
    "RedlockError",
    "assert_locked",
    "current_lease",
    "redlock",
    "redlocks",
]
__version__ = "0.1.0"


@functools.cache
def _settings() -> ModuleType:
    from . import conf

    return conf


def _configured(alias: str) -> Backend:
    made: Backend = _settings().backend(alias)
    return made


class _Templates:
    """``redlocks[alias]`` is the template of a configured alias; iterating gives all aliases."""

    def __getitem__(self, alias: str) -> LockTemplate:
        _configured(alias)
        return LockTemplate(_configured, alias)

    def __iter__(self) -> Iterator[str]:
        from . import conf

        return conf.aliases()


redlock = LockTemplate(_configured)
redlocks = _Templates()

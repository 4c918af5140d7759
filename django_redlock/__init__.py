"""Mutual exclusion across processes and machines by the Redlock algorithm, for Django.

    with redlock("invoice:42") as lease:
        ...

Importing this package imports no Django; settings are read at the first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_redlock.locks.template import LockTemplate

from .backend import Backend, backends
from .core.errors import LeaseLost, LockTaken, NodesUnavailable, RedlockError
from .core.policy import check_seconds
from .leases.context import assert_locked, current_lease
from .nodes.background import refuse_native_thread

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "LeaseLost",
    "LockTaken",
    "NodesUnavailable",
    "RedlockError",
    "assert_locked",
    "close",
    "current_lease",
    "redlock",
    "redlocks",
]
__version__ = "0.1.0"


def _configured(alias: str) -> Backend:
    refuse_native_thread()
    try:
        return backends[alias]
    except (KeyError, TypeError):  # TypeError: no text, which ``conf`` says
        from . import conf

        return conf.backend(alias)


class _Templates:
    """``redlocks[alias]`` is the template of a configured alias; iterating gives all aliases."""

    def __getitem__(self, alias: str) -> LockTemplate:
        _configured(alias)
        return LockTemplate(_configured, alias)

    def __iter__(self) -> Iterator[str]:
        from . import conf

        return conf.aliases()


def close(timeout: float = 5.0) -> bool:
    """End what the package does in the background, and close its idle connections.

    For a program that forks, or that exits at once: no thread of the package runs when this has
    returned True, and what was to be released has been sent to each node that can be reached.
    Release your locks before, and let no other thread take one meanwhile: a lease that is held is
    not renewed until another lock is taken. Locks can be taken afterwards as ever. It blocks
    the thread, also one of an event loop.

    Args:
        timeout: seconds for which it waits.

    Returns:
        Whether all of it ended in this time; not if a node hangs, or an ``on_lost`` still runs.

    Raises:
        TypeError, ValueError: the timeout is no number of seconds, or is negative.
    """
    from .nodes.group import close_all

    return not close_all(check_seconds("timeout", timeout, zero=True))


redlock = LockTemplate(_configured)
redlocks = _Templates()

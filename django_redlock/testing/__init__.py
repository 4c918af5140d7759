"""For tests of this project and of its users': nodes, states of locks, and locks left behind.

with EmbeddedNodes(5) as nodes, override_settings(REDLOCK={"default": nodes.settings()}):
    with taken("report:7"):
        ...
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .embedded import EmbeddedNode, EmbeddedNodes
    from .leaks import LeavesNoLocks
    from .locks import assert_free, assert_taken, stale, taken
    from .outages import unavailable

__all__ = [
    "EmbeddedNode",
    "EmbeddedNodes",
    "LeavesNoLocks",
    "assert_free",
    "assert_taken",
    "stale",
    "taken",
    "unavailable",
]
_MODULES: Final = {
    "EmbeddedNode": "embedded",
    "EmbeddedNodes": "embedded",
    "LeavesNoLocks": "leaks",
    "unavailable": "outages",
}


def __getattr__(name: str) -> Any:
    """Import on first use: pytest loads this package in every project that has it."""
    if name in __all__:
        module = importlib.import_module(f".{_MODULES.get(name, 'locks')}", __name__)
        return getattr(module, name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)

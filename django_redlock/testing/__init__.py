"""For tests, the project's own and its users': nodes in memory and real, embedded ones.

with EmbeddedNodes(5) as nodes, override_settings(REDLOCK={"default": nodes.settings()}):
    ...
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .embedded import EmbeddedNode, EmbeddedNodes

__all__ = ["EmbeddedNode", "EmbeddedNodes"]


def __getattr__(name: str) -> Any:
    """Import on first use: pytest loads this package in every project that has it."""
    if name in __all__:
        from . import embedded

        return getattr(embedded, name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)

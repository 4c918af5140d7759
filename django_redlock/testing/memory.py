"""Re-export the nodes in memory, for tests; ``fanout.memory`` defines them."""

from __future__ import annotations

from django_redlock.fanout.memory.group import MemoryNodes
from django_redlock.fanout.memory.node import MemoryNode

__all__ = ["MemoryNode", "MemoryNodes"]

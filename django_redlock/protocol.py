"""Re-export ``Vote`` and ``Answer``, which earlier versions had here; ``core`` defines them."""

from __future__ import annotations

from .core.protocol import Answer, Vote

__all__ = ["Answer", "Vote"]

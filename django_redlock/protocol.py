"""The public place of ``Vote`` and ``Answer``; ``core`` defines them."""

from __future__ import annotations

from .core.protocol import Answer, Vote

__all__ = ["Answer", "Vote"]

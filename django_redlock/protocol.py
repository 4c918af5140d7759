"""``Vote``, where earlier versions had it; it lives in ``core``."""

from __future__ import annotations

from .core.protocol import Answer, Vote

__all__ = ["Answer", "Vote"]

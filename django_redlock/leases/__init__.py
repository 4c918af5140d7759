"""What a holder has, from the grant to its end: ``Lease``."""

from __future__ import annotations

from .lease import Lease

__all__ = ["Lease"]

"""Re-export ``Lease``, which earlier versions had here; ``leases.lease`` defines it."""

from __future__ import annotations

from .leases.lease import Lease

__all__ = ["Lease"]

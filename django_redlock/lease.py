"""``Lease``, where earlier versions had it; it lives in ``leases``."""

from __future__ import annotations

from .leases.lease import Lease

__all__ = ["Lease"]

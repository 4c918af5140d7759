"""Type the request of a view under ``@single_flight``, which has a ``lease``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.http import HttpRequest

if TYPE_CHECKING:
    from django_redlock.leases.lease import Lease

    class LockedRequest(HttpRequest):
        """A request in a view under ``@single_flight``, for annotations.

        Attributes:
            lease: the lease of the view's lock; None if the request was not locked, by its method
                or by ``on_unavailable``.
        """

        lease: Lease | None

else:
    LockedRequest = HttpRequest  # so that ``isinstance`` is true of every request

__all__ = ["LockedRequest"]

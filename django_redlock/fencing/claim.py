"""Claim rows for a holder: its fence is written to them, unless one has a higher fence.

The claim comes before the reads. A fence that is only compared on writes lets an older holder write
between the read and the write of its successor, whose own write then undoes that ("Fencing over a
majority" in the explanation "Redlock explained").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from asgiref.sync import sync_to_async
from django.db import models, transaction

from .field import Token
from .holders import Holder, check_holder
from .queries import claimable, only_key
from .rows import FencedRows, stale

if TYPE_CHECKING:
    from django.db.models import QuerySet

M = TypeVar("M", bound=models.Model)


def fenced(lease: Holder, queryset: QuerySet[M], field: str | None = None) -> FencedRows[M]:
    """Claim the rows of a queryset for the holder of a lease.

    Args:
        lease: of a lock that all who write these rows take; or a ``RemoteHolder``.
        queryset: of a model with a ``FenceField``; its conditions are on its own table.
        field: the name of the ``FenceField``, where the model has more than one.

    Raises:
        LeaseLost: the lease is over.
        StaleFence: a later holder has claimed some of the rows; no row is claimed.
        DoesNotExist: of the model: there is no such row.
        TypeError: a queryset or a model that cannot be claimed in one statement; it says why.
    """
    check_holder(lease)
    fence = claimable(queryset, field)
    # It is asked for the database to write to, as a router may say.
    using = queryset.select_for_update().db
    rows = queryset.using(using).order_by()
    lease.ensure()
    claim = _Claim(lease, rows, fence.attname, using)
    keys = claim.of_one() or claim.of_all()
    if not keys:
        model: Any = rows.model
        raise model.DoesNotExist(f"no {model._meta.object_name} to claim")
    return FencedRows(lease, rows.model, fence, using, keys)


async def afenced(lease: Holder, queryset: QuerySet[M], field: str | None = None) -> FencedRows[M]:
    """Claim as ``fenced`` does, in a task."""
    return await sync_to_async(fenced)(lease, queryset, field)


class _Claim:
    """One claim."""

    def __init__(self, lease: Holder, rows: QuerySet[Any], name: str, using: str) -> None:
        self.lease, self.rows, self.name, self.using = lease, rows, name, using

    def of_one(self) -> tuple[Any, ...]:
        """Claim the row of a primary key, where the queryset has one, in this statement alone."""
        key = only_key(self.rows.query)
        return (key,) if key is not None and self._write() == 1 else ()

    def of_all(self) -> tuple[Any, ...]:
        """Claim what the queryset finds, and return the primary keys of it."""
        with transaction.atomic(using=self.using):
            self._write()
            found = self._look(self.rows)
            keys = tuple(key for key, fence in found if fence == self.lease.fence)
            if len(keys) < len(found):
                self._refuse_later(found)
        return keys

    def _write(self) -> int:
        token = self.lease.fence
        return self.rows.filter(**{f"{self.name}__lte": token}).update(**{self.name: Token(token)})

    def _look(self, rows: QuerySet[Any]) -> list[tuple[Any, int]]:
        return list(rows.values_list("pk", self.name))

    def _refuse_later(self, found: list[tuple[Any, int]]) -> None:
        """Raise StaleFence if a later holder has claimed some of the rows.

        In a transaction a plain SELECT may show rows as they were when it began (REPEATABLE READ);
        one that locks them shows what they are.
        """
        if transaction.get_connection(self.using).features.has_select_for_update:
            found = self._look(self.rows.select_for_update())
        if later := [key for key, fence in found if fence > self.lease.fence]:
            raise stale(self.lease, self.rows.model, later)

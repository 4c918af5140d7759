"""Claim rows for a holder: its fence is written to them, unless one has a higher fence.

The claim comes before the reads. A fence that is only compared on writes lets an older holder write
between the read and the write of its successor, whose own write then undoes that ("Fencing over a
majority" in the explanation "Redlock explained").

A queryset can be claimed if its UPDATE has its conditions on the table itself. Of any other Django
makes a subquery, or reads the primary keys first. A database that has waited for a row's lock
checks the conditions on that row again, but not what a subquery has found before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from asgiref.sync import sync_to_async
from django.db import models, transaction
from django.db.models import CharField, QuerySet, TextField
from django.db.models.expressions import Col, Subquery
from django.db.models.fields.related_lookups import RelatedExact
from django.db.models.lookups import Exact
from django.db.models.sql import Query
from django.db.models.sql.where import AND

from django_redlock.leases.lease import Lease

from .field import FenceField, Token, fences_of
from .rows import FencedRows, Holder, stale

M = TypeVar("M", bound=models.Model)
NO_SLOT: Final = (
    "fenced() takes no lease of a limited lock: others hold {0!r} at the same time, in other "
    "slots, and the fences of two slots have no order; inside it, guard these rows by a lock "
    "without a limit"
)


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
        TypeError: a queryset or a model that cannot be claimed in one statement; it says why; or
            the lease is of a limited lock, which others hold at the same time.
    """
    if not isinstance(lease, Holder):
        raise TypeError(
            "fenced() takes a lease, as of 'with redlock(…) as lease', and then the rows: "
            f"fenced(lease, rows). Its first argument is of the type {type(lease).__name__}"
        )
    if isinstance(lease, Lease) and lease.slot is not None:
        raise TypeError(NO_SLOT.format(lease.name))
    fence = _claimable(queryset, field)
    # It is asked for the database to write to, as a router may say.
    using = queryset.select_for_update().db
    rows = queryset.using(using).order_by()
    lease.ensure()
    keys = _claim(lease, rows, fence.attname)
    if not keys:
        model: Any = rows.model
        raise model.DoesNotExist(f"no {model._meta.object_name} to claim")
    return FencedRows(lease, rows.model, fence, using, keys)


async def afenced(lease: Holder, queryset: QuerySet[M], field: str | None = None) -> FencedRows[M]:
    """Claim as ``fenced`` does, in a task."""
    return await sync_to_async(fenced)(lease, queryset, field)


def _claim(lease: Holder, rows: QuerySet[Any], name: str) -> Sequence[Any]:
    key = _only_key(rows.query)
    if key is not None and _write(lease, rows, name) == 1:  # one statement is all or nothing
        return (key,)
    with transaction.atomic(using=rows.db):
        _write(lease, rows, name)
        found = list(rows.values_list("pk", name))
        keys = [key for key, fence in found if fence == lease.fence]
        if len(keys) < len(found):
            # In a transaction a plain SELECT may show rows as they were when it began (REPEATABLE
            # READ); one that locks them shows what they are.
            if transaction.get_connection(rows.db).features.has_select_for_update:
                found = list(rows.select_for_update().values_list("pk", name))
            if later := [key for key, fence in found if fence > lease.fence]:
                raise stale(lease, rows.model, later)
    return keys


def _write(lease: Holder, rows: QuerySet[Any], name: str) -> int:
    """Write the fence to the rows that have no higher one; return how many they are."""
    return rows.filter(**{f"{name}__lte": lease.fence}).update(**{name: Token(lease.fence)})


# -- which querysets ------------------------------------------------------------------------------


def _claimable(queryset: Any, field: str | None) -> FenceField:
    """Return the field by which the rows of a queryset can be claimed, or raise a TypeError."""
    if isinstance(queryset, models.Manager):
        queryset = queryset.all()
    if not isinstance(queryset, models.QuerySet):
        raise TypeError(
            f"fenced() takes a queryset, as Seat.objects.filter(pk=7), not {queryset!r}"
        )
    fence = _field_of(queryset.model, field)
    for what in _objections(queryset.query, fence):
        raise TypeError(
            f"fenced() takes no queryset with {what}, for it cannot be claimed in one statement: "
            f"claim {queryset.model.__name__}.objects.filter(pk__in=…)"
        )
    return fence


def _field_of(model: type[models.Model], name: str | None) -> FenceField:
    label, fences = model._meta.label, fences_of(model)
    names = [each.name for each in fences]
    if name is not None and name not in names:
        raise TypeError(f"{label} has no FenceField {name!r}; it has {names}")
    if not fences:
        raise TypeError(f"{label} has no FenceField: add fence = FenceField(), and migrate")
    if name is None and len(fences) > 1:
        raise TypeError(f"{label} has more than one FenceField: say field=, one of {names}")
    fence = fences[0] if name is None else fences[names.index(name)]
    if fence.model._meta.concrete_model is not model._meta.concrete_model:
        parent = fence.model.__name__
        raise TypeError(
            f"the FenceField of {label} is in the table of {parent}: claim {parent}.objects, or "
            f"give {label} a FenceField of its own"
        )
    return fence


def _objections(query: Query, fence: FenceField) -> Iterator[str]:
    """Yield what the conditions of one UPDATE cannot say."""
    tables = [alias for alias, count in query.alias_refcount.items() if count]
    found = {
        "a slice": query.is_sliced,
        "distinct()": query.distinct,
        f"{query.combinator}()": query.combinator,
        "an aggregate": query.group_by is not None or query.where.contains_aggregate,
        "a window function": query.where.contains_over_clause,
        "extra()": query.extra or query.extra_tables,
        "a condition on another table": len(tables) > 1,
    }
    yield from (what for what, there in found.items() if there)
    for node in _parts(query.where):
        if isinstance(node, Query | models.QuerySet | Subquery):
            yield "a subquery"
        if isinstance(node, Col) and node.target == fence:
            yield "a condition on the FenceField"


def _parts(node: Any) -> Iterator[Any]:
    """Yield a condition and all that it is made of."""
    yield node
    sources: list[Any] = getattr(node, "get_source_expressions", list)()
    for each in (*getattr(node, "children", ()), *sources):
        if each is not None:
            yield from _parts(each)


def _only_key(query: Query) -> Any:
    """Return the primary key, if the conditions name exactly one; else None."""
    if query.where.connector == AND and not query.where.negated:
        conditions: Sequence[Any] = query.where.children
        for each in conditions:
            if _is_of_key(each):
                return each.rhs
    return None


def _is_of_key(condition: Any) -> bool:
    column = getattr(condition, "lhs", None)
    return (
        isinstance(condition, Exact)
        and not isinstance(condition, RelatedExact)
        and isinstance(column, Col)
        and column.target.primary_key
        # A database may find a text by another spelling, and the row has its own.
        and not isinstance(column.target, CharField | TextField)
        and condition.rhs_is_direct_value()
    )

"""Which querysets can be claimed: those whose UPDATE has its conditions on the table itself.

Of any other Django makes a subquery, or reads the primary keys first. A database that has waited
for a row's lock checks the conditions on that row again, but not what a subquery has found before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from django.db import models
from django.db.models.expressions import Col, Subquery
from django.db.models.fields.related_lookups import RelatedExact
from django.db.models.lookups import Exact
from django.db.models.sql import Query
from django.db.models.sql.where import AND

from .field import FenceField, fences_of


def claimable(queryset: Any, field: str | None) -> FenceField:
    """Return the field by which the rows of a queryset can be claimed.

    Raises:
        TypeError: the queryset, or its model, cannot be claimed in one statement.
    """
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
    for each in (*getattr(node, "children", ()), *_sources(node)):
        yield from _parts(each)


def _sources(node: Any) -> list[Any]:
    sources = getattr(node, "get_source_expressions", None)
    return [each for each in sources() if each is not None] if sources is not None else []


def only_key(query: Query) -> Any:
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
        and condition.rhs_is_direct_value()
    )

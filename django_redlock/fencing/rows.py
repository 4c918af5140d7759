"""Rows that a holder has claimed, to be read and written while they are its own.

Each statement asks that the rows still have the holder's fence. So a holder that slept past its
lease, and whose successor has claimed the rows, changes nothing: the database decides that, by a
number in the row, and no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from asgiref.sync import sync_to_async
from django.db import models, transaction
from django.utils.functional import cached_property

from django_redlock.core.errors import LeaseLost
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.leases.lease import Lease

from .field import FenceField, Token

M = TypeVar("M", bound=models.Model)
T = TypeVar("T")
SHOWN: Final = 5  # primary keys in a sentence
HIGHEST: Final = 2**63 - 1  # of a FenceField


@dataclass(frozen=True, slots=True)
class RemoteHolder:
    """A holder in another program, which has sent its fence: in a header, or in a message.

    It is believed: let only programs send one that may write the rows. Its lease is not asked; a
    row refuses it if a later holder has claimed it.

    Attributes:
        name: the lock's name, for errors.
        fence: the number that the holder has as ``lease.fence``; a text is read as one, as of a
            header.

    Raises:
        ValueError: ``fence`` is no whole number from 0 to 2**63 - 1.
    """

    name: str | tuple[str, ...]
    fence: int

    def __post_init__(self) -> None:
        given: Any = self.fence
        text = str(given) if isinstance(given, int | str) and not isinstance(given, bool) else ""
        if not (text.isascii() and text.isdigit() and int(text[:20]) <= HIGHEST):
            raise ValueError(f"fence must be a whole number from 0 to 2**63 - 1, not {given!r}")
        object.__setattr__(self, "fence", int(text))

    def ensure(self) -> None:
        """Do nothing: only the other program knows whether its lease is over."""


Holder = Lease | RemoteHolder


class StaleFence(LeaseLost):
    """A later holder has claimed rows, or they are gone.

    Attributes:
        keys: the primary keys of the rows.
    """

    keys: tuple[Any, ...] = ()


StaleFence.__module__ = "django_redlock.fencing"  # task queues store it with an error


class FencedRows(Generic[M]):
    """Rows that a holder has claimed; ``fenced`` makes it.

    Attributes:
        keys: the primary keys of the rows.
    """

    def __init__(
        self, lease: Holder, model: type[M], fence: FenceField, using: str, keys: Sequence[Any]
    ) -> None:
        self.keys = tuple(keys)
        self._lease, self._model, self._fence, self._using = lease, model, fence, using

    def __repr__(self) -> str:
        shown = _shown(self.keys)
        return f"<FencedRows {self._model._meta.label} {shown}, fence {self._lease.fence}>"

    def __len__(self) -> int:
        return len(self.keys)

    # -- reading --------------------------------------------------------------------------------

    def all(self) -> models.QuerySet[M]:
        """Return a queryset of the rows that are still the holder's, such as to join others."""
        return self._rows.all()

    def get(self) -> M:
        """Read the row, where one was claimed.

        Raises:
            StaleFence: a later holder has claimed it, or it is gone.
            MultipleObjectsReturned: of the model: more rows than one were claimed.
        """
        if len(self.keys) > 1:
            model: Any = self._model
            raise model.MultipleObjectsReturned(
                f"{len(self.keys)} rows were claimed: iterate over them"
            )
        (row,) = self
        return row

    def __iter__(self) -> Iterator[M]:
        """Read all the rows.

        Raises:
            StaleFence: a later holder has claimed some of them, or they are gone.
        """
        found = list(self.all())
        if len(found) < len(self.keys):
            raise self._stale({row.pk for row in found})
        return iter(found)

    # -- writing --------------------------------------------------------------------------------

    def update(self, **values: Any) -> int:
        """Update all the rows, in one statement; return how many they are.

        Raises:
            StaleFence: a later holder has claimed some, or they are gone; no row is changed.
            TypeError: no value, or one for a column of another table, the FenceField or the key.
        """
        self._refuse_others(values)
        if len(self.keys) == 1:  # one statement changes its one row or nothing
            return self._complete(self._rows.update(**values))
        with transaction.atomic(using=self._using):
            return self._complete(self._rows.update(**values))

    def delete(self) -> tuple[int, dict[str, int]]:
        """Delete all the rows; return what ``QuerySet.delete`` returns.

        Raises:
            StaleFence: a later holder has claimed some, or they are gone; no row is deleted.
        """
        return self._locked(self.keys, self.all().delete)

    def save(self, row: M, **options: Any) -> None:
        """Save one of the rows, with the options of ``Model.save``.

        Raises:
            StaleFence: a later holder has claimed it, or it is gone; nothing is saved.
            ValueError: the row was not claimed here, or in another database.
        """
        model: Any = self._model._meta.concrete_model  # of a proxy, too
        if not isinstance(row, model) or row.pk not in self.keys:
            raise ValueError(f"{row!r} is none of the rows that were claimed: {self!r}")
        if options.setdefault("using", self._using) != self._using:
            raise ValueError(f"the rows were claimed in the database {self._using!r}")
        options["force_update"] = True
        self._locked((row.pk,), lambda: row.save(**options))

    # -- in tasks -------------------------------------------------------------------------------

    async def aget(self) -> M:
        """Read the row as ``get`` does, in a task."""
        return await sync_to_async(self.get)()

    async def alist(self) -> list[M]:
        """Read all the rows, in a task."""
        return await sync_to_async(lambda: list(self))()

    async def aupdate(self, **values: Any) -> int:
        """Update as ``update`` does, in a task."""
        return await sync_to_async(self.update)(**values)

    async def adelete(self) -> tuple[int, dict[str, int]]:
        """Delete as ``delete`` does, in a task."""
        return await sync_to_async(self.delete)()

    async def asave(self, row: M, **options: Any) -> None:
        """Save as ``save`` does, in a task."""
        await sync_to_async(self.save)(row, **options)

    # -- the rule -------------------------------------------------------------------------------

    @cached_property
    def _rows(self) -> models.QuerySet[M]:
        return self._ours(self.keys)  # made once: that costs as much as a short statement

    def _ours(self, keys: Sequence[Any]) -> models.QuerySet[M]:
        which = {"pk": keys[0]} if len(keys) == 1 else {"pk__in": keys}
        rows = self._model._base_manager.using(self._using)
        return rows.filter(**which, **{self._fence.attname: self._lease.fence})

    def _locked(self, keys: Sequence[Any], act: Callable[[], T]) -> T:
        """Lock the rows, by writing the fence again, and do what takes several statements."""
        token = {self._fence.attname: Token(self._lease.fence)}
        with transaction.atomic(using=self._using):
            if self._ours(keys).update(**token) < len(keys):
                raise self._stale()
            return act()

    def _complete(self, count: int) -> int:
        if count < len(self.keys):
            raise self._stale()
        return count

    def _stale(self, ours: set[Any] | None = None) -> StaleFence:
        if ours is None:
            ours = set(self.all().values_list("pk", flat=True))
        return stale(self._lease, self._model, [key for key in self.keys if key not in ours])

    def _refuse_others(self, values: dict[str, Any]) -> None:
        if not values:
            raise TypeError("update() takes the columns to change, as in update(paid=True)")
        own = self._fence.model._meta.concrete_model
        for name in values:
            meta: Any = self._model._meta
            field = meta.pk if name == "pk" else meta.get_field(name)
            if isinstance(field, FenceField):
                raise field.refusal()
            if getattr(field, "primary_key", False):
                raise TypeError(f"update() of claimed rows does not change their key {name}")
            if field.model._meta.concrete_model is not own:
                parent = field.model.__name__
                raise TypeError(f"{name} is in the table of {parent}: set it on a row, and save()")


def stale(lease: Holder, model: type[models.Model], keys: Sequence[Any]) -> StaleFence:
    """Return the error of rows that a later holder has claimed, or that are gone."""
    rows = f"{model._meta.object_name} {_shown(keys)}"
    error = StaleFence(
        because(ReasonCode.STALE_FENCE, rows=rows, fence=lease.fence), name=lease.name
    )
    error.keys = tuple(keys)
    return error


def _shown(keys: Sequence[Any]) -> str:
    return ", ".join(map(str, keys[:SHOWN])) + (", …" if len(keys) > SHOWN else "")

"""A column with the fence of the last holder that claimed the row, which ``fenced`` alone writes.

A fence that ordinary code can write protects nothing: an instance that was read earlier has an
older one, and its ``save()`` would set the row back to it. So:

    INSERT, of a copy too        0, whatever the instance has
    INSERT without the column    0, by the database
    save(), the admin            the column keeps its value
    update(), bulk_update()      a TypeError
    bulk_create() that updates   a TypeError
    loaddata                     what the fixture has, as of every field: it replaces the row
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from django.apps import apps
from django.core import checks
from django.db import connections, models, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.expressions import Col
from django.db.models.signals import class_prepared, pre_save
from django.db.models.sql import InsertQuery
from django.db.models.sql.compiler import SQLCompiler
from django.utils.translation import gettext_lazy as _

from django_redlock.core.reasons import CHECKS

W010: Final = "django_redlock.W010"  # two fences in a model
W011: Final = "django_redlock.W011"  # MySQL or MariaDB that counts changed rows only
# The database's own default is for a release that knows no fence and still inserts rows.
OWN: Final = {"default": 0, "db_default": 0, "editable": False}
FOUND_ROWS: Final = 2  # CLIENT.FOUND_ROWS of MySQLdb and PyMySQL: matched rows count
REFUSED: Final = ("null", "blank", "unique", "primary_key", "choices")


class Token(int):
    """A number that may be written to a ``FenceField``."""


class FenceField(models.BigIntegerField):  # type: ignore[type-arg] # not at run time
    """The fence of the last holder that has claimed the row; 0 before the first.

    It takes the arguments of a ``BigIntegerField`` that say how the column is named and shown, as
    ``verbose_name``, ``db_column``, ``db_index``, ``help_text`` and ``db_comment``.

    Raises:
        TypeError: an argument that would let the column be empty, unique or edited.
    """

    description = _("Fence of the last holder that has claimed the row")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        for name in REFUSED:
            given = kwargs.get(name)
            if given is not None and given is not False:
                raise TypeError(
                    f"a FenceField takes no {name}=: each row has a fence, which fenced() writes"
                )
        for name, value in OWN.items():
            if kwargs.setdefault(name, value) != value:
                raise TypeError(f"{name}= of a FenceField is {value!r}: leave the argument out")
        super().__init__(*args, **kwargs)

    def deconstruct(self) -> tuple[str, str, Sequence[Any], dict[str, Any]]:
        """Return what a migration stores: not what is the same for each such field."""
        name, path, args, kwargs = super().deconstruct()
        for each in OWN:
            kwargs.pop(each, None)
        return name, path.replace(".fencing.field.", ".fencing."), args, kwargs

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:  # noqa: FBT001 - Django's
        """Return 0 for a new row, else the column itself."""
        if not add:
            return models.F(self.attname)
        setattr(model_instance, self.attname, 0)
        return Token(0)

    def get_db_prep_save(self, value: Any, connection: BaseDatabaseWrapper) -> Any:
        """Prepare a value of ``fenced``, of a new row or of a fixture.

        Raises:
            TypeError: any other value, as of ``update(fence=…)``.
        """
        if isinstance(value, Token):
            return super().get_db_prep_save(int(value), connection)
        if type(value) is int and value == 0 and self.model.__module__ == "__fake__":
            # A migration adds the column to a table that has rows; its models are of this module.
            return super().get_db_prep_save(value, connection)
        if isinstance(value, Col) and value.target == self:
            return value
        raise self.refusal()

    def get_placeholder(self, _: Any, compiler: SQLCompiler, __: BaseDatabaseWrapper) -> str:
        """Return the place of the value in an INSERT or UPDATE; up to Django 6.0.

        Raises:
            TypeError: ``bulk_create(update_conflicts=True)`` would set it back to 0.
        """
        query = compiler.query
        if isinstance(query, InsertQuery) and self in vars(query)["update_fields"]:
            raise self.refusal()
        return "%s"

    def get_placeholder_sql(
        self, value: Any, compiler: SQLCompiler, connection: BaseDatabaseWrapper
    ) -> tuple[str, Sequence[Any]]:
        """Return the place of the value in an INSERT or UPDATE, and the value; from Django 6.1.

        Raises:
            TypeError: as ``get_placeholder`` does.
        """
        place = self.get_placeholder(value, compiler, connection)
        return compiler.compile(value) if hasattr(value, "as_sql") else (place, [value])

    def refusal(self) -> TypeError:
        """Return the error of other code that writes it."""
        return TypeError(
            f"only fenced() writes {self.model._meta.label}.{self.name}: leave it out of update(), "
            "bulk_update() and the update_fields of bulk_create()"
        )

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """Report W010 for a model with two fences."""
        found = super().check(**kwargs)
        fences = fences_of(self.model)
        names = [each.name for each in fences]
        own = [each for each in fences if each.model is self.model]  # a parent's is not asked
        if len(names) > 1 and own[0] is self:
            found.append(
                checks.Warning(
                    f"{self.model._meta.label} has more than one FenceField: {', '.join(names)}.",
                    hint="Remove all but one, or name one in each fenced(…, field=…). "
                    f"See {CHECKS}w010",
                    obj=self,
                    id=W010,
                )
            )
        return found


def fences_of(model: type[models.Model]) -> list[FenceField]:
    """Return the fields of a model, its parents' too, that are a ``FenceField``."""
    return [each for each in model._meta.concrete_fields if isinstance(each, FenceField)]


def _let_fixtures_write(sender: type[models.Model], **_: Any) -> None:
    """Watch the models that have a fence, their proxies too; but not those of migrations."""
    if sender.__module__ != "__fake__" and fences_of(sender):
        pre_save.connect(_mark_raw, sender=sender, dispatch_uid="django_redlock.fencing")


def _mark_raw(instance: models.Model, *, raw: bool = False, **_: Any) -> None:
    """Let the values of a fixture be written."""
    if raw:
        for field in fences_of(type(instance)):
            setattr(instance, field.attname, Token(getattr(instance, field.attname) or 0))


class_prepared.connect(_let_fixtures_write, dispatch_uid="django_redlock.fencing")


@checks.register
def check_found_rows(**_: Any) -> list[checks.CheckMessage]:
    """Report W011 for a MySQL or MariaDB that counts changed rows, where a fenced model may be."""
    return [
        checks.Warning(
            f"DATABASES[{alias!r}]['OPTIONS']['client_flag'] lacks CLIENT.FOUND_ROWS: an update of "
            "fenced rows that changes nothing counts none, and raises StaleFence.",
            hint="Remove client_flag: Django sets FOUND_ROWS. Or write CLIENT.FOUND_ROWS | …. "
            f"See {CHECKS}w011",
            id=W011,
        )
        for alias in _fenced_databases()
        if _counts_changed_rows(alias)
    ]


def _fenced_databases() -> Iterator[str]:
    """Yield the databases that the tables of fenced models may be in."""
    models = [model for model in apps.get_models() if fences_of(model)]
    for alias in connections:
        if any(router.allow_migrate_model(alias, model) for model in models):
            yield alias


def _counts_changed_rows(alias: str) -> bool:
    connection = connections[alias]
    if connection.vendor != "mysql":
        return False
    flags = connection.settings_dict["OPTIONS"].get("client_flag")
    return flags is not None and not int(flags) & FOUND_ROWS

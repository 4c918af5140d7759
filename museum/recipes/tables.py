"""The table of the fenced row; to be imported when Django is set up."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import connection, models

from django_redlock.fencing import FenceField


class Counter(models.Model):
    """What holders read, and write one higher."""

    value = models.BigIntegerField(default=0)
    fence = FenceField()

    objects: ClassVar[models.Manager[Any]] = models.Manager()

    class Meta:
        """It belongs to no app."""

        app_label = "museum"

    def __str__(self) -> str:
        return f"counter {self.pk}"


def create() -> None:
    """Make the table with its row, unless another client has."""
    if Counter._meta.db_table not in connection.introspection.table_names():
        with connection.schema_editor() as editor:
            editor.create_model(Counter)
    Counter.objects.get_or_create(pk=1)

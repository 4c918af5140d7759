"""Tables of fenced rows that no app has: ``create`` makes them, ``drop`` removes them."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import connections, models

from django_redlock.fencing import FenceField


class Counter(models.Model):
    """What holders read, and write one higher."""

    value = models.BigIntegerField(default=0)
    fence = FenceField()

    objects: ClassVar[models.Manager[Any]] = models.Manager()

    class Meta:
        app_label = "tests_fencing"

    def __str__(self) -> str:
        return f"counter {self.pk}"


class Ticket(models.Model):
    """What only one may have: a seat has one ticket."""

    seat = models.CharField(max_length=20, unique=True)
    owner = models.CharField(max_length=20, blank=True)
    fence = FenceField()

    objects: ClassVar[models.Manager[Any]] = models.Manager()

    class Meta:
        app_label = "tests_fencing"

    def __str__(self) -> str:
        return self.seat


class Entry(models.Model):
    """A line of the ledger: one for each time that a counter was written, in its transaction."""

    counter = models.IntegerField()
    process = models.CharField(max_length=20)
    number = models.IntegerField()

    objects: ClassVar[models.Manager[Any]] = models.Manager()

    class Meta:
        app_label = "tests_fencing"
        constraints = (
            models.UniqueConstraint(fields=["process", "number"], name="tests_fencing_once"),
        )

    def __str__(self) -> str:
        return f"{self.process}: {self.number}"


ALL = (Counter, Ticket, Entry)


def create(alias: str) -> None:
    """Make the tables in a database."""
    with connections[alias].schema_editor() as editor:
        for model in ALL:
            editor.create_model(model)


def drop(alias: str) -> None:
    """Remove the tables of a database, those that it has."""
    there = connections[alias].introspection.table_names()
    with connections[alias].schema_editor() as editor:
        for model in ALL:
            if model._meta.db_table in there:
                editor.delete_model(model)

"""Models with a fence; an app of the tests' project."""

from __future__ import annotations

from django.db import models

from django_redlock.fencing import FenceField


class Hall(models.Model):
    city = models.CharField(max_length=20)


class Seat(models.Model):
    owner = models.CharField(max_length=20, default="", blank=True)
    price = models.IntegerField(default=0)
    hall = models.ForeignKey(Hall, models.CASCADE, null=True, blank=True)
    fence = FenceField()

    def __str__(self) -> str:
        return f"seat {self.pk}"


class FrontSeat(Seat):
    """A proxy: of the same table."""

    class Meta:
        proxy = True


class BoxSeat(Seat):
    """A table of its own, without a fence."""

    view = models.CharField(max_length=20, default="")


class Place(models.Model):
    """A parent without a fence."""

    label = models.CharField(max_length=20, default="")


class Stall(Place):
    """A child with a fence in its own table."""

    rent = models.IntegerField(default=0)
    fence = FenceField()


class Fenced(models.Model):
    guard = FenceField()

    class Meta:
        abstract = True


class Ticket(Fenced):
    """A key that is no number, and a fence of an abstract parent."""

    code = models.CharField(max_length=20, primary_key=True)
    paid = models.BooleanField(default=False)


class Twice(models.Model):
    """Two fences."""

    first = FenceField()
    second = FenceField(db_column="other")
    text = models.CharField(max_length=20, default="")


class Square(models.Model):
    """A key of two columns."""

    pk = models.CompositePrimaryKey("row", "column")
    row = models.IntegerField()
    column = models.IntegerField()
    owner = models.CharField(max_length=20, default="")
    fence = FenceField()


class Sale(models.Model):
    """What goes when its seat goes."""

    seat = models.ForeignKey(Seat, models.CASCADE)

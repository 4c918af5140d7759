"""What the locks protect.

A lock alone cannot stop a holder that was frozen, has lost the lock and does not know it yet.
So a show's row, which keeps the highest fence it has seen, refuses it: a holder *claims* the row
with its fence before it reads, and writes only while the row still has that fence. Both are one
statement each; between two, others could write.
"""

from django.db import models
from django.db.models import F
from django.urls import reverse
from django.utils import timezone


class ShowQuerySet(models.QuerySet["Show"]):
    def claim(self, pk: int, fence: int) -> bool:
        """Enter: from now on the row refuses every lower fence. False if we are the stale one."""
        return self.filter(pk=pk, fence__lte=fence).update(fence=fence) == 1

    def write(self, pk: int, fence: int, sold: int) -> bool:
        """Write, unless somebody has claimed the row since we did."""
        return self.filter(pk=pk, fence=fence).update(sold=sold) == 1

    def sold(self, pk: int) -> int:
        return self.values_list("sold", flat=True).get(pk=pk)

    def sell(self, pk: int, seats: int) -> bool:
        """Count seats in one statement, which needs no lock of ours. False: no such show."""
        return self.filter(pk=pk).update(sold=F("sold") + seats) == 1


class Show(models.Model):
    title = models.CharField(max_length=100)
    sold = models.PositiveIntegerField(default=0)
    fence = models.BigIntegerField(default=0, editable=False)

    objects = ShowQuerySet.as_manager()

    def __str__(self) -> str:
        return self.title

    def get_absolute_url(self) -> str:
        return reverse("show", args=[self.pk])

    @property
    def report_lock(self) -> str:
        """The name that `tasks.build_report` locks."""
        return f"report:{self.pk}"

    @property
    def export_lock(self) -> str:
        """The name that `views.export` locks."""
        return f"export:{self.pk}"

    def last_report(self) -> "Report | None":
        return self.reports.filter(ended__isnull=False).first()


class Order(models.Model):
    show = models.ForeignKey(Show, models.CASCADE, related_name="orders")
    name = models.CharField(max_length=100)
    seats = models.PositiveSmallIntegerField(default=1)
    at = models.DateTimeField(default=timezone.now, editable=False)
    locked = models.BooleanField(default=False, editable=False)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.seats} for {self.name}"


class Report(models.Model):
    """One run of the report task. The newest one is the one with the highest fence."""

    show = models.ForeignKey(Show, models.CASCADE, related_name="reports")
    fence = models.BigIntegerField()
    began = models.DateTimeField(default=timezone.now)
    ended = models.DateTimeField(null=True)
    orders = models.PositiveIntegerField(default=0)
    seats = models.PositiveIntegerField(default=0)

    class Meta:
        ordering = ("-fence",)

    def __str__(self) -> str:
        return f"{self.show}: {self.orders} orders, {self.seats} seats"

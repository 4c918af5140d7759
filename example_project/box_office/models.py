"""The rows that the locks protect.

A lock alone cannot stop a holder that was frozen, has lost the lock and does not know it yet. So a
row that is written under a lock has a ``FenceField``: `fenced()` claims the row before it reads,
and its writes are refused once a later holder has claimed the row.
"""

from decimal import Decimal

from django.db import models
from django.db.models import F
from django.urls import reverse
from django.utils import timezone

from django_redlock.fencing import FenceField

PRICES = {"A": Decimal(32), "B": Decimal(28), "C": Decimal(24), "D": Decimal(18)}  # by row
SEATS_IN_A_ROW = 8


class ShowQuerySet(models.QuerySet["Show"]):
    def sell(self, pk: int, seats: int) -> None:
        """Count seats in one statement, which needs no lock."""
        self.filter(pk=pk).update(sold=F("sold") + seats)


class Show(models.Model):
    title = models.CharField(max_length=100)
    sold = models.PositiveIntegerField(default=0)
    fence = FenceField()

    objects = ShowQuerySet.as_manager()

    class Meta:
        ordering = ("pk",)

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

    @property
    def rehearsal_lock(self) -> str:
        """The name that `tasks.rehearse` locks."""
        return f"rehearsal:{self.pk}"

    @property
    def job_lock(self) -> str:
        """The name that `again.start_on_each_server` locks."""
        return f"job:{self.pk}"

    def add_seats(self) -> None:
        """Add the numbered seats of a new show."""
        Seat.objects.bulk_create(
            Seat(show=self, row=row, number=number, price=price)
            for row, price in PRICES.items()
            for number in range(1, SEATS_IN_A_ROW + 1)
        )

    def last_report(self) -> "Report | None":
        return self.reports.filter(ended__isnull=False).first()


class Seat(models.Model):
    """A numbered seat, which is sold once.

    Attributes:
        taken_by: the name of the customer; "" while the seat is free.
        visitor: the visitor of the site who bought it; only that visitor is told so.
        fence: the fence of the last holder of `lock` that claimed the row.
    """

    show = models.ForeignKey(Show, models.CASCADE, related_name="seats")
    row = models.CharField(max_length=2)
    number = models.PositiveSmallIntegerField()
    price = models.DecimalField(max_digits=6, decimal_places=2)
    taken_by = models.CharField(max_length=100, blank=True)
    visitor = models.CharField(max_length=32, blank=True, editable=False)
    fence = FenceField()

    class Meta:
        ordering = ("row", "number")

    def __str__(self) -> str:
        return f"{self.row}{self.number}"

    @property
    def lock(self) -> str:
        """The name that `seats.sell` locks."""
        return f"seat:{self.pk}"


class Order(models.Model):
    """An order.

    Attributes:
        locked: True if it was taken under the lock.
        click: the token of the form that it came by; a double click sends one form twice.
        visitor: the visitor of the site who sent the form; only that visitor is told of it.
    """

    show = models.ForeignKey(Show, models.CASCADE, related_name="orders")
    name = models.CharField(max_length=100)
    seats = models.PositiveSmallIntegerField(default=1)
    at = models.DateTimeField(default=timezone.now, editable=False)
    locked = models.BooleanField(default=False, editable=False)
    click = models.UUIDField(null=True, db_index=True, editable=False)
    visitor = models.CharField(max_length=32, blank=True, db_index=True, editable=False)

    class Meta:
        ordering = ("-pk",)

    def __str__(self) -> str:
        return f"{self.seats} for {self.name}"


class Refusal(models.Model):
    """A click on an order with the lock that was refused.

    Attributes:
        status: 409, an equal order was being taken or was taken already; 503, no majority.
        visitor: the visitor of the site who clicked; only that visitor is told of it.
    """

    status = models.PositiveSmallIntegerField()
    visitor = models.CharField(max_length=32, db_index=True)

    def __str__(self) -> str:
        return str(self.status)


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


class Run(models.Model):
    """One time that the body of a task began, in a child process of a Celery worker.

    Attributes:
        task: the name of the task.
        killed: when somebody asked for the death of the process; None: nobody has.
    """

    show = models.ForeignKey(Show, models.CASCADE, related_name="runs")
    task = models.CharField(max_length=100)
    task_id = models.CharField(max_length=64, db_index=True)
    pid = models.PositiveIntegerField()
    fence = models.BigIntegerField()
    began = models.DateTimeField(default=timezone.now)
    killed = models.DateTimeField(null=True)
    ended = models.DateTimeField(null=True)

    class Meta:
        ordering = ("pk",)

    def __str__(self) -> str:
        return f"process {self.pid} with fence {self.fence}"

    def late(self) -> float | None:
        """Return the seconds since the kill of the run that this one relieves; None: of none."""
        killed = Run.objects.filter(task_id=self.task_id, pk__lt=self.pk, killed__isnull=False)
        before = killed.last()
        return (self.began - before.killed).total_seconds() if before and before.killed else None

from celery import shared_task
from django.db.models import Count, Sum
from django.db.models.functions import Coalesce
from django.utils import timezone

from django_redlock import assert_locked
from django_redlock.celery.decorator import locked_task

from . import outside
from .models import Order, Report


@shared_task  # type: ignore[untyped-decorator] # Celery ships no types
@locked_task("report:{show_id}")
def build_report(show_id: int) -> int:
    """Count what was sold. Asked for again while it runs, it is skipped."""
    lease = assert_locked(f"report:{show_id}")
    report = Report.objects.create(show_id=show_id, fence=lease.fence)
    outside.compute()
    sold = Order.objects.filter(show_id=show_id).aggregate(
        orders=Count("pk"), seats=Coalesce(Sum("seats"), 0)
    )
    Report.objects.filter(pk=report.pk).update(**sold, ended=timezone.now())
    return report.pk

"""Two trials in which the same is asked for twice: by a form, and by cron on two servers."""

import subprocess
import sys
from pathlib import Path

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from django_redlock.idempotency import idempotent

from .forms import NameForm
from .models import Order, Show
from .views import LAST, visitor_of

MANAGE = Path(__file__).resolve().parents[2] / "manage.py"
SERVERS = 2
ENDED = {  # by the exit status of redlock_run
    0: "ran the job",
    69: "did nothing: too few nodes vote",
    75: "did nothing: the other one has the lock",
}


@require_safe
def again(request: HttpRequest, show_id: int) -> HttpResponse:
    return again_page(request, get_object_or_404(Show, pk=show_id))


def again_page(
    request: HttpRequest, show: Show, form: NameForm | None = None, *, status: int = 200
) -> HttpResponse:
    """Render both trials. After Back a browser must show this page as it was, with its key."""
    context = {
        "show": show,
        "form": form or NameForm(initial={"name": request.session.get("name", "")}),
        "bought": show.orders.filter(visitor=visitor_of(request), click=None)[:LAST],
        "servers": SERVERS,
        "ended": request.session.get(f"job:{show.pk}"),
    }
    return render(request, "box_office/again.html", context, status=status)


@require_POST
@idempotent
def buy(request: HttpRequest, show_id: int) -> HttpResponse:
    """Sell one ticket. The same form, sent again, gets this answer again, and buys nothing."""
    show, form = get_object_or_404(Show, pk=show_id), NameForm(request.POST)
    if not form.is_valid():
        return again_page(request, show, form, status=422)
    bought = Order.objects.create(show=show, visitor=visitor_of(request), **form.cleaned_data)
    Show.objects.sell(show.pk, bought.seats)
    return render(request, "box_office/bought.html", {"show": show, "order": bought})


@require_POST
def job(request: HttpRequest, show_id: int) -> HttpResponse:
    show = get_object_or_404(Show, pk=show_id)
    statuses = start_on_each_server(show)
    request.session[f"job:{show.pk}"] = [
        [status, ENDED.get(status, "failed")] for status in statuses
    ]
    return redirect("again", show_id)


def start_on_each_server(show: Show) -> list[int]:
    """Start one job on two servers in the same second, as cron does; return how each ended."""
    sleep = ["--", "sleep", "2"]  # the job
    command = [sys.executable, str(MANAGE), "redlock_run", show.job_lock, *sleep]
    started = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(SERVERS)]
    return [each.wait() for each in started]

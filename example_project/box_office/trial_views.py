"""The page of two trials with tasks, and its buttons.

The buttons' views run in no transaction: in one, messages would be sent after the COMMIT, and the
page could not tell yet which of them are duplicates.
"""

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_POST, require_safe

from . import trials
from .models import Show
from .tasks import REHEARSAL_TTL


@require_safe
def tasks(request: HttpRequest, show_id: int) -> HttpResponse:
    show = get_object_or_404(Show, pk=show_id)
    copies, rehearsal = trials.copies(show), trials.rehearsal(show)
    busy = any(trial and not trial.result.ready for trial in (copies, rehearsal))
    figures = {"calls": trials.CALLS, "ttl": REHEARSAL_TTL, "seconds": trials.SECONDS}
    found = {"show": show, "copies": copies, "rehearsal": rehearsal, "busy": busy}
    return render(request, "box_office/tasks.html", {**figures, **found})


@transaction.non_atomic_requests
@require_POST
def send_copies(request: HttpRequest, show_id: int) -> HttpResponse:
    show = get_object_or_404(Show, pk=show_id)
    sending = trials.send_copies(show)
    messages.success(
        request,
        f"Called {sending.calls} times: {sending.sent} sent, {sending.duplicates} duplicates.",
    )
    return redirect("tasks", show_id)


@transaction.non_atomic_requests
@require_POST
def rehearse(request: HttpRequest, show_id: int) -> HttpResponse:
    sending = trials.start_rehearsal(get_object_or_404(Show, pk=show_id))
    told = "A rehearsal was sent." if sending.sent else "A rehearsal is under way already."
    messages.success(request, told)
    return redirect("tasks", show_id)


@transaction.non_atomic_requests
@require_POST
def kill(request: HttpRequest, show_id: int) -> HttpResponse:
    """Kill the child process of the worker that runs the rehearsal; no other can be named."""
    trial = trials.rehearsal(get_object_or_404(Show, pk=show_id))
    run = trial.running if trial else None
    if run and trials.kill(run):
        messages.success(request, f"Process {run.pid} was killed.")
    else:
        messages.warning(request, "No rehearsal is running. Nothing was killed.")
    return redirect("tasks", show_id)

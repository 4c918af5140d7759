"""Trials with tasks: one is sent 20 times, one loses its process, and one its lock."""

from typing import Any

from django.contrib import messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from .models import Run, Show
from .tasks import LONG_SECONDS, REHEARSAL_SECONDS, REHEARSAL_TTL, print_posters, rehearse

CALLS = 20


@never_cache
@require_safe
def tasks(request: HttpRequest, show_id: int) -> HttpResponse:
    """Show what came of the copies that this visitor has sent, and of the last rehearsal."""
    show = get_object_or_404(Show, pk=show_id)
    copies, runs = request.session.get(f"copies:{show.pk}"), rehearsal(show)
    context = {
        "show": show,
        "calls": CALLS,
        "ttl": REHEARSAL_TTL,
        "seconds": REHEARSAL_SECONDS,
        "long": LONG_SECONDS,
        "copies": copies,
        "runs": runs,
        "last": runs.last(),
        "result": rehearse.AsyncResult(runs[0].task_id) if runs else None,
    }
    if copies:
        context["bodies"] = Run.objects.filter(task_id__in=copies["task_ids"]).count()
        context["printed"] = print_posters.AsyncResult(copies["task_ids"][0])
    return render(request, "box_office/tasks.html", context)


@require_POST
def copies(request: HttpRequest, show_id: int) -> HttpResponse:
    show = get_object_or_404(Show, pk=show_id)
    sent = request.session[f"copies:{show.pk}"] = send_copies(show)
    messages.success(
        request, f"Called {CALLS} times: {sent['sent']} sent, {sent['duplicates']} duplicates."
    )
    return redirect("tasks", show_id)


def send_copies(show: Show) -> dict[str, Any]:
    """Call `print_posters` so many times, one call after the other; return what that sent."""
    results = [print_posters.delay(show.pk) for _ in range(CALLS)]
    duplicates = sum(bool(result.duplicate) for result in results)
    ids = list(dict.fromkeys(result.id for result in results))
    return {"sent": CALLS - duplicates, "duplicates": duplicates, "task_ids": ids}


@require_POST
def start(
    request: HttpRequest, show_id: int, *, seconds: float = REHEARSAL_SECONDS
) -> HttpResponse:
    """Send a rehearsal. While one is under way, none is sent."""
    result = rehearse.delay(get_object_or_404(Show, pk=show_id).pk, seconds)
    news = "A rehearsal is under way already." if result.duplicate else "A rehearsal was sent."
    messages.success(request, news)
    return redirect("tasks", show_id)


@require_POST
def kill(request: HttpRequest, show_id: int) -> HttpResponse:
    """Let the process that runs the rehearsal kill itself; no other can be named."""
    at_work = rehearsal(get_object_or_404(Show, pk=show_id)).filter(killed=None, ended=None)
    run = at_work.last()
    if run and at_work.filter(pk=run.pk).update(killed=timezone.now()):
        messages.success(request, f"Process {run.pid} is killed.")
    else:
        messages.warning(request, "No rehearsal is running. Nothing was killed.")
    return redirect("tasks", show_id)


def rehearsal(show: Show) -> QuerySet[Run]:
    """Return the runs of the last rehearsal: one, and one more for each kill."""
    last = show.runs.filter(task=rehearse.name).last()
    return Run.objects.filter(task_id=last.task_id) if last else Run.objects.none()

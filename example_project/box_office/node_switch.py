"""The buttons that kill a node, let one hang and bring one back; without the demo there are none.

The demo has started the nodes, so it alone commands them. It listens on a Unix socket, which the
setting DEMO_SWITCH names, and writes what it does by itself into the file DEMO_TIMETABLE.
"""

import socket
from collections.abc import Callable
from contextlib import closing
from functools import wraps
from pathlib import Path
from typing import TypeAlias

from django.conf import settings
from django.contrib import messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

SECONDS = 15.0  # in which the demo answers

View: TypeAlias = Callable[[HttpRequest], HttpResponse]


def is_there() -> bool:
    return bool(_path())


def outlook() -> list[str]:
    """Return in sentences what the demo does to its nodes by itself, and when."""
    try:
        return (
            Path(getattr(settings, "DEMO_TIMETABLE", "")).read_text(encoding="utf-8").splitlines()
        )
    except OSError:  # no demo, or one that is just beginning
        return []


def in_the_demo(view: View) -> View:
    @wraps(view)
    def guarded(request: HttpRequest) -> HttpResponse:
        if not is_there():
            raise Http404
        return view(request)

    return guarded


@transaction.non_atomic_requests
@in_the_demo
@require_POST
def kill_node(request: HttpRequest) -> HttpResponse:
    return _ask(request, "kill")


@transaction.non_atomic_requests
@in_the_demo
@require_POST
def hang_node(request: HttpRequest) -> HttpResponse:
    return _ask(request, "hang")


@transaction.non_atomic_requests
@in_the_demo
@require_POST
def bring_back_node(request: HttpRequest) -> HttpResponse:
    return _ask(request, "bring back")


def _ask(request: HttpRequest, what: str) -> HttpResponse:
    """Let the demo do it, and show what it says."""
    try:
        with closing(socket.socket(socket.AF_UNIX)) as demo:
            demo.settimeout(SECONDS)
            demo.connect(_path())
            demo.sendall(f"{what}\n".encode())
            with demo.makefile(encoding="utf-8") as answer:
                said = answer.readline().strip()
    except OSError:
        said = ""
    if said:
        messages.success(request, said)
    else:
        messages.error(request, "The demo does not answer. Nothing was done.")
    return redirect("index")


def _path() -> str:
    return str(getattr(settings, "DEMO_SWITCH", ""))

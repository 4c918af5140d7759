"""The nodes as the first page shows them, and its buttons that kill one, let one hang, and so on.

The demo has started the nodes, so it alone commands them. It listens on a Unix socket, which the
setting DEMO_SWITCH names. A site that no demo has started has no such buttons.
"""

import math
from multiprocessing.connection import Client
from typing import Any

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from django_redlock import conf
from django_redlock.core.reasons import ReasonCode
from django_redlock.inspection.probe import NodeReport, NodeState
from django_redlock.inspection.survey import survey

SECONDS = 15.0  # in which the demo answers
HANGS = {ReasonCode.NO_ANSWER, ReasonCode.BACKLOG, ReasonCode.CONNECT_TIMEOUT}
GOES_ON = "Orders with the lock go on."
NOBODY = (
    "So nobody gets a lock: orders with it are refused (503), and nothing happens. Orders without "
    "it go on, unprotected."
)
SILENT = "A node that hangs keeps its connections and does not reply. No order waits for it."
WAITS = (
    "A node that is back has forgotten which locks it granted. It waits until all of them are "
    "over, and then votes again."
)


def strip() -> dict[str, Any]:
    """Return what each node does, and what that means for orders."""
    found = survey(conf.backend("default"), limit=1, patience=0)
    votes, size = found.voting, len(found.nodes)
    states = [state_of(node) for node in found.nodes]
    what = GOES_ON if votes >= found.majority else NOBODY
    meaning = [f"{votes} of {size} nodes vote; a majority is {found.majority}. {what}"]
    if ("down", "hangs") in states:
        meaning.append(SILENT)
    if any(node.guard_left for node in found.nodes):
        meaning.append(WAITS)
    try:
        outlook = ask("outlook") if switch() else ""
    except (OSError, EOFError):  # the demo is just ending
        outlook = ""
    return {"nodes": states, "meaning": meaning, "outlook": outlook, "buttons": bool(switch())}


def state_of(node: NodeReport) -> tuple[str, str]:
    """Return the class of a node in the style sheet, and its state in words."""
    match node.state:
        case NodeState.UP:
            return "votes", "votes"
        case NodeState.DOWN:
            return "down", "hangs" if node.code in HANGS else "down"
    left = math.ceil(node.guard_left or 0)
    return "waits", f"waits {left} s" if left else "has no vote"


@require_POST
def command(request: HttpRequest, what: str) -> HttpResponse:
    """Let the demo kill a node, for example, and show what it says."""
    if not switch():
        raise Http404
    try:
        messages.success(request, ask(what))
    except (OSError, EOFError):
        messages.error(request, "The demo does not answer. Nothing was done.")
    return redirect("index")


def ask(what: str) -> str:
    with Client(switch()) as demo:
        demo.send(what)
        if not demo.poll(SECONDS):
            raise TimeoutError
        return str(demo.recv())


def switch() -> str:
    return str(getattr(settings, "DEMO_SWITCH", ""))

"""The code behind the buttons of a page, as it stands in its file."""

import inspect
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

from django import template
from django.utils.module_loading import import_string

DOCS = "https://django-redlock.readthedocs.io/en/latest/"
ROOT = Path(__file__).resolve().parents[3]
# By what a page calls a button: its label, the page of the documentation, and what it does.
BUTTONS = {
    "order": (
        "Order with the lock",
        "how-to/views",
        "box_office.views.order box_office.views.sell",
    ),
    "order_unlocked": (
        "Order without the lock",
        "how-to/which-lock",
        "box_office.views.order_unlocked",
    ),
    "report": (
        "Build the report",
        "how-to/celery",
        "box_office.views.report box_office.tasks.build_report",
    ),
    "export": (
        "Export the orders",
        "how-to/views",
        "box_office.views.export box_office.views.lines_of",
    ),
    "seat": ("A seat", "how-to/fencing", "box_office.seats.sell"),
    "copies": (
        "Send it 20 times",
        "how-to/celery",
        "box_office.trials.send_copies box_office.tasks.print_posters",
    ),
    "rehearsal": (
        "Start a rehearsal, kill its process, or take its lock away",
        "how-to/celery",
        "box_office.tasks.rehearse box_office.trials.kill",
    ),
    "buy": ("Buy a ticket", "how-to/idempotency", "box_office.again.buy"),
    "job": (
        "Start it on 2 servers",
        "how-to/one-server",
        "box_office.again.start_on_each_server",
    ),
    "nodes": (
        "Kill a node, hang one, bring one back",
        "how-to/deployment",
        "demo.timetable.kill demo.timetable.hang demo.timetable.bring_back",
    ),
}

register = template.Library()


@cache
def _shown(name: str) -> dict[str, Any]:
    label, page, does = BUTTONS[name]
    parts = []
    for each in does.split():
        found = import_string(f"example_project.{each}")
        function = inspect.unwrap(getattr(found, "run", found))  # of a task, its body
        lines, line = inspect.getsourcelines(function)
        file = Path(inspect.getfile(function)).resolve().relative_to(ROOT).as_posix()
        text = textwrap.dedent("".join(lines)).rstrip()
        parts.append({"file": file, "line": line, "text": text})
    return {"label": label, "parts": parts, "docs": f"{DOCS}{page}.html"}


@register.inclusion_tag("box_office/_code.html")
def code(*names: str) -> dict[str, Any]:
    """Show the code behind the buttons with these names."""
    return {"buttons": [_shown(name) for name in names]}

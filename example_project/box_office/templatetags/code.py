"""The code behind the buttons of a page, as it stands in its file."""

import inspect
import textwrap
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from django import template

DOCS = "https://django-redlock.readthedocs.io/en/latest/"
ROOT = Path(__file__).resolve().parents[3]

register = template.Library()


class Button(NamedTuple):
    """A button, what it does, and the page of the documentation about that."""

    label: str
    does: tuple[Callable[..., Any], ...]
    page: str


class Part(NamedTuple):
    """Lines of a file."""

    file: str
    line: int
    text: str


def _buttons() -> dict[str, Button]:
    # The views render the templates, and Django loads this module with the templates.
    from example_project.box_office import control, seat_views, tasks, trials, views

    return {
        "order": Button(
            "Order with the lock", (views.order, views.is_ordered, views.sell), "how-to/views"
        ),
        "order_unlocked": Button(
            "Order without the lock", (views.order_unlocked, views.sell), "how-to/which-lock"
        ),
        "report": Button(
            "Build the report", (views.report, tasks.build_report.run), "how-to/celery"
        ),
        "export": Button("Export the orders", (views.export, views.lines_of), "how-to/views"),
        "seat": Button("A seat", (seat_views.take, seat_views.sell), "how-to/fencing"),
        "copies": Button(
            "Send it 20 times", (trials.send_copies, tasks.print_posters.run), "how-to/celery"
        ),
        "rehearsal": Button(
            "Start a rehearsal", (trials.start_rehearsal, tasks.rehearse.run), "how-to/celery"
        ),
        "kill": Button(
            "Kill its process", (trials.kill, control.kill_run), "reference/celery-failures"
        ),
    }


def _buttons_of_the_demo() -> dict[str, Button]:
    # The demo carries these out itself, see `node_switch`.
    from example_project.demo.timetable import Timetable

    guard, nodes = "explanation/how-it-works", "how-to/deployment"
    return {
        "kill_node": Button("Kill a node", (Timetable.kill_one,), nodes),
        "hang_node": Button("Hang a node", (Timetable.hang_one,), nodes),
        "bring_back_node": Button("Bring one back", (Timetable.bring_one_back,), guard),
    }


def parts(button: Button) -> Iterator[Part]:
    """Read the lines of what a button does, with their decorators, from their files."""
    for each in button.does:
        function = inspect.unwrap(each)
        lines, first = inspect.getsourcelines(function)
        file = Path(inspect.getfile(function)).resolve().relative_to(ROOT)
        yield Part(file.as_posix(), first, textwrap.dedent("".join(lines)).rstrip())


@cache
def _shown(name: str) -> dict[str, Any]:
    button = (_buttons_of_the_demo if name.endswith("_node") else _buttons)()[name]
    return {
        "label": button.label,
        "parts": list(parts(button)),
        "docs": f"{DOCS}{button.page}.html",
    }


@register.inclusion_tag("box_office/_code.html")
def code(*names: str) -> dict[str, Any]:
    """Show the code behind the buttons with these names."""
    return {"buttons": [_shown(name) for name in names]}

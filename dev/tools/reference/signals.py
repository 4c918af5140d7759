"""The tables of signals and of their arguments."""

from __future__ import annotations

from django_redlock import events, signals
from django_redlock.signals import RobustSignal

from . import markdown
from .markdown import code, noted

# Of a signal's arguments: the fields of its event, but for these.
NOT_SENT = frozenset({"kind", "outcome", "votes"})
EVENTS = {"lock": events.Event._fields, "task": events.TaskEvent._fields}
FIRST = ("alias", "name", "template")  # of both


def names(of: str) -> list[str]:
    """Return the signals of locks or of tasks, in the order of the code."""
    found = [name for name, each in vars(signals).items() if isinstance(each, RobustSignal)]
    return [name for name in found if name.startswith("task_") == (of == "task")]


def table(of: str) -> str:
    """Return the table of the signals of locks or of tasks."""
    sent = noted([*names("lock"), *names("task")], "signals")
    return markdown.table(("Signal", "Sent when"), ((code(name), sent[name]) for name in names(of)))


def arguments(of: str) -> str:
    """Return the table of the arguments of the signals of locks or of tasks."""
    fields = [each for each in EVENTS[of] if each not in NOT_SENT]
    ordered = sorted(fields, key=lambda each: FIRST.index(each) if each in FIRST else len(FIRST))
    about = noted(ordered, "arguments", of)
    return markdown.table(
        ("Argument", "What it is"), ((code(name), about[name]) for name in ordered)
    )

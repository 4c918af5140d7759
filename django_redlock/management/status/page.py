"""What is told of one alias: sentences and tables, each text with its colour, for any printer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from django_redlock.core.reasons import describe
from django_redlock.inspection.results import Health, HeldLock, LockStatus, NodeState, Survey, age
from django_redlock.inspection.task_list import Task, TaskState

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .wanted import Wanted

EXIT: Final = {Health.OK: 0, Health.DEGRADED: 3, Health.NO_MAJORITY: 4, Health.NOT_YET: 5}
NOTHING: Final = "-"
COLOURS: Final = {
    Health.OK: "green",
    Health.DEGRADED: "yellow",
    Health.NOT_YET: "yellow",
    Health.NO_MAJORITY: "red",
    LockStatus.HELD: "green",
    LockStatus.PARTIAL: "yellow",
    LockStatus.SPLIT: "yellow",
    LockStatus.UNCLEAR: "red",
    TaskState.RUNNING: "green",
    NodeState.UP: "green",
    NodeState.NO_VOTE: "yellow",
    NodeState.DOWN: "red",
}
FOLDED: Final = (0, 1)  # the columns of a table whose texts may be long, unless it says others


class Span(NamedTuple):
    """A text and how it looks: a colour, "bold", "dim" or ""."""

    text: str
    style: str = ""


class Table(NamedTuple):
    """Rows under their heads; the texts of the columns that are ``folded`` may be long."""

    heads: tuple[str, ...]
    rows: list[list[Span]]
    folded: tuple[int, ...] = FOLDED


Paragraph: TypeAlias = tuple[Span, ...]  # an empty one separates


def worst(surveys: Sequence[Survey]) -> Health:
    """The health of the alias that is worst off."""
    return Health.worst(each.health for each in surveys)


def page(found: Survey, wanted: Wanted) -> Iterator[Paragraph | Table]:
    """The sentence, the nodes and the locks of one alias."""
    yield Span(f"{found.alias}: ", "bold"), Span(describe(found.summary), COLOURS[found.health])
    yield ()
    yield Table(
        ("node", "state", "version", "uptime", "role", "round trip", "guard"),
        [_node_row(found, i) for i in range(len(found.nodes))],
    )
    for advice in found.advice:
        yield (Span(describe(advice), "dim"),)
    yield ()
    if found.locks:
        yield Table(
            ("lock", "holder", "on", "seconds left", "is"),
            [_lock_row(lock) for lock in found.locks],
        )
    if found.complete:
        for sentence in wanted.unmet(found):
            yield (Span(sentence),)
    elif not found.locks:
        yield (Span("Too few nodes answered to know what is held."),)
    for sentence in _left_out(found, wanted):
        yield (Span(sentence, "yellow"),)
    yield from _tasks(found, wanted)


def _tasks(found: Survey, wanted: Wanted) -> Iterator[Paragraph | Table]:
    """The tasks, if there are any; most deployments have none."""
    tasks = found.tasks
    if tasks.tasks:
        yield ()
        heads = ("task", "locks", "id", "on", "seconds left", "is")
        yield Table(heads, [_task_row(task) for task in tasks.tasks])
    elif wanted.finished and found.complete:
        yield (Span("No such task is queued or running, or has finished."),)
    if tasks.beyond:
        yield (Span(f"{tasks.beyond} more tasks; --limit shows more.", "yellow"),)
    if tasks.truncated:
        told = "More names are kept than were looked at: there may be more tasks."
        yield (Span(told, "yellow"),)


def _node_row(found: Survey, i: int) -> list[Span]:
    node, state = found.nodes[i], found.state(i)
    why = describe(found.reason(i), brief=True)
    risky = state is NodeState.UP and found.warning(i)
    round_trip = NOTHING if node.round_trip is None else f"{node.round_trip * 1000:.2f} ms"
    return [
        Span(node.label),
        Span(f"{state}: {why}" if why else state, "yellow" if risky else COLOURS[state]),
        Span(node.software or NOTHING),
        Span(NOTHING if node.uptime is None else age(node.uptime)),
        Span(node.role or NOTHING),
        Span(round_trip),
        Span(f"{node.guard_left:.0f} s" if node.guard_left else NOTHING),
    ]


def _lock_row(lock: HeldLock) -> list[Span]:
    return [
        Span(lock.name),
        Span(_holders(lock)),
        Span(f"{lock.on} of {lock.of}"),
        Span(_left(lock)),
        Span(lock.kind, COLOURS.get(lock.kind, "")),
    ]


def _task_row(task: Task) -> list[Span]:
    return [
        Span(task.task),
        Span(", ".join(task.names) or NOTHING),
        Span(task.task_id),
        Span(f"{task.on} of {task.of}"),
        Span(_left(task)),
        Span(task.state, COLOURS.get(task.state, "")),
    ]


def _left_out(found: Survey, wanted: Wanted) -> Iterator[str]:
    """What is not shown of what is held."""
    if found.beyond:
        yield f"{found.beyond} more match; --limit shows more."
    elif found.truncated and not wanted.patterns:
        yield f"More locks are held than these {len(found.locks)}; --limit shows more."
    if found.unsearched:
        yield "More names are held than were looked at: others may match, too."


def _holders(lock: HeldLock) -> str:
    """Who holds the name; where nobody does, everybody who left a key, and on how many nodes."""
    if not lock.on:
        return NOTHING
    unknown = "another client"
    if len(lock.owners) == 1 or lock.kind in {LockStatus.HELD, LockStatus.RESTING}:
        return lock.holder or unknown
    return ", ".join(f"{each.label or unknown} on {each.on}" for each in lock.owners)


def _left(lock: HeldLock | Task) -> str:
    if not lock.on:
        return NOTHING
    if lock.lowest is None:
        return "never expires"
    if lock.highest is None:
        return f"{lock.lowest:.1f} to never"
    low, high = f"{lock.lowest:.1f}", f"{lock.highest:.1f}"
    return low if low == high else f"{low} to {high}"

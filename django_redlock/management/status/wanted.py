"""Which locks and tasks ``redlock_status`` is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from django_redlock.inspection import patterns
from django_redlock.inspection.survey import survey
from django_redlock.inspection.tasks import list_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from django_redlock.backend import Backend
    from django_redlock.inspection.results import Survey
    from django_redlock.inspection.task_list import Task


class Wanted:
    """What the arguments ask for: names, and held locks whose names match a pattern.

    A pattern is looked up as a name, too, and shown if that is taken: the lock may be
    another client's, which is in no index. A task is shown if its name, its id or a name that it
    locks is asked for.

    Args:
        finished: whether finished tasks are asked for as well.
    """

    def __init__(self, arguments: Sequence[str], *, finished: bool = False) -> None:
        self.finished = finished
        self.arguments = [patterns.parse(text) for text in arguments]
        self.patterns = [each for each in self.arguments if each.is_pattern]

    def survey(self, backend: Backend, limit: int) -> Survey:
        """Ask the nodes of an alias.

        Raises:
            ValueError: what cannot be a lock's name, or a limit not from 1 to 10,000.
        """
        names = [each.name for each in self.arguments]
        matching = self._matches if self.patterns else None
        found = survey(backend, names, limit=limit, matching=matching, memory=True)
        matching_task = self._matches_task if self.arguments else None
        tasks = list_tasks(
            backend, found.places, finished=self.finished, limit=limit, matching=matching_task
        )
        shown_free = {each.name for each in self.arguments if not each.is_pattern}
        shown_free -= {text for task in tasks.tasks for text in (task.task, task.task_id)}
        locks = [lock for lock in found.locks if lock.on or lock.name in shown_free]
        return replace(found, locks=tuple(locks), tasks=tasks)

    def _matches_task(self, task: Task) -> bool:
        texts = task.task, task.task_id, *task.names
        return any(each.matches(text) for each in self.arguments for text in texts)

    def _matches(self, name: str) -> bool:
        return any(each.matches(name) for each in self.patterns)

    def unmet(self, found: Survey) -> Iterator[str]:
        """What was asked for and is not held, as far as that is known; a free name has a row."""
        if not (self.arguments or found.locks):
            yield "No lock is held."
        names = [lock.name for lock in found.locks]
        for each in self.patterns if not found.truncated else ():
            if each.name not in names and not any(map(each.matches, names)):
                yield f"No held lock matches '{each.name}'."

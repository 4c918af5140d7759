"""Act 5, and what people do on the pages with tasks: one is sent 20 times, one is killed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from example_project.box_office.models import Run
    from example_project.box_office.trials import Trial

TITLE = "Act 5: tasks"
SUBTITLE = "one is sent 20 times; the process of another is killed in the middle"
SECONDS = 2.0  # of a rehearsal
KILL_AFTER = 0.5
WAIT_SECONDS = 30.0


class Outcome(NamedTuple):
    copies: Trial
    rehearsal: Trial


def play(show_id: int, tell: Callable[[str], None]) -> Outcome:
    """Send a task 20 times, kill the process of another, and wait until both have ended."""
    from example_project.box_office import trials
    from example_project.box_office.models import Show

    show, news = Show.objects.get(pk=show_id), News()
    trials.send_copies(show)
    trials.start_rehearsal(show, SECONDS)
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        copies, rehearsal = trials.copies(show), trials.rehearsal(show)
        assert copies is not None
        assert rehearsal is not None
        for text in news.read():
            tell(text)
        over = copies.result.ready and rehearsal.result.ready
        if over or time.monotonic() > deadline:
            return Outcome(copies, rehearsal)
        run = rehearsal.running
        if run and len(rehearsal.runs) == 1:
            time.sleep(KILL_AFTER)
            trials.kill(run)
        time.sleep(0.1)


class News:
    """What was sent, killed and taken over since the last look, by the database."""

    def __init__(self) -> None:
        self._sending = 0
        self._told: set[tuple[str, int]] = set()

    def read(self) -> Iterator[str]:
        from example_project.box_office.models import Run, Sending
        from example_project.box_office.tasks import REHEARSAL_TTL

        for each in Sending.objects.filter(pk__gt=self._sending, calls__gt=1).order_by("pk"):
            self._sending = each.pk
            yield (
                f"a task is called {each.calls} times: {each.sent} sent, "
                f"{each.duplicates} duplicates"
            )
        for killed in Run.objects.filter(killed__isnull=False):
            if self._is_new("killed", killed):
                yield f"process {killed.pid} of the worker is killed (SIGKILL) in its task"
            after = Run.objects.filter(task_id=killed.task_id, pk__gt=killed.pk).first()
            if after and killed.killed and self._is_new("taken over", after):
                late = (after.began - killed.killed).total_seconds()
                yield (
                    f"process {after.pid} takes the task over after {late:.1f} s "
                    f"(ttl {REHEARSAL_TTL:g} s)"
                )

    def _is_new(self, what: str, run: Run) -> bool:
        new = (what, run.pk) not in self._told
        self._told.add((what, run.pk))
        return new


def rows(outcome: Outcome) -> list[tuple[str, str]]:
    """Return the figures of the act."""
    sending, take_overs = outcome.copies.sending, outcome.rehearsal.take_overs()
    return [
        ("calls of one task", str(sending.calls)),
        ("messages sent for them", str(sending.sent)),
        ("duplicates, told of the first", str(sending.duplicates)),
        ("bodies run for them", str(len(outcome.copies.runs))),
        ("runs of a task that is killed once", str(len(outcome.rehearsal.runs))),
        ("seconds from kill to take-over", ", ".join(f"{each:.1f}" for each in take_overs)),
    ]


def failures(outcome: Outcome) -> Iterator[str]:
    """Yield what did not hold; nothing if all did."""
    copies, rehearsal = outcome
    sending = copies.sending
    if (sending.sent, sending.duplicates, len(sending.task_ids)) != (1, sending.calls - 1, 1):
        yield f"{sending.calls} calls: {sending.sent} sent, {sending.duplicates} duplicates"
    if len(copies.runs) != 1:
        yield f"a task that was sent {sending.calls} times ran {len(copies.runs)} times"
    for trial in outcome:
        if trial.result.state != "SUCCESS":
            yield f"the result of a task is {trial.result.state} {trial.result.value}"
    for before, after in pairwise(rehearsal.runs):
        if before.pid == after.pid or before.fence >= after.fence:
            yield f"{after} took over from {before}"
    # After how many seconds is a figure: a busy machine takes a while to begin.
    if len(rehearsal.take_overs()) != 1:
        yield f"a killed process's task was taken over {len(rehearsal.take_overs())} times"

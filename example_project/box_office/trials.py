"""Two trials with tasks: one is sent 20 times, and the process of one is killed.

Call these outside of a transaction: in one, messages are sent after the COMMIT.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from celery import states
from celery.signals import after_task_publish

from example_project.celery import app

from .models import Run, Sending, Show
from .tasks import print_posters, rehearse

CALLS = 20
SECONDS = 8.0  # of a rehearsal that a visitor starts: time to kill its process
CONTROL_SECONDS = 3.0


class Result(NamedTuple):
    """What the result backend has; `value` is the result or the error, as text."""

    state: str
    value: str

    @property
    def ready(self) -> bool:
        return self.state in states.READY_STATES


class Moment(NamedTuple):
    """One line of the timeline; `late` is the time between a kill and a take-over."""

    at: datetime
    text: str
    late: timedelta | None = None

    @property
    def seconds(self) -> float | None:
        return None if self.late is None else self.late.total_seconds()


class Trial(NamedTuple):
    """A sending and what came of it so far."""

    sending: Sending
    runs: list[Run]
    result: Result

    @property
    def task_id(self) -> str:
        return str(self.sending.task_ids[0])

    @property
    def running(self) -> Run | None:
        """The run that is at work, as far as anybody knows."""
        last = self.runs[-1] if self.runs else None
        return last if last and not (last.ended or last.killed or self.result.ready) else None

    @property
    def killed(self) -> bool:
        """Whether the process of the last run was killed, and no other has begun."""
        return bool(self.runs and self.runs[-1].killed)

    def take_overs(self) -> list[float]:
        """Return the seconds between each kill and the next run."""
        return [moment.seconds for moment in self.timeline() if moment.seconds is not None]

    def timeline(self) -> list[Moment]:
        """Return what happened, in order."""
        told = [Moment(self.sending.at, f"sent as {self.task_id}")]
        killed: datetime | None = None
        for run in self.runs:
            late = run.began - killed if killed else None
            text = f"started in process {run.pid} with fence {run.fence}"
            told.append(Moment(run.began, text, late))
            killed = run.killed
            if run.killed:
                told.append(Moment(run.killed, f"process {run.pid} was killed (SIGKILL)"))
            if run.ended:
                told.append(Moment(run.ended, f"done in process {run.pid}"))
        return told


def send_copies(show: Show, calls: int = CALLS) -> Sending:
    """Call `print_posters` so many times, one call after the other."""
    return _send(show, print_posters, calls)


def start_rehearsal(show: Show, seconds: float = SECONDS) -> Sending:
    """Send a rehearsal that takes so long. While one is under way, none is sent."""
    return _send(show, rehearse, 1, seconds)


def copies(show: Show) -> Trial | None:
    """Return the last trial of a task that is sent many times."""
    return _trial(print_posters, show.sendings.filter(task=print_posters.name).first())


def rehearsal(show: Show) -> Trial | None:
    """Return the trial of the last rehearsal that was sent."""
    return _trial(rehearse, show.sendings.filter(task=rehearse.name, sent__gt=0).first())


def _trial(task: Any, sending: Sending | None) -> Trial | None:
    if sending is None:
        return None
    told = task.AsyncResult(sending.task_ids[0])
    state = told.state  # first: once it is final, all of the rest is there
    result = Result(state, str(told.result) if told.result else "")
    return Trial(sending, list(Run.objects.filter(task_id__in=sending.task_ids)), result)


def kill(run: Run) -> bool:
    """Let the worker kill the process of a run; return False if that had ended already."""
    replies = app.control.broadcast(
        "kill_run",
        {"task_id": run.task_id, "pid": run.pid},
        destination=[run.worker],
        reply=True,
        timeout=CONTROL_SECONDS,
    )
    for reply in replies or []:
        at = reply[run.worker].get("killed")
        if at is not None:
            run.killed = datetime.fromtimestamp(at, UTC)
            run.save(update_fields=["killed"])
            return True
    return False


def _send(show: Show, task: Any, calls: int, *more: object) -> Sending:
    sending = Sending(show=show, task=task.name, calls=calls)
    with _published(task.name) as sent:
        results = [task.delay(show.pk, *more) for _ in range(calls)]
    sending.sent = len(sent)
    sending.duplicates = sum(bool(result.duplicate) for result in results)
    sending.task_ids = list(dict.fromkeys(result.id for result in results))
    sending.save()
    return sending


@contextmanager
def _published(name: str) -> Iterator[list[str]]:
    """Note the ids of the messages that this thread gives to the broker."""
    ids: list[str] = []
    me = threading.get_ident()

    def note(sender: str, headers: dict[str, Any], **_: object) -> None:
        if (sender, threading.get_ident()) == (name, me):
            ids.append(headers["id"])

    after_task_publish.connect(note, weak=False)
    try:
        yield ids
    finally:
        after_task_publish.disconnect(note)

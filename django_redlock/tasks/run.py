"""The run of Django's tasks: which message it is, how it comes back, and when it has ended.

``work.run`` decides. ``django.tasks`` has no headers and no retry: a message is a row or an entry
of the backend, known by the id of its ``TaskResult``. So:

* The number of a message, by which its copies are known, is that id.
* A worker calls a function that is not told which message it runs. ``task_started`` tells this
  module, in the thread or the context in which the function is called; ``task_finished`` comes when
  the result is stored, and ends the run. Where no such signal came, the keyword argument below
  tells it, if there is one; such a run has no run name, for nobody says when it has ended.
* A message comes back later by another one, which has a keyword argument more, that the run takes
  out: ``{"message": number, "deferred": times, "again": bool}``. The number is that of the first,
  and ``again`` says that an earlier run of the message was met.
* Whatever a function returns replaces the result that is stored. So a copy of what has finished
  returns what is stored already.
* A failed task leaves no completion record: who wants it to run again enqueues the same id.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from django.tasks import Task, TaskResult, TaskResultStatus
from django.utils import timezone

from django_redlock import conf
from django_redlock.core.errors import LockTaken
from django_redlock.events import TaskOutcome
from django_redlock.work.backoff import pause
from django_redlock.work.marks import mark_of
from django_redlock.work.plan import OF_DJANGO, Plan, djangos_task, plan_of, wrong_decorator
from django_redlock.work.run import Refusal, Run, Skipped, count

from .backport import CONTEXTS, IMMEDIATE, NOT_THERE, either

if TYPE_CHECKING:  # they are generic only there
    AnyTask: TypeAlias = Task[..., Any]
    AnyResult: TypeAlias = TaskResult[..., Any]
else:
    AnyTask, AnyResult = Task, TaskResult
KEYWORD: Final = "redlock_message"  # of a message that stands for another one
NUMBER: Final = "message"
USING: Final = "using"  # how the first one was enqueued, where no signal tells it
MOST_UNCALLED: Final = 8
REDELIVERED_FOR: Final = 3600.0  # seconds in which a queue may deliver a message again
sent_again: ContextVar[Mapping[str, Any] | None] = ContextVar("redlock_sent_again", default=None)


class Deferred(dict[str, Any]):
    """The result of a task that comes back later as another one; plain data, as JSON has it.

    ``{"deferred": True, "reason": "…", "seconds": until it may run, "id": of its TaskResult}``
    """

    def __init__(self, reason: str, seconds: float, task_id: str) -> None:
        super().__init__(deferred=True, reason=reason, seconds=round(seconds, 3), id=task_id)


# -- which message runs ---------------------------------------------------------------------------


class Started:
    """A message of a locked task whose run a worker has begun.

    Attributes:
        result: its ``TaskResult``.
        run: its run, as soon as its function was called.
    """

    def __init__(self, result: AnyResult) -> None:
        self.result = result
        self.run: DjangoTaskRun | None = None


_started: ContextVar[tuple[Started, ...]] = ContextVar("redlock_started", default=())


def _on_started(task_result: AnyResult, **_: object) -> None:
    """Note the message; of those whose functions were not called here, the last few stay.

    Some workers send the signal in one thread, and call the function in another.
    """
    if plan_of(task_result.task.func) is not None:
        stack = _started.get()
        uncalled = [each for each in stack if each.run is None]
        gone = uncalled[: -(MOST_UNCALLED - 1)]
        _started.set((*(each for each in stack if each not in gone), Started(task_result)))


def _on_finished(task_result: AnyResult, **_: object) -> None:
    """End the run of a message whose result is stored, and of those that nobody has ended."""
    stack = _started.get()
    ids = [each.result.id for each in stack]
    if task_result.id not in ids:
        return
    last = len(ids) - 1 - ids[::-1].index(task_result.id)
    _started.set(stack[:last])
    for index, each in enumerate(stack[last:]):
        if each.run is not None:
            stored = not index and task_result.status == TaskResultStatus.SUCCESSFUL
            each.run.end(is_stored=stored)


for _signal in either("signals.task_started"):
    _signal.connect(_on_started, dispatch_uid="redlock")
for _signal in either("signals.task_finished"):
    _signal.connect(_on_finished, dispatch_uid="redlock")


def _started_of(function: Callable[..., Any]) -> Started | None:
    """Return the message whose body this call is; None: the function was called directly."""
    for each in _started.get()[-1:]:
        is_body = inspect.unwrap(each.result.task.func) is inspect.unwrap(function)
        if is_body and each.run is None:  # else the body calls itself
            return each
    return None


def _refuse_celerys(function: Callable[..., Any]) -> None:
    """Raise TypeError if this call is the run of a Celery task, and of no task of Django."""
    celery = sys.modules.get("celery._state")  # this module needs no Celery
    task = None if celery is None else celery.get_current_task()
    if task is None or djangos_task(function):
        return
    if inspect.unwrap(task.run) is inspect.unwrap(function):
        raise TypeError(wrong_decorator(task.name, OF_DJANGO))


# -- the run of a message -------------------------------------------------------------------------


class DjangoTaskRun(Run):
    """A call of a locked function, and the message whose run it is, if it is one.

    Args:
        args, kwargs: of the call; the keyword argument of this package is taken out of them.

    Attributes:
        task: the task; None: the function was called directly.
    """

    def __init__(
        self,
        plan: Plan,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        _refuse_celerys(function)
        header, started = kwargs.pop(KEYWORD, None), _started_of(function)
        self._header: Mapping[str, Any] = header if isinstance(header, Mapping) else {}
        self._result = result = None if started is None else started.result
        self.task: AnyTask | None = None if result is None else result.task
        number = self._header.get(NUMBER)
        if not (isinstance(number, str) and number):
            number = None if result is None else result.id
        elif result is None and (found := djangos_task(function)) is not None:
            self.task = found.using(**self._header.get(USING, {}))
        immediate = self.task is not None and isinstance(self.task.get_backend(), IMMEDIATE)
        has_message = self.task is not None and not immediate
        super().__init__(
            plan,
            name="" if self.task is None else self.task.module_path,
            task_id=number,
            number=number if has_message and result is not None else None,
            args=args,
            kwargs=kwargs,
            owned=bool(args) and isinstance(args[0], CONTEXTS),
            has_message=has_message,
            is_copy=bool(self._header.get("again")) or (result is not None and result.attempts > 1),
        )
        if started is not None:
            started.run = self

    def prepare(self) -> None:
        """Make the lock of the key, and find by it the mark that the message may have."""
        super().prepare()
        if self.plan.marks and self.has_message and self.task_id is not None:
            self.mark = mark_of(conf.backend(self.lock.alias).policy, self.name, self.lock)
            self.mark_id = self.task_id

    def redelivered_for(self) -> float:
        """Return the seconds in which a copy may be delivered."""
        return REDELIVERED_FOR

    @property
    def can_come_back(self) -> bool:
        """Whether the backend can put a task off."""
        return self.task is not None and self.task.get_backend().supports_defer

    def come_back(self, refusal: Refusal, *, is_own: bool, again: bool) -> Deferred:  # noqa: ARG002
        """Enqueue this message again for later, as another one that stands for it."""
        assert self.task is not None
        times = count(self._header.get("deferred"))
        seconds = pause(times, for_slot=self.waits_for_slot(refusal))
        header = {**self._header, NUMBER: self.task_id, "deferred": times + 1, "again": again}
        later = self.task.using(run_after=timezone.now() + timedelta(seconds=seconds))
        token = sent_again.set(header)
        try:
            args = self.args[1:] if self.owned else self.args
            sent = later.enqueue(*args, **self.kwargs, **{KEYWORD: header})
        finally:
            sent_again.reset(token)
        self.mark = None  # the one that was sent has it
        self.notify(TaskOutcome.DEFERRED, seconds=seconds, error=refusal)
        held = isinstance(refusal, LockTaken)
        reason = "the key is held" if held else "no majority of the nodes could be asked"
        return Deferred(reason, seconds, sent.id)

    def finished(self) -> Any:
        """Return what a copy of a finished message returns: the result that is stored already."""
        result = self._result
        if result is not None and result.task.get_backend().supports_get_result:
            with suppress(*NOT_THERE):  # the first run may have stored it since
                result = result.task.get_backend().get_result(result.id)
        # The property raises while the task is running, and it is: this is its copy.
        stored = getattr(result, "_return_value", None)
        if stored is None and self._header:  # perhaps another one has done its work
            return Skipped("an earlier run of this task has finished")
        return stored

"""``locked_task``: run the body of one of Django's tasks once at a time, for each key.

    @task
    @locked_task("report:{report_id}", ttl=30)
    def build(report_id): ...

``django.tasks`` has no headers and no retry: a message is a row or an entry of the backend, known
by the id of its ``TaskResult``. So:

* The number of a message, by which its copies are known, is that id: ``work.redelivery``.
* A worker calls a function that is not told which message it runs. ``task_started`` tells this
  module, in the thread or the context in which the function is called; ``task_finished`` comes when
  the result is stored, and ends the run. Where no such signal came, the keyword argument below
  tells it, if there is one; such a run has no run name, for nobody says when it has ended.
* A message comes back later by another one, which has a keyword argument more, that the wrapper
  takes out: ``{"message": number, "deferred": times, "again": bool}``. The number is that of the
  first, and ``again`` says that an earlier run of the message was met.
* Whatever a function returns replaces the result that is stored. So a copy of what has finished
  returns what is stored already.
* A failed task leaves no completion record: who wants it to run again enqueues the same id.
"""

from __future__ import annotations

import functools
import inspect
import logging
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, Never, Protocol, TypeAlias, TypeVar, overload

from asgiref.sync import sync_to_async
from django.tasks import Task, TaskResult, TaskResultStatus
from django.utils import timezone

from django_redlock import conf, redlock
from django_redlock.core import completion
from django_redlock.core.errors import LockTaken, NodesUnavailable
from django_redlock.events import TaskOutcome
from django_redlock.locks.advice import unknown_keywords
from django_redlock.locks.callables import finished, is_async
from django_redlock.locks.lock import Lock
from django_redlock.locks.once import OnceLock, OnceRun
from django_redlock.locks.template import LockTemplate
from django_redlock.work import redelivery as core
from django_redlock.work.backoff import pause
from django_redlock.work.marks import Mark
from django_redlock.work.plan import (
    OF_DJANGO,
    Mode,
    OnConflict,
    OnDuplicate,
    OnUnavailable,
    Plan,
    djangos_task,
    plan_of,
    wrong_decorator,
)
from django_redlock.work.redelivery import Fate, Refusal, Skipped, count

from .backport import CONTEXTS, IMMEDIATE, NOT_THERE, either, function_of

if TYPE_CHECKING:
    from django_redlock.leases.lease import Lease

    # They are generic only there.
    AnyTask: TypeAlias = Task[..., Any]
    AnyResult: TypeAlias = TaskResult[..., Any]
else:
    AnyTask, AnyResult = Task, TaskResult
F = TypeVar("F", bound=Callable[..., Any])
logger = logging.getLogger("django_redlock")
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
        delivery: its run, as soon as its function was called.
    """

    def __init__(self, result: AnyResult) -> None:
        self.result = result
        self.delivery: Delivery | None = None


_started: ContextVar[tuple[Started, ...]] = ContextVar("redlock_started", default=())


def _on_started(task_result: AnyResult, **_: object) -> None:
    """Note the message; of those whose functions were not called here, the last few stay.

    Some workers send the signal in one thread, and call the function in another.
    """
    if plan_of(task_result.task.func) is not None:
        stack = _started.get()
        uncalled = [each for each in stack if each.delivery is None]
        gone = uncalled[: -(MOST_UNCALLED - 1)]
        _started.set((*(each for each in stack if each not in gone), Started(task_result)))


def _on_finished(task_result: AnyResult, **_: object) -> None:
    """End the run of a message whose result is stored, and of those that nobody has ended."""
    stack = _started.get()
    ids = [each.result.id for each in stack]
    if task_result.id not in ids:
        return
    place = len(ids) - 1 - ids[::-1].index(task_result.id)
    _started.set(stack[:place])
    for index, each in enumerate(stack[place:]):
        if each.delivery is not None:
            stored = not index and task_result.status == TaskResultStatus.SUCCESSFUL
            each.delivery.end(is_stored=stored)


for _signal in either("signals.task_started"):
    _signal.connect(_on_started, dispatch_uid="redlock")
for _signal in either("signals.task_finished"):
    _signal.connect(_on_finished, dispatch_uid="redlock")


def _started_of(function: Callable[..., Any]) -> Started | None:
    """Return the message whose body this call is; None: the function was called directly."""
    for each in _started.get()[-1:]:
        is_body = inspect.unwrap(each.result.task.func) is inspect.unwrap(function)
        if is_body and each.delivery is None:  # else the body calls itself
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


class Delivery(core.Delivery):
    """A call of a locked function, and the message whose run it is, if it is one.

    Attributes:
        task: the task; None: the function was called directly.
    """

    def __init__(
        self,
        plan: Plan,
        started: Started | None,
        header: object,
        arguments: tuple[tuple[Any, ...], dict[str, Any]],
        function: Callable[..., Any],
    ) -> None:
        self._result = result = None if started is None else started.result
        self._args, self._kwargs = arguments
        self.task: AnyTask | None = None if result is None else result.task
        self._header: Mapping[str, Any] = header if isinstance(header, Mapping) else {}
        number = self._header.get(NUMBER)
        if not (isinstance(number, str) and number):
            number = None if result is None else result.id
        elif result is None and (found := djangos_task(function)) is not None:
            self.task = found.using(**self._header.get(USING, {}))
        immediate = self.task is not None and isinstance(self.task.get_backend(), IMMEDIATE)
        has_message = self.task is not None and not immediate
        super().__init__(
            plan,
            "" if self.task is None else self.task.module_path,
            number,
            number if has_message and result is not None else None,
            has_message=has_message,
            is_copy=bool(self._header.get("again")) or (result is not None and result.attempts > 1),
        )
        self._may_be_marked = plan.marks and has_message
        if started is not None:
            started.delivery = self

    def drop_mark(self, lock: Lock) -> None:
        """Remove the mark of the message, if it has one: its body begins, or it ends without."""
        if self._may_be_marked and self.task_id is not None:
            policy = conf.backend(lock.alias).policy
            key = completion.mark_key(policy, self.name, lock.names)
            Mark(lock.alias, key, "").remove(task_id=self.task_id)
            self._may_be_marked = False

    def end(self, *, is_stored: bool) -> None:
        """Leave a completion record, or release the run name.

        Args:
            is_stored: whether the result of the body is stored, so that no copy needs to run.
        """
        self.leave(REDELIVERED_FOR, is_done=is_stored and self.is_sound)

    def refuse(self, refusal: Refusal, lock: Lock) -> Any:
        """Skip the message, or enqueue another one for later, or raise the refusal.

        Args:
            refusal: of the run name or of the key.
            lock: the one that was refused.
        """
        own = self.meets_itself(refusal)
        again = own or self.is_copy
        fate = self.fate(refusal, is_own=own, may_have_run=again)
        task = self.task
        if fate is Fate.LATER and task is not None and task.get_backend().supports_defer:
            return self._defer(task, refusal, lock, again=again)
        self.drop_mark(lock)
        if fate is Fate.FINISHED:
            self.note_finished(lock, refusal.name)
            return self._stored()
        if fate is Fate.SKIPPED:
            return self.skip(refusal, lock)
        raise refusal

    def _defer(self, task: AnyTask, refusal: Refusal, lock: Lock, *, again: bool) -> Deferred:
        """Enqueue this message again for later, as another one that stands for it."""
        times = count(self._header.get("deferred"))
        seconds = pause(times, for_slot=self.waits_for_slot(refusal))
        header = {**self._header, NUMBER: self.task_id, "deferred": times + 1, "again": again}
        later = task.using(run_after=timezone.now() + timedelta(seconds=seconds))
        token = sent_again.set(header)
        try:
            sent = later.enqueue(*self._args, **self._kwargs, **{KEYWORD: header})
        finally:
            sent_again.reset(token)
        self.notify(TaskOutcome.DEFERRED, lock, refusal.name, seconds=seconds, error=refusal)
        held = isinstance(refusal, LockTaken)
        reason = "the key is held" if held else "no majority of the nodes could be asked"
        return Deferred(reason, seconds, sent.id)

    def _stored(self) -> Any:
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


# -- one text for plain functions and for coroutine functions -------------------------------------


class World(Protocol):
    """How a run does what takes time."""

    async def do(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a plain function that asks nodes or the queue, and waits for nobody."""

    def block(self, lock: Lock | OnceLock) -> AbstractAsyncContextManager[Lease | OnceRun]:
        """Enter and leave the block of the key's lock."""

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call the body."""


class _InThread:
    """For plain functions: nothing is awaited, so that ``_drive`` comes to the end in one step."""

    async def do(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    @asynccontextmanager
    async def block(self, lock: Lock | OnceLock) -> AsyncIterator[Lease | OnceRun]:
        with lock as found:
            yield found

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return finished(function(*args, **kwargs), function)


class _InTask:
    """For coroutine functions: a run waits for its key in the event loop, and holds no thread."""

    async def do(self, function: Callable[..., Any], *args: Any) -> Any:
        return await sync_to_async(function)(*args)

    def block(self, lock: Lock | OnceLock) -> AbstractAsyncContextManager[Lease | OnceRun]:
        return lock

    async def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)


_in_thread: Final[World] = _InThread()
_in_task: Final[World] = _InTask()
Locked: TypeAlias = Coroutine[Any, Any, Any]


def _drive(coroutine: Locked) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("a plain function awaits nothing")


async def _locked(
    world: World,
    plan: Plan,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    _refuse_celerys(function)
    header = kwargs.pop(KEYWORD, None)
    owned = bool(args) and isinstance(args[0], CONTEXTS)
    sent = args[1:] if owned else args
    delivery = Delivery(plan, _started_of(function), header, (sent, kwargs), function)
    own = plan.template.using(label=delivery.label)
    lock = plan.lock_of_call(delivery.name, args, kwargs, own, owned=owned)
    call = functools.partial(world.call, function, *args, **kwargs)
    try:
        return await _run(world, delivery, own, lock, call)
    except BaseException:
        if not delivery.has_begun:  # it has failed, and waits no more
            await world.do(delivery.drop_mark, lock)
        raise


async def _run(
    world: World,
    delivery: Delivery,
    own: LockTemplate,
    lock: Lock,
    call: Callable[[], Locked],
) -> Any:
    plan = delivery.plan
    entered = False
    try:
        await world.do(delivery.take, own, lock)
        async with world.block(plan.block(lock)) as found:
            entered = True
            if plan.marks:
                await world.do(delivery.drop_mark, lock)  # the lock is the mark from here on
            lease, at = found if isinstance(found, OnceRun) else (found, None)
            if at is not None:
                return await world.do(delivery.skip_done, lock, at)
            with delivery.body(lease):
                return await call()
    except (LockTaken, NodesUnavailable) as error:
        if entered:  # the body's own
            raise
        refusal: Refusal = error
    finally:
        if not delivery.has_begun:
            await world.do(functools.partial(delivery.end, is_stored=False))
    # Outside of ``except``: what is raised or logged from here has no refusal as its cause.
    if isinstance(refusal, NodesUnavailable) and plan.on_unavailable == "run":
        logger.warning("%r is not locked: %s", lock, refusal)
        if plan.marks:
            await world.do(delivery.drop_mark, lock)
        with delivery.body(None):
            return await call()
    return await world.do(delivery.refuse, refusal, lock)


# -- the decorator --------------------------------------------------------------------------------


@overload
def locked_task(key: F, /) -> F: ...
@overload
def locked_task(
    key: str | Sequence[str] | None = None,
    *,
    ttl: float | None = None,
    wait: float | None = None,
    renew: bool | None = None,
    on_conflict: OnConflict | None = None,
    alias: str | None = None,
    min_hold: float = 0,
    max_hold: float | None = None,
    mode: Mode = "while_running",
    on_unavailable: OnUnavailable = "retry",
    on_duplicate: OnDuplicate | None = None,
    queue_ttl: float | None = None,
    using: str | None = None,
    once: timedelta | float | None = None,
    limit: int | None = None,
) -> Callable[[F], F]: ...
def locked_task(
    key: Any = None,
    *,
    ttl: float | None = None,
    wait: float | None = None,
    renew: bool | None = None,
    on_conflict: OnConflict | None = None,
    alias: str | None = None,
    min_hold: float = 0,
    max_hold: float | None = None,
    mode: Mode = "while_running",
    on_unavailable: OnUnavailable = "retry",
    on_duplicate: OnDuplicate | None = None,
    queue_ttl: float | None = None,
    using: str | None = None,
    once: timedelta | float | None = None,
    limit: int | None = None,
    **unknown: Never,
) -> Any:
    """Run the body of a task under a lock; write it below ``@task`` of ``django.tasks``.

    For ``def`` and ``async def``. The options are those of ``django_redlock.celery.locked_task``.

    Args:
        key: the lock's name, with fields that are filled from the arguments; None: the name of
            the task and a digest of all its arguments. The ``context`` of a task with
            ``takes_context=True`` is no argument.
        ttl: seconds after which the nodes forget a worker that died. None: the alias's TTL.
        wait: seconds for which a run waits for the lock. None: 0. A plain function occupies its
            worker meanwhile.
        renew: whether a watchdog renews the lease while the body runs. None: the alias's RENEW.
        on_conflict: what to do with a task whose key is held: "skip" ends it as a success whose
            return value is a ``Skipped``; "retry" enqueues it again for later, and its return value
            is a ``Deferred``; "raise" fails it with ``LockTaken``. "retry" needs a backend that
            supports ``run_after``, else it fails as by "raise", and check W030 names it; so does a
            direct call, and a task of ``ImmediateBackend``. With mode="until_started" it is "retry"
            or "raise". None: "retry" with a ``limit``, else "skip".
        alias: the alias whose nodes decide. None: "default".
        min_hold: seconds for which the key stays taken at least.
        max_hold: seconds after which the lease is no longer renewed. None: MAX_HOLD.
        mode: "while_running": every task is enqueued, and of those with one key one runs at a
            time; "until_started": besides, no second one is enqueued while one waits;
            "until_finished": nor while one runs. The last two need ``UniqueBackend``.
        on_unavailable: what to do with a task when no majority of the nodes can be asked at its
            start: "retry" enqueues it again for later; "run" runs the body without the lock;
            "raise" fails it with ``NodesUnavailable``.
        on_duplicate: what ``enqueue`` does in place of enqueuing a second task: "existing" returns
            the ``TaskResult`` of the first one; "raise" raises ``DuplicateTask``; "drop" returns
            None; a function is called with that ``TaskResult``, and returns what they return. None:
            "existing".
        queue_ttl: seconds, from its ``run_after``, after which a task that did not run no longer
            keeps others from being enqueued. None: 3600.
        using: the database; inside a transaction of it a task with marks is enqueued after the
            COMMIT. None: "default".
        once: how long the work of a key is not done again after its body has succeeded, a timedelta
            or seconds; see ``Lock.once``. A task in that time is a success whose return value is a
            ``Skipped``, whatever ``on_conflict`` says. None: for each task.
        limit: how many tasks of one key run at a time, 1 to 128; a key is held when so many do,
            and by "retry" the next task comes back after 2.5 to 5 s. Not with
            mode="until_finished", ``once`` or several keys. None: one.

    Raises:
        TypeError: the decorated object is a task already, or no function.
        ValueError: an option makes no sense; the text says which.
    """
    if unknown:
        raise unknown_keywords("locked_task", unknown, OPTIONS)
    template = redlock.using(
        alias, ttl=ttl, wait=wait or 0, renew=renew, min_hold=min_hold, max_hold=max_hold
    )
    decorate = functools.partial(
        _decorate,
        template=template,
        mode=mode,
        on_conflict=on_conflict,
        on_unavailable=on_unavailable,
        on_duplicate=on_duplicate,
        queue_ttl=queue_ttl,
        using=using,
        once=once,
        limit=limit,
    )
    if key is None or isinstance(key, str | list | tuple):
        return functools.partial(decorate, key=key)
    return decorate(key, key=None)


OPTIONS: Final = list(inspect.signature(locked_task).parameters)[:-1]  # without ``unknown``


def _decorate(
    function: Any, *, key: str | Sequence[str] | None, template: LockTemplate, **options: Any
) -> Any:
    if function_of(function) is not None:
        msg = (
            "@locked_task is above @task, where there is no function to lock any more. Write it "
            "below:\n\n    @task\n    @locked_task(...)\n    def …"
        )
        raise TypeError(msg)
    is_coroutine = is_async(function)
    if plan_of(function) is not None:
        msg = f"{function.__qualname__} has @locked_task already: write one, with a list of keys"
        raise TypeError(msg)
    plan = Plan(function, key, template, owner=OF_DJANGO, **options)

    @functools.wraps(function)
    def locked(*args: Any, **kwargs: Any) -> Any:
        return _drive(_locked(_in_thread, plan, function, args, kwargs))

    @functools.wraps(function)
    async def alocked(*args: Any, **kwargs: Any) -> Any:
        return await _locked(_in_task, plan, function, args, kwargs)

    chosen: Any = alocked if is_coroutine else locked
    plan.attach(chosen)
    return chosen

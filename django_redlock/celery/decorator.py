"""``locked_task``: run the body of a Celery task once at a time, for each key.

    @shared_task
    @locked_task("report:{report_id}", ttl=30)
    def build(report_id): ...

A worker takes the lease when a run begins, and releases it after the body. The lease belongs to
that run, not to the task id: a broker may deliver a message twice, with one id. A run that finds
its own id in the key is such a copy, and waits its turn; only a message that cannot have run
before is skipped. With another mode than "while_running" a queued message has a mark besides, so
that a second one is not sent at all (``publishing``).
"""

from __future__ import annotations

import functools
import inspect
import logging
from typing import TYPE_CHECKING, Any, Never, TypeVar, overload

from celery import Task
from celery.contrib.django.task import DjangoTask
from celery.exceptions import Ignore

from django_redlock import redlock
from django_redlock.core.errors import LockTaken, NodesUnavailable
from django_redlock.locks.options import refuse_keywords, without_unknown

from . import options as choices
from .autoretry import retried_inside
from .functions import check_function, task_of
from .headers import numbered
from .naming import Naming
from .patience import Patience, Turn
from .publishing import messages
from .publishing.marks import carried
from .publishing.plan import ATTRIBUTE, Plan, plan_of
from .redelivery import Skipped, handle_conflict, has_message, has_succeeded, is_copy, label
from .runs import run_name, running, take_over_started

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from django_redlock.locks.template import LockTemplate

    from .options import OnDuplicate

__all__ = ["LockedTask", "Skipped", "locked_task"]

F = TypeVar("F", bound="Callable[..., Any]")
logger = logging.getLogger("django_redlock")


@overload
def locked_task(key: F, /) -> F: ...
@overload
def locked_task(
    key: str | Sequence[str] | None = None,
    *,
    ttl: float | None = None,
    wait: float | None = None,
    renew: bool | None = None,
    on_conflict: str = "skip",
    alias: str | None = None,
    min_hold: float = 0,
    max_hold: float | None = None,
    mode: str = "while_running",
    on_unavailable: str = "retry",
    on_duplicate: OnDuplicate | None = None,
    queue_ttl: float | None = None,
    using: str | None = None,
) -> Callable[[F], F]: ...
@without_unknown
def locked_task(
    key: Any = None,
    *,
    ttl: float | None = None,
    wait: float | None = None,
    renew: bool | None = None,
    on_conflict: str = "skip",
    alias: str | None = None,
    min_hold: float = 0,
    max_hold: float | None = None,
    mode: str = "while_running",
    on_unavailable: str = "retry",
    on_duplicate: OnDuplicate | None = None,
    queue_ttl: float | None = None,
    using: str | None = None,
    **unknown: Never,
) -> Any:
    """Run the body of a task under a lock; write it below ``@shared_task`` or ``@app.task``.

    Args:
        key: the lock's name, with fields that are filled from the arguments; None: the name of
            the task and a digest of all its arguments.
        ttl: seconds after which the nodes forget a worker that died. None: the alias's TTL.
        wait: seconds for which a run waits for the lock, occupying its worker process. None: 0;
            with on_conflict="retry" up to a second, less where that has been in vain.
        renew: whether a watchdog renews the lease while the body runs. None: the alias's RENEW.
        on_conflict: what to do with a message whose key is held: "skip" ends it as a success
            whose result is a ``Skipped``; "retry" sends it again for later, which does not
            count as a retry; "raise" fails it with ``LockTaken``. With mode="until_started" it
            is "retry" or "raise".
        alias: the alias whose nodes decide. None: "default".
        min_hold: seconds for which the key stays taken at least.
        max_hold: seconds after which the lease is no longer renewed. None: MAX_HOLD.
        mode: "while_running": every message is sent, and of those with one key one runs at a
            time; "until_started": besides, no second message is sent while one waits;
            "until_finished": nor while one runs, or waits for its retry. The last two need
            ``base=LockedTask``.
        on_unavailable: what to do with a message when no majority of the nodes can be asked at
            its start: "retry" sends it again for later; "run" runs the body without the lock;
            "raise" fails it with ``NodesUnavailable``.
        on_duplicate: what ``delay`` and its likes do in place of sending a second message:
            "existing" returns the ``AsyncResult`` of the first one, with ``duplicate`` True;
            "raise" raises ``DuplicateTask``; "drop" returns None; a function is called with that
            result, and returns what they return. None: "existing".
        queue_ttl: seconds, from its ETA, after which a message that neither ran nor expired no
            longer keeps others from being sent. None: 3600.
        using: the database; inside a transaction of it a message is sent after the COMMIT.
            None: "default".

    Raises:
        TypeError: the decorated object is a task already, or not a plain function.
        ValueError: an option makes no sense; the text says which.
    """
    if unknown:
        refuse_keywords("locked_task", unknown, inspect.signature(locked_task).parameters)
    options = choices.check(
        mode=mode,
        on_conflict=on_conflict,
        on_unavailable=on_unavailable,
        on_duplicate=on_duplicate,
        queue_ttl=queue_ttl,
        using=using,
    )
    template = redlock.using(
        alias, ttl=ttl, wait=wait or 0, renew=renew, min_hold=min_hold, max_hold=max_hold
    )
    # type(), because isinstance asks for __class__, and so would make a lazy task real.
    if key is None or issubclass(type(key), str | list | tuple):
        return functools.partial(
            _decorate, template=template, key=key, options=options, patient=wait is None
        )
    return _decorate(key, template=template, key=None, options=options, patient=wait is None)


class LockedTask(DjangoTask):  # type: ignore[misc] # Celery ships no types
    """A base class for tasks whose queued messages have marks, and for those locked by ``lock``.

    With a mode other than "while_running" it is the base of the decorated task: it sends no second
    message. It also does what the decorator does, with the arguments in ``lock``.

    ``lock`` counts in the class that defines ``run``::

        @shared_task(base=LockedTask, lock={"key": "report:{report_id}", "ttl": 30})
        def build(report_id): ...
    """

    lock: Mapping[str, Any] = {}
    numbers_messages = True
    stores_started = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        run = vars(cls).get("run")
        if run is None:
            return
        if plan_of(getattr(run, "__func__", run)) is not None:
            if cls.lock:
                msg = f"{cls.__name__} has both 'lock' and @locked_task: leave one of them out"
                raise TypeError(msg)
            return
        plain = isinstance(run, staticmethod)  # a function without ``self``
        locked: Any = locked_task(**{"key": None, **cls.lock})(run.__func__ if plain else run)
        cls.run = staticmethod(locked) if plain else locked

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Take over from Celery to store STARTED, for tasks whose copies must not store it."""
        super().on_bound(app)
        take_over_started(cls)

    def apply_async(  # noqa: PLR0917 - as Celery has it
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> Any:
        """Send a message as Celery does, unless another one is in its place.

        The message gets a number by which copies of it are known.

        Returns:
            An ``AsyncResult``; its ``duplicate`` says whether it is that of an earlier message.
            Inside a transaction that is None until the COMMIT. Or what ``on_duplicate`` says.

        Raises:
            DuplicateTask: with on_duplicate="raise", if there is an earlier message.
        """
        own = {"producer": producer, "link": link, "link_error": link_error, "shadow": shadow}
        send = functools.partial(super().apply_async, args, kwargs)
        return messages.publish(self, send, (args, kwargs), task_id, numbered(own | options))

    def unmark(self, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> None:
        """Let the next message with these arguments be sent, whatever is in the queue.

        Raises:
            TypeError: the arguments do not fit, or messages of this task have no marks.
        """
        messages.unmark(self, args, kwargs)


def _decorate(
    function: F,
    *,
    template: LockTemplate,
    key: str | Sequence[str] | None,
    options: choices.Options,
    patient: bool,
) -> F:
    check_function(function)
    naming = Naming(function, key)
    patience = Patience() if patient and options.on_conflict == "retry" else None

    @functools.wraps(function)
    def locked(*args: Any, **kwargs: Any) -> Any:
        task = task_of(function, args)
        _check_base(task, options)
        turn = Turn(patience if has_message(task) else None)
        name = run_name(task)
        is_run = name is not None
        with carried(task, options.mode) as mark:
            own = template.using(
                label=label(task), wait=turn.wait, thorough=is_copy(task) if is_run else None
            )
            lock = naming.lock(own, task, args, kwargs)
            entered = False
            try:
                with lock if name is None else lock.behind(name) as lease:
                    entered = True
                    with mark.replaced_by_lock():
                        if has_succeeded(task, lock.alias, lease.name):
                            raise Ignore("an earlier run of this message has succeeded")
                        body: Callable[..., Any] = function
                        if task is not None and options.marks and has_message(task):
                            body = retried_inside(task, function)
                        with turn, running(task, lease, is_run=is_run):
                            return body(*args, **kwargs)
            except (LockTaken, NodesUnavailable) as error:
                if entered:  # the body's own
                    raise
                refusal = error
            waited = turn.passed()
            if isinstance(refusal, NodesUnavailable) and options.on_unavailable == "run":
                logger.warning("%r is not locked: %s", lock, refusal)
                mark.drop()
                with running(task, None):
                    return function(*args, **kwargs)
            return handle_conflict(
                task, refusal, options, alias=lock.alias, waited=waited, is_run=is_run
            )

    # Celery checks the arguments of ``delay`` against this.
    locked.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    setattr(locked, ATTRIBUTE, Plan(naming, template, options))
    return locked  # type: ignore[return-value]


def _check_base(task: Task | None, options: choices.Options) -> None:
    if options.marks and task is not None and not issubclass(type(task), LockedTask):
        msg = (
            f"{task.name} has mode={options.mode!r}, and its class sends messages without marks: "
            "write @shared_task(base=LockedTask)"
        )
        raise TypeError(msg)

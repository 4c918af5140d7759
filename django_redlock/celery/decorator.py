"""``locked_task``: a Celery task of which one run at a time is in its body, for each key.

    @shared_task
    @locked_task("report:{report_id}", ttl=30)
    def build(report_id): ...

The lease is taken in the worker when a run begins and lives as long as the body. It belongs to
that run, not to the task id: a broker may deliver a message twice, with one id. So a run that
finds its own id in the key is such a copy, and waits its turn; only a message that cannot have
run before is ever skipped.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

from celery import Task
from celery._state import get_current_task
from celery.exceptions import Ignore
from celery.local import Proxy

from django_redlock import redlock
from django_redlock.core.errors import LockTaken, NodesUnavailable
from django_redlock.core.names import check_fields, check_names

from .arguments import digest
from .redelivery import Skipped, handle_conflict, has_succeeded, label

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from django_redlock.locks.lock import Lock
    from django_redlock.locks.template import LockTemplate

__all__ = ["LockedTask", "Skipped", "locked_task"]

F = TypeVar("F", bound="Callable[..., Any]")
MODES: Final = ("while_running",)
ON_CONFLICT: Final = ("skip", "retry", "raise")


@overload
def locked_task(key: F, /) -> F: ...
@overload
def locked_task(
    key: str | Sequence[str] | None = None,
    *,
    ttl: float | None = None,
    wait: float = 0,
    renew: bool | None = None,
    on_conflict: str = "skip",
    alias: str | None = None,
    min_hold: float = 0,
    max_hold: float | None = None,
    mode: str = "while_running",
) -> Callable[[F], F]: ...
def locked_task(
    key: Any = None,
    *,
    ttl: float | None = None,
    wait: float = 0,
    renew: bool | None = None,
    on_conflict: str = "skip",
    alias: str | None = None,
    min_hold: float = 0,
    max_hold: float | None = None,
    mode: str = "while_running",
) -> Any:
    """Run the body of a task under a lock. Stands below ``@shared_task`` or ``@app.task``.

    Args:
        key: the lock's name, with fields that are filled from the arguments; None: the name of
            the task and a digest of all its arguments.
        ttl: seconds after which the nodes forget a worker that died. None: the alias's TTL.
        wait: seconds for which a run waits for the lock, occupying its worker process.
        renew: whether the lease is prolonged while the body runs. None: the alias's RENEW.
        on_conflict: what becomes of a message whose key is held: "skip" ends it as a success
            whose result is a ``Skipped``; "retry" sends it again for later, which does not
            count as a retry; "raise" fails it with ``LockTaken``.
        alias: whose nodes to ask. None: "default".
        min_hold: seconds for which the key stays taken at least.
        max_hold: seconds after which the lease is no longer prolonged. None: MAX_HOLD.
        mode: "while_running".

    Raises:
        TypeError: what is decorated is a task already, or not a plain function.
        ValueError: an option that makes no sense; the text says which.
    """
    if mode not in MODES:
        msg = f"mode={mode!r} does not exist; there is: {', '.join(map(repr, MODES))}"
        raise ValueError(msg)
    if on_conflict not in ON_CONFLICT:
        msg = f"on_conflict={on_conflict!r} is none of {', '.join(map(repr, ON_CONFLICT))}"
        raise ValueError(msg)
    template = redlock.using(
        alias, ttl=ttl, wait=wait, renew=renew, min_hold=min_hold, max_hold=max_hold
    )
    # type(), because isinstance asks for __class__, and so would make a lazy task real.
    if key is None or issubclass(type(key), str | list | tuple):
        return functools.partial(_decorate, template=template, key=key, on_conflict=on_conflict)
    return _decorate(key, template=template, key=None, on_conflict=on_conflict)


class LockedTask(Task):  # type: ignore[misc] # Celery ships no types
    """A base class that does what the decorator does; ``lock`` is what the decorator is told.

    ``lock`` counts where ``run`` is defined::

        @shared_task(base=LockedTask, lock={"key": "report:{report_id}", "ttl": 30})
        def build(report_id): ...
    """

    lock: Mapping[str, Any] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        run = vars(cls).get("run")
        if run is None:
            return
        plain = isinstance(run, staticmethod)  # a function that is not told its task
        locked: Any = locked_task(**{"key": None, **cls.lock})(run.__func__ if plain else run)
        cls.run = staticmethod(locked) if plain else locked


def _decorate(
    function: F, *, template: LockTemplate, key: str | Sequence[str] | None, on_conflict: str
) -> F:
    _check_function(function)
    naming = _Naming(function, key)

    @functools.wraps(function)
    def locked(*args: Any, **kwargs: Any) -> Any:
        task = _running(function, args)
        lock = naming.lock(template.using(label=label(task)), task, args, kwargs)
        entered = False
        try:
            with lock:
                entered = True
                if has_succeeded(task):
                    raise Ignore("an earlier run of this message has succeeded")
                return function(*args, **kwargs)
        except (LockTaken, NodesUnavailable) as error:
            if entered:  # the body's own
                raise
            refusal = error
        return handle_conflict(task, refusal, on_conflict)

    # Celery checks the arguments of ``delay`` against this.
    locked.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    return locked  # type: ignore[return-value]


def _check_function(function: Any) -> None:
    kind = type(function)
    if issubclass(kind, Proxy | Task):
        msg = (
            "@locked_task stands above @shared_task or @app.task, where there is no function to "
            "lock any more. Write it below:\n\n    @shared_task\n    @locked_task(...)\n    def …"
        )
        raise TypeError(msg)
    if issubclass(kind, type) or not callable(function):
        msg = f"@locked_task decorates a function, not {function!r}; of a task class, its 'run'"
        raise TypeError(msg)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        msg = f"{function.__qualname__} is a generator function: nothing would run under the lock"
        raise TypeError(msg)
    if inspect.iscoroutinefunction(function):
        msg = f"{function.__qualname__} is a coroutine function; @locked_task locks blocking code"
        raise TypeError(msg)


class _Naming:
    """How the calls of a function are named."""

    def __init__(self, function: Callable[..., Any], key: str | Sequence[str] | None) -> None:
        self._name = f"{function.__module__}.{getattr(function, '__name__', '')}"
        self._names = None if key is None else check_names(key)
        self._signature = inspect.signature(function)
        self._check(without="self")

    def _check(self, without: str) -> None:
        """The task is no argument: one that is told its task has a parameter less."""
        if self._names is not None:
            parameters = self._signature.parameters
            left = [each for name, each in parameters.items() if name != without]
            check_fields(self._names, self._signature.replace(parameters=left))

    def lock(
        self,
        template: LockTemplate,
        task: Task | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> Lock:
        """The lock of one call."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        if args and args[0] is task:  # a method of the task, or one with bind=True
            first = next(iter(self._signature.parameters))
            del arguments[first]
            self._check(without=first)
        if self._names is not None:
            return template(self._names).filled(arguments)
        parts = {"task": self._name if task is None else task.name, "digest": digest(arguments)}
        return template("task:{task}:{digest}").filled(parts)


def _running(function: Callable[..., Any], args: tuple[Any, ...]) -> Task | None:
    """The task whose body this call is; None: the function was called as a function."""
    told = bool(args) and issubclass(type(args[0]), Task)
    task = args[0] if told else get_current_task()
    if task is None or inspect.unwrap(task.run) is not inspect.unwrap(function):
        return None
    return task

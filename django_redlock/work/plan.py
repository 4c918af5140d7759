"""What ``@locked_task`` was told about a function: its options, and which lock a call takes.

The plan is an attribute of the decorated function. The publisher of a message and its run read it
there, so both make the same key.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final
from weakref import WeakSet

from django_redlock import redlock
from django_redlock.core.names import check_fields, check_names
from django_redlock.core.policy import check_seconds
from django_redlock.locks.advice import unknown_keywords
from django_redlock.locks.lock import Lock
from django_redlock.locks.once import OnceLock, checked_keep
from django_redlock.locks.options import check_limit

from .arguments import digest
from .options import (
    CHOICES,
    OPTIONS,
    UNTIL_FINISHED,
    UNTIL_STARTED,
    WHILE_RUNNING,
    OnDuplicate,
)

QUEUE_TTL: Final = 3600.0  # seconds
OF_CELERY, OF_DJANGO = "self", "context"  # owners of a plan
ATTRIBUTE: Final = "__redlock__"  # of the decorated function; wrappers around it copy it
locked_functions: Final[WeakSet[Callable[..., Any]]] = WeakSet()  # for the system checks


class Plan:
    """How the calls of a function are locked; ``TaskOptions`` describes the options.

    Args:
        owner: the name of the first parameter of a function that is given what is no argument of
            its message: the task of Celery, or the context of a run of ``django.tasks``.

    Attributes:
        owner: as given; it tells whose decorator this is.
        template: the alias, and the options of each lock but its limit: the run name has none.
        limit: how many messages of one key run at a time; None: one.
        names: the key as it is written; None: it is made of the arguments.
        marks: whether queued messages have marks.

    Raises:
        TypeError: the function has a plan, ``key`` or ``using`` is no text, or ``queue_ttl`` or
            ``limit`` no number.
        ValueError: an option does not exist, or makes no sense with the others.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        key: str | Sequence[str] | None,
        *,
        owner: str = OF_CELERY,
        ttl: float | None = None,
        wait: float | None = None,
        renew: bool | None = None,
        on_conflict: str | None = None,
        alias: str | None = None,
        min_hold: float = 0,
        max_hold: float | None = None,
        mode: str = "while_running",
        on_unavailable: str = "retry",
        on_duplicate: OnDuplicate | None = None,
        queue_ttl: float | None = None,
        using: Any = None,  # checked here
        once: timedelta | float | None = None,
        limit: int | None = None,
    ) -> None:
        if plan_of(function) is not None:  # the inner one's end would be taken for the body's
            name = function.__qualname__
            raise TypeError(f"{name} has @locked_task already: write one, with a list of keys")
        self.template: Final = redlock.using(
            alias, ttl=ttl, wait=wait or 0, renew=renew, min_hold=min_hold, max_hold=max_hold
        )
        self.owner: Final = owner
        self.mode: Final = _choice("mode", mode)
        self.marks: Final = mode != WHILE_RUNNING
        if on_conflict is None:
            on_conflict = "skip" if limit is None else "retry"  # a limit means "later"
        self.on_conflict: Final = _choice("on_conflict", on_conflict)
        self.on_unavailable: Final = _choice("on_unavailable", on_unavailable)
        choice: OnDuplicate = "existing" if on_duplicate is None else on_duplicate
        if not callable(choice):
            _choice("on_duplicate", choice, more=", and no function")
        self.on_duplicate: Final = choice
        self.queue_ttl: Final = check_seconds(
            "queue_ttl", QUEUE_TTL if queue_ttl is None else queue_ttl
        )
        self.using: Final = using
        of_marks = {"on_duplicate": on_duplicate, "queue_ttl": queue_ttl, "using": using}
        idle = [name for name, value in of_marks.items() if value is not None]
        if idle and not self.marks:
            msg = (
                f"{idle[0]} has no effect with mode='while_running', where each message is sent: "
                f"choose mode='until_started' or 'until_finished', or leave {idle[0]} out"
            )
            raise ValueError(msg)
        if mode == UNTIL_STARTED and on_conflict == "skip":
            msg = (
                "mode='until_started' lets one message wait while another runs, and "
                "on_conflict='skip' would drop it at its start, with what has changed since the "
                "other began: write on_conflict='retry', or mode='until_finished'"
            )
            raise ValueError(msg)
        self._once: Final = None if once is None else checked_keep(once, "once")
        if once is not None and on_unavailable == "run":
            msg = (
                "on_unavailable='run' runs the body without the lock, and leaves no record that "
                "its work is done: with once, write on_unavailable='retry' or 'raise'"
            )
            raise ValueError(msg)
        self.limit: Final = limit
        if using is not None and not isinstance(using, str):
            msg = f"using must be the name of a database, as in DATABASES, not {using!r}"
            raise TypeError(msg)
        self._function = function
        self._task_name = f"{function.__module__}.{getattr(function, '__name__', '')}"
        self._signature = inspect.signature(function)
        self.names: Final = None if key is None else check_names(key)
        if once is not None and self.names is not None and len(self.names) > 1:
            raise ValueError("once takes one key: it is that of the work")
        if limit is not None:
            self._check_limit(limit, once)
        self._check_fields(without=owner)
        self._lock = self.template(self.names or "task:{task}:{digest}", limit=limit)

    def _check_limit(self, limit: int, once: object) -> None:
        check_limit(limit)
        if self.mode == UNTIL_FINISHED:
            msg = (
                "mode='until_finished' sends no second message of a key while one runs, so "
                f"limit={limit} would never let a second one run: write mode='until_started', "
                "where one waits while others run, or leave limit out"
            )
            raise ValueError(msg)
        if once is not None:
            msg = "once takes no limit: work that is done once is done by one at a time"
            raise ValueError(msg)
        if self.names is not None and len(self.names) > 1:
            raise ValueError("limit takes one key: each has slots of its own")

    def attach(self, locked: Callable[..., Any]) -> None:
        """Let the decorated function tell how it is locked."""
        setattr(locked, ATTRIBUTE, self)
        locked_functions.add(locked)

    def block(self, lock: Lock) -> Lock | OnceLock:
        """Return what a run enters for its lock."""
        return lock if self._once is None else lock.once(self._once)

    def _check_fields(self, without: str) -> None:
        """Check the fields of the key; the parameter ``without`` is no argument of a message."""
        if self.names is not None:
            parameters = self._signature.parameters
            left = [each for name, each in parameters.items() if name != without]
            check_fields(self.names, self._signature.replace(parameters=left))

    def lock_of_call(
        self,
        task: str,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        label: str | None = None,
        owned: bool = False,
    ) -> Lock:
        """Return the lock of a call of the function.

        Args:
            task: the name of the task whose body the call is; "": it is none.
            label: the owner label. None: that of the process.
            owned: whether the first argument is the task or the context, and none of the message.

        Raises:
            TypeError: the arguments do not fit the function, or no key can be made of them.
            ValueError: the arguments do not fill the key.
        """
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        if owned:
            first = next(iter(self._signature.parameters))
            del arguments[first]
            self._check_fields(without=first)
        if self.names is not None:
            return self._lock.filled(arguments, self._function, label=label)
        name = task or self._task_name
        parts = {"task": name, "digest": digest(arguments)}
        made_of = f"task:{name}:{{digest}}"  # of each task its own
        return self._lock.filled(parts, self._function, made_of, label=label)


def decorating(
    wrap: Callable[[Callable[..., Plan], Any], Any], key: Any, options: Mapping[str, Any]
) -> Any:
    """Return what decorates functions with these options; or, of a function, the decorated one.

    Args:
        wrap: decorates a function; it is given what makes the function's plan besides.
        key: as ``locked_task`` was given it; or, without parentheses, the function.
    """
    if unknown := [each for each in options if each not in OPTIONS]:
        raise unknown_keywords("locked_task", unknown, OPTIONS)
    # type(), because isinstance asks for __class__, and so would make a lazy task real.
    is_key = key is None or issubclass(type(key), str | list | tuple)
    decorate = partial(wrap, partial(Plan, key=key if is_key else None, **options))
    return decorate if is_key else decorate(key)


def plan_of(run: object) -> Plan | None:
    """Return how a function, the body of a task, is locked; None: it is not."""
    found = getattr(run, ATTRIBUTE, None)
    return found if isinstance(found, Plan) else None


def djangos_task(function: Callable[..., Any]) -> Any:
    """Return the task of ``django.tasks`` of a function, from where its backend takes it, or None.

    It may be one of the backport. A backend may run it as a task of Celery's, which is made of the
    same function.
    """
    found: Any = sys.modules.get(function.__module__)
    for each in getattr(function, "__qualname__", "").split("."):
        found = getattr(found, each, None)
    body = getattr(found, "func", None) if hasattr(found, "module_path") else None
    is_its = body is not None and inspect.unwrap(body) is inspect.unwrap(function)
    return found if is_its else None


def wrong_decorator(task: str, owner: str) -> str:
    """Return what is said of a task under the decorator of this owner, which is not its own."""
    right = {OF_CELERY: ("Celery's tasks", "tasks"), OF_DJANGO: ("Django's own tasks", "celery")}
    whose, home = right[owner]
    return f"{task} has the @locked_task of {whose}: import it from django_redlock.{home}"


def _choice(name: str, value: str, more: str = "") -> str:
    choices = CHOICES[name]
    if value not in choices:
        raise ValueError(f"{name}={value!r} is none of {', '.join(map(repr, choices))}{more}")
    return value

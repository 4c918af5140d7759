"""Lock the requests of one view; decide and log when a request does not get its lock."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, TypedDict

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import BadRequest

from django_redlock import conf
from django_redlock.core.errors import LockTaken, NodesUnavailable
from django_redlock.events import log_fields

from .calls import calling_line, check_key
from .keys import DEFAULT_KEY, KeyTemplate, check_result, default_fields
from .refusals import UNAVAILABLE_RETRY, refuse
from .throttle import LogThrottle
from .waiting import waiting

if TYPE_CHECKING:
    from django_redlock.locks.lock import Lock
    from django_redlock.locks.options import OnLost
    from django_redlock.locks.template import LockTemplate

    from .keys import Key
    from .refusals import Refusal, RetryAfter
    from .responses import Answers, OnRefused
    from .waiting import Turn

logger = logging.getLogger("django_redlock")


class Unfilled(BadRequest):
    """The request lacks what the key of its view needs."""


made: Final[weakref.WeakSet[Rules]] = weakref.WeakSet()  # for the system checks


class Options(TypedDict, total=False):
    """The options of ``single_flight``, for type checkers."""

    alias: str | None
    ttl: float | None
    wait: float | None
    min_hold: float
    renew: bool | None
    max_hold: float | None
    on_lost: OnLost
    methods: Sequence[str]
    status: int
    retry_after: RetryAfter
    on_refused: OnRefused
    on_unavailable: str


def runs_unlocked(on_unavailable: str) -> bool:
    """Return whether a view runs without its lock when no majority can be asked.

    Raises:
        ValueError: it is none of the two that are known.
    """
    if on_unavailable not in ("refuse", "run"):
        msg = f"on_unavailable={on_unavailable!r} is none of 'refuse', 'run'"
        raise ValueError(msg)
    return on_unavailable == "run"


def verbs_of(methods: Sequence[str]) -> frozenset[str]:
    """Return the HTTP methods that are locked: a view does for HEAD what it does for GET.

    Raises:
        TypeError: it is no list of texts, or empty.
    """
    given: Any = methods
    is_list = isinstance(given, Collection) and not isinstance(given, str) and len(given) > 0
    if not is_list or not all(isinstance(each, str) for each in given):
        raise TypeError("methods must be a list of HTTP methods, e.g. ['POST']")
    verbs = frozenset(method.upper() for method in methods)
    return verbs | {"HEAD"} if "GET" in verbs else verbs


class Locks:
    """Make the lock of a request by the ``key`` of its view.

    Args:
        template: what makes locks, with the options of the view.
        key: a template, several, or a function; None: ``DEFAULT_KEY``.

    Attributes:
        names: the names as they are written, for the log.
        options: those of the locks.
        is_async: whether the key is a coroutine function.
    """

    def __init__(self, template: LockTemplate, key: Key | None) -> None:
        self._template = template
        self._function = key if callable(key) else None
        self._key = KeyTemplate.of("" if callable(key) else DEFAULT_KEY if key is None else key)
        self._by_request = key is None
        self.options = template.options
        self._lock = template("{key}" if callable(key) else self._key.names)
        self.is_async = iscoroutinefunction(key)
        self.names = self._lock.names if callable(key) else self._key.plain

    @property
    def fields(self) -> frozenset[str]:
        """Which arguments of the view its key needs."""
        return frozenset() if self._by_request or self._function else self._key.fields

    def reader(self, view: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function that makes the lock of a call from the arguments of the call.

        It raises ValueError for a request that lacks what the key needs. If the key is a coroutine
        function, so is this.
        """
        function: Callable[..., Any] | None = self._function
        if function is not None:
            check_key(function, view)
        if self.is_async and function is not None:

            async def awaited(*args: Any, **kwargs: Any) -> Lock:
                return self._of(await function(*args, **kwargs))

            return awaited
        if function is not None:
            return lambda *args, **kwargs: self._of(function(*args, **kwargs))
        fields = default_fields if self._by_request else self._key.reader(view)
        return lambda *args, **kwargs: self._lock.filled(fields(*args, **kwargs))

    def _of(self, result: Any) -> Lock:
        """Return the lock of the names that the function returned; braces in them are text."""
        names = check_result(result)
        lock = self._lock
        if len(names) > 1:
            lock = self._template([f"{{key{i}}}" for i in range(len(names))])
            return lock.filled({f"key{i}": name for i, name in enumerate(names)})
        return lock.filled({"key": names[0]})


@dataclass(frozen=True, eq=False, slots=True, weakref_slot=True)
class Rules:
    """The options of a view's lock; see ``single_flight``.

    Attributes:
        place: module and line of the decorator.
    """

    alias: str
    locks: Locks
    methods: frozenset[str]
    answers: Answers
    wait: float | None = 0
    runs_unlocked: bool = False
    unfilled: LogThrottle = field(default_factory=LogThrottle)
    unavailable: LogThrottle = field(default_factory=LogThrottle)
    crowded: LogThrottle = field(default_factory=LogThrottle)
    place: str = field(default_factory=calling_line)

    def __post_init__(self) -> None:
        made.add(self)

    def reader(self, view: Callable[..., Any]) -> Callable[..., Lock]:
        """Return the function that makes the lock of a call; for a plain view.

        Raises:
            TypeError: the key has to be awaited.
        """
        if self.locks.is_async:
            msg = "key= is a coroutine function, and the view is none: write a plain function"
            raise TypeError(msg)
        read = self.locks.reader(view)

        def lock_of(*args: Any, **kwargs: Any) -> Lock:
            try:
                return read(*args, **kwargs)  # type: ignore[no-any-return]
            except ValueError as error:  # the request decides it
                raise self._unfilled(error) from error

        return lock_of

    def areader(self, view: Callable[..., Any]) -> Callable[..., Awaitable[Lock]]:
        """Return the same for an async view."""
        read = self.locks.reader(view)
        if not self.locks.is_async:  # a key may look at the user, and that may be a query
            read = sync_to_async(read)

        async def lock_of(*args: Any, **kwargs: Any) -> Lock:
            try:
                return await read(*args, **kwargs)  # type: ignore[no-any-return]
            except ValueError as error:
                raise self._unfilled(error) from error

        return lock_of

    def _unfilled(self, error: ValueError) -> Unfilled:
        self._log(self.unfilled, logging.WARNING, "a request is answered 400", error)
        return Unfilled(str(error))

    def turn(self) -> Turn:
        """Return how long the request may wait for its lock."""
        backend = conf.backend(self.alias)
        wait = backend.wait if self.wait is None else self.wait
        return waiting.turn(self.alias, wait, backend.max_waiting_requests)

    def refusal(
        self, error: LockTaken | NodesUnavailable, request: Any, turn: Turn
    ) -> Refusal | None:
        """Decide what is answered to a request that did not get the lock; None: run it without."""
        if turn.crowded and isinstance(error, LockTaken):
            text = "a request is answered 503, since MAX_WAITING_REQUESTS of this process wait"
            self._log(self.crowded, logging.WARNING, text, error)
            return refuse(error, request, 503, UNAVAILABLE_RETRY)
        if isinstance(error, NodesUnavailable):
            if self.runs_unlocked:
                told = log_fields(self.alias, error.name, code=error.code)
                logger.warning("the view runs without its lock: %s", error, extra=told)
                return None
            self._log(self.unavailable, logging.ERROR, "a request is answered 503", error)
        return self.answers.decide(error, request)

    def _log(self, throttle: LogThrottle, level: int, text: str, error: Exception) -> None:
        """Log at most one line in a minute: clients decide how many there would be."""
        left_out = throttle.admit()
        if left_out is None:
            return
        name = getattr(error, "name", self.locks.names)
        code = getattr(error, "code", "")
        told = log_fields(self.alias, name, code=code, left_out=left_out)
        more = f" (and {left_out} more since the last such line)" if left_out else ""
        logger.log(level, "%s: %s%s", text, error, more, extra=told)

"""The lock of a view: how a request takes it, runs the view in it, and gives it back.

Each is inside the one before it, up to the view; then they end in this order:

    lock  ->  transactions of ATOMIC_REQUESTS  ->  view  ->  COMMIT  ->  release

The request handler opens those transactions around the whole view. The lock inside them would be
released before the COMMIT, when the next request cannot see the rows yet. So the wrapper is marked
as non-atomic for every database, and opens the same transactions itself.

A response that is not complete when the view returns keeps the lock: a stream until it is
closed, a template until it is rendered (not until it is sent: a slow client would keep the
lock). Where a response is dropped instead, the lease is renewed no more, and the name is free after
its ttl.
"""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, replace
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, Final

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.core.exceptions import BadRequest
from django.http import HttpRequest

from django_redlock import conf, transactions
from django_redlock.core.errors import LockTaken, NodesUnavailable, RedlockError
from django_redlock.events import log_fields
from django_redlock.leases.lease import Lease
from django_redlock.locks.callables import calling_frame, module_of
from django_redlock.nodes.background import reset_in_child

from .keys import ViewKey
from .refusals import UNAVAILABLE_RETRY, Refusal, Responder, djangos_request, refused_inside

if TYPE_CHECKING:
    from django_redlock.locks.lock import Lock
    from django_redlock.locks.template import LockTemplate

    class LockedRequest(HttpRequest):
        """A request in a view under ``@single_flight``, for annotations.

        Attributes:
            lease: the lease of the view's lock; None if the request was not locked, by its method
                or by ``on_unavailable="run"``.
        """

        lease: Lease | None

else:
    LockedRequest = HttpRequest  # so that ``isinstance`` is true of every request

logger = logging.getLogger("django_redlock")

View = Callable[..., Any]
NO_ATOMIC: Final = (
    "You cannot use ATOMIC_REQUESTS with async views: write @transaction.non_atomic_requests below "
    "@single_flight"
)
EVERY: Final = "*"  # of REST framework's classes: every action
LOCKED: Final = "single_flight_locks"  # of such a class: the ViewLock of each action
LOG_EVERY: Final = 60.0  # seconds from one line to the next that is equal
INSIDE: Final = "redlock_inside"  # of Django's request: whether it has met a view's lock before


class Unfilled(BadRequest):
    """The request lacks what the key of its view needs."""


class ViewLock:
    """The lock of a view, by the options of ``single_flight``.

    The lock of another decorator derives from it and has two methods of its own: ``wrap``, which
    puts a view into the lock, and ``run``, which decides what a request to the view gets.

    Attributes:
        decorator: the name of the decorator, for texts.
        example: a call of the decorator, for texts.
        module: the module of the decorator; its ``rest_framework`` has the one for such views.
        alias: the alias whose nodes decide.
        options: the options of the lock.
        key: the key of the view.
        methods: the HTTP methods that are locked.
        responder: makes the responses to refused requests.
        line: module and line of the decorator in the source.
        read: a function that makes the lock of a request to a method of a class.
        runs_unlocked: whether a view runs without the lock where no majority can be asked.
    """

    decorator: ClassVar[str] = "single_flight"
    example: ClassVar[str] = "single_flight('pay:{pk}')"
    module: ClassVar[str] = "django_redlock.views"

    def __init__(
        self,
        template: LockTemplate,
        key: ViewKey,
        methods: frozenset[str],
        responder: Responder,
        *,
        runs_unlocked: bool,
    ) -> None:
        self.alias: Final = template.alias
        self.options: Final = template.options
        self.key: Final = key
        self.methods: Final = methods
        self.responder: Final = replace(responder, no_result=self._no_result)
        self.line: Final = _calling_line()
        self.read: Final = self.key.reader()
        self.runs_unlocked: Final = runs_unlocked
        self._quiet_until: dict[str, float] = {}  # by text: when its next line may be logged
        view_locks.add(self)

    def wrap(self, view: View, read: Callable[..., Any], *, is_async: bool) -> View:
        """Return the view in its lock; ``read`` makes the lock of a call from its arguments.

        Raises:
            TypeError: an option is a coroutine function, and the view is none.
        """
        marked = transactions.EveryDatabase(getattr(view, "_non_atomic_requests", ()))
        if is_async:
            if not self.key.is_async:  # it may look at the user, and that may be a query
                read = sync_to_async(read)

            @functools.wraps(view)
            async def asingle(request: Any, *args: Any, **kwargs: Any) -> Any:
                return await self._arun(view, read, marked, request, *args, **kwargs)

            single: Any = asingle
        else:
            self.check_plain()

            @functools.wraps(view)
            def single(request: Any, *args: Any, **kwargs: Any) -> Any:
                return self.run(view, read, marked, request, *args, **kwargs)

        # Of an async view as well: Django would refuse it, and not say what to write.
        single._non_atomic_requests = marked  # noqa: SLF001 - Django's
        return single  # type: ignore[no-any-return]

    def check_plain(self) -> None:
        """Check that a plain view can be locked: no option is a coroutine function."""
        self.responder.check_plain()
        if self.key.is_async:
            raise TypeError(
                "key= is a coroutine function, and the view is none: write a plain function"
            )

    def run(
        self,
        view: View,
        read: Callable[..., Lock],
        marked: Collection[str],
        request: Any,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Run a plain view in its lock and its transactions, or refuse the request.

        ``read`` is as for ``wrap``; databases that are ``marked`` get no transaction.

        Raises:
            Unfilled: the request lacks what the key needs.
            RuntimeError: this thread is in a transaction.
        """
        self.enter(request)
        databases = transactions.wanted(request, marked)
        if request.method not in self.methods:
            return transactions.atomic(view, databases)(request, *args, **kwargs)
        transactions.check_none(self.decorator, self.module)
        try:
            lock = read(request, *args, **kwargs)
        except ValueError as error:  # the request decides it
            raise self._unfilled(error) from error
        return self.run_locked(view, lock, databases, request, *args, **kwargs)

    def run_locked(
        self,
        view: View,
        lock: Lock,
        databases: Collection[str],
        request: Any,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Run a plain view in this lock, and in transactions of these databases, or refuse it."""
        lease, wait = None, self._wait()
        try:
            lease = request.lease = lock.acquire(wait.seconds)
        except (LockTaken, NodesUnavailable) as error:
            wait.over = True  # before a response is made, which may take long
            refusal = self._refusal(error, request, wait)
            if refusal is not None:
                return self.responder.respond(request, refusal)
        finally:
            wait.over = True
        if lease is None:
            return transactions.atomic(view, databases)(request, *args, **kwargs)

        def until_lost(*args: Any, **kwargs: Any) -> Any:
            response = view(*args, **kwargs)
            lock.left(lease)  # inside the transactions, which roll back if it raises
            return response

        try:
            response = transactions.atomic(until_lost, databases)(request, *args, **kwargs)
            if not _keeps_lock(response, lease):
                lease.release()
        except BaseException:  # also what interrupts the release
            lease.release()
            raise
        return response

    async def _arun(
        self,
        view: View,
        read: Callable[..., Awaitable[Lock]],
        marked: Collection[str],
        request: Any,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Run an async view as ``run`` does a plain one; it can have no transaction."""
        self.enter(request)
        if transactions.wanted(request, marked):
            raise RuntimeError(NO_ATOMIC)
        if request.method not in self.methods:
            return await view(request, *args, **kwargs)
        try:
            lock = await read(request, *args, **kwargs)
        except ValueError as error:
            raise self._unfilled(error) from error
        lease, wait = None, self._wait()
        try:
            lease = request.lease = await lock.aacquire(wait.seconds)
        except (LockTaken, NodesUnavailable) as error:
            wait.over = True
            refusal = self._refusal(error, request, wait)
            if refusal is not None:
                return await self.responder.arespond(request, refusal)
        finally:
            wait.over = True
        if lease is None:
            return await view(request, *args, **kwargs)
        try:
            response = await view(request, *args, **kwargs)
            lock.left(lease)
            if not _keeps_lock(response, lease):
                await lease.arelease()
        except BaseException:  # CancelledError, too: the client has gone
            await lease.arelease()
            raise
        return response

    def enter(self, request: Any) -> None:
        """Check the request, and note whether another decorated view has got it before.

        Raises:
            TypeError: it is no request; the text says how to write the decorator.
        """
        name = self.decorator
        if callable(request) and not hasattr(request, "META"):
            raise TypeError(
                f"{name} was given a function, and then the view: its first argument is the view "
                f"or a text. Name a function that makes the key: @{name}(key=function)"
            )
        if not hasattr(request, "META"):
            raise TypeError(
                f"{name} needs the request, not {type(request).__name__}: on a method, write "
                f"@method_decorator({name}(...))"
            )
        request.lease = None
        inner = djangos_request(request)
        setattr(inner, INSIDE, hasattr(inner, INSIDE))

    def _wait(self) -> Wait:
        backend = conf.backend(self.alias)
        seconds = backend.wait if self.options.wait is None else self.options.wait
        return waiting.begin(self.alias, seconds, backend.max_waiting_requests)

    def _refusal(
        self, error: LockTaken | NodesUnavailable, request: Any, wait: Wait
    ) -> Refusal | None:
        """Decide what is answered to a request that did not get the lock; None: run it without."""
        is_inside = getattr(djangos_request(request), INSIDE)
        if isinstance(error, NodesUnavailable):
            if self.runs_unlocked:
                extra = log_fields(self.alias, error.name, code=error.code)
                logger.warning("the view runs without its lock: %s", error, extra=extra)
                return None
            self.log(logging.ERROR, "a request gets a 503", error)
        elif wait.crowded and not is_inside:
            text = "a request gets a 503, since MAX_WAITING_REQUESTS of this process wait"
            self.log(logging.WARNING, text, error)
            return Refusal(503, UNAVAILABLE_RETRY, error)
        return refused_inside(error) if is_inside else self.responder.refusal(error)

    def _unfilled(self, error: ValueError) -> Unfilled:
        self.log(logging.WARNING, "a request gets a 400", error)
        return Unfilled(str(error))

    def _no_result(self, error: Exception) -> None:
        text = f"result= of the {self.decorator} of {self.line} names no address"
        self.log(logging.ERROR, text, error, trace=True)

    def log(self, level: int, text: str, error: Exception, *, trace: bool = False) -> None:
        """Log at most one such line in a minute: clients decide how many there would be."""
        now = monotonic()
        if now < self._quiet_until.get(text, 0):
            return
        self._quiet_until[text] = now + LOG_EVERY
        if isinstance(error, RedlockError):  # the name of an AttributeError is of another kind
            extra = log_fields(self.alias, error.name, code=error.code)
        else:
            extra = log_fields(self.alias, self.key.names, code="")
        logger.log(level, "%s: %s", text, error, extra=extra, exc_info=error if trace else None)


view_locks: Final[weakref.WeakSet[ViewLock]] = weakref.WeakSet()  # for the system checks


def lock_of(cls: type, action: str) -> ViewLock | None:
    """Return the lock of an action of REST framework's; that of a subclass goes first."""
    for each in cls.__mro__:
        locks = vars(each).get(LOCKED, {})
        if action in locks or EVERY in locks:
            found: ViewLock = locks.get(action) or locks[EVERY]
            return found
    return None


def _calling_line() -> str:
    """Return module and line of the code outside this package that is calling."""
    frame, _ = calling_frame()
    return f"{module_of(frame)}, line {frame.f_lineno}"


# -- responses that are not complete ---------------------------------------------------------------


def _keeps_lock(response: Any, lease: Lease) -> bool:
    """Return True if the response is not complete yet, and let the lease end with it."""
    streams = getattr(response, "streaming", False)
    if not streams and getattr(response, "is_rendered", True):
        return False
    lease.block = weakref.ref(response)

    def release(*_: object) -> None:
        lease.release()

    if streams:
        response._resource_closers.append(release)  # noqa: SLF001 - Django has no other way
    elif iscoroutinefunction(response.render):
        response.add_post_render_callback(release)  # not called when rendering fails
    else:
        _follow_rendering(response, release)
    return True


def _follow_rendering(response: Any, release: Callable[[], object]) -> None:
    """Call ``release`` when the response has been rendered, or failed to be."""
    reference = weakref.ref(response)  # no cycle: it must be forgotten as soon as it is dropped

    def render() -> Any:
        response: Any = reference()
        del response.render  # a cache pickles the response while it is being rendered
        try:
            return response.render()
        finally:
            release()

    response.render = render


# -- requests that wait ----------------------------------------------------------------------------


@dataclass(slots=True, weakref_slot=True, eq=False)
class Wait:
    """For how long a request waits for its lock."""

    seconds: float  # at most
    crowded: bool = False  # whether it would wait longer, and too many do
    over: bool = False


class WaitingRequests:
    """The requests of this process that may be waiting, by alias: each may keep a worker busy.

    A request beyond the limit tries once, without waiting; a name that is free it gets. Waits are
    counted by weak references, so one that an interruption left behind is forgotten with its
    request.
    """

    def __init__(self) -> None:
        self.reset()
        reset_in_child(self)

    def reset(self) -> None:
        """Forget the parent's requests, as a forked child must."""
        self._lock = threading.RLock()
        self._waits: dict[str, list[weakref.ref[Wait]]] = {}

    def begin(self, alias: str, seconds: float, most: int | None) -> Wait:
        """Return the wait of a request, of which ``most`` may wait; None: any number."""
        if seconds <= 0 or most is None:
            return Wait(seconds)
        with self._lock:
            known = ((each, each()) for each in self._waits.get(alias, ()))
            waits = [each for each, wait in known if wait is not None and not wait.over]
            if len(waits) >= most:
                return Wait(0, crowded=True)
            begun = Wait(seconds)
            self._waits[alias] = [*waits, weakref.ref(begun)]
            return begun


waiting: Final = WaitingRequests()

"""``@idempotent``: a client that sends a request again gets the first answer.

    @idempotent
    def pay(request, pk): ...

Each is inside the one before it, up to the view; then they end in this order:

    lock  ->  transaction  ->  INSERT  ->  view  ->  UPDATE  ->  COMMIT  ->  release

The lock lets equal requests wait for the first one, or refuses them. That the work is done once
does not rest on it: without a majority of the nodes, or with a holder that was paused for too long,
two transactions begin, and one of them fails at the primary key of the record.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import weakref
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from time import monotonic
from typing import Any, ClassVar, Final, NamedTuple, Never, TypedDict, TypeVar, Unpack, overload

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.db import Error, OperationalError, connections, transaction
from django.http.response import HttpResponseBase

from django_redlock import LockTaken, NodesUnavailable, redlock, transactions
from django_redlock.core.policy import check_seconds
from django_redlock.locks.advice import unknown_keywords
from django_redlock.locks.atomic import checked_using
from django_redlock.locks.template import LockTemplate
from django_redlock.views.decorator import METHODS, PLACED, decorating, verbs_of
from django_redlock.views.keys import Key
from django_redlock.views.lock import View, ViewLock, Wait
from django_redlock.views.refusals import (
    RETRY_AFTER,
    OnRefused,
    Refusal,
    Responder,
    Result,
    RetryAfter,
    WithoutMajority,
    wants_json,
)

from . import answers
from .answers import HEADERS, MAX_BODY, KeyRefusal, NotReplayable, SentAgain, Storing, replay
from .keys import Missing, RequestKey, Unkeyed, fingerprint, sending_page
from .records import Begun, Work, database_of, kept_for

logger = logging.getLogger("django_redlock")

V = TypeVar("V", bound=View)
DAY: Final = timedelta(days=1)
WAIT: Final = 5.0  # seconds: a second click shows what the first one has done
LOCK: Final = "idempotency:{identity}"
LEFT: Final = "redlock_left"  # of a request: its client has gone
TRIES: Final = 3  # to begin the transaction
OF_PROGRAMS: Final = frozenset({"key", "format"})  # what is wrong with a key, and a program mends
LOOK_AGAIN: Final = 0.02  # seconds after which a lock was not free at once


class Options(TypedDict, total=False):
    """The options of ``idempotent``, for type checkers."""

    key: Key | None
    scope: Key | None
    keep: timedelta | float
    required: bool
    methods: Sequence[str]
    using: str | None
    store: Callable[[Any], bool] | None
    headers: Sequence[str]
    max_body: int
    store_body: bool
    alias: str | None
    ttl: float | None
    wait: float | None
    max_hold: float | None
    retry_after: RetryAfter
    on_refused: OnRefused
    result: Result
    on_unavailable: WithoutMajority


@overload
def idempotent(view: V, /, **options: Unpack[Options]) -> V: ...


@overload
def idempotent(
    *,
    key: Key | None = None,
    scope: Key | None = None,
    keep: timedelta | float = DAY,
    required: bool = True,
    methods: Sequence[str] = METHODS,
    using: str | None = None,
    store: Callable[[Any], bool] | None = None,
    headers: Sequence[str] = HEADERS,
    max_body: int = MAX_BODY,
    store_body: bool = True,
    alias: str | None = None,
    ttl: float | None = None,
    wait: float | None = WAIT,
    max_hold: float | None = None,
    retry_after: RetryAfter = RETRY_AFTER,
    on_refused: OnRefused = None,
    result: Result = None,
    on_unavailable: WithoutMajority = "refuse",
) -> Callable[[V], V]: ...


def idempotent(
    view: View | None = None,
    /,
    *,
    key: Key | None = None,
    scope: Key | None = None,
    keep: timedelta | float = DAY,
    required: bool = True,
    methods: Sequence[str] = METHODS,
    using: str | None = None,
    store: Callable[[Any], bool] | None = None,
    headers: Sequence[str] = HEADERS,
    max_body: int = MAX_BODY,
    store_body: bool = True,
    alias: str | None = None,
    ttl: float | None = None,
    wait: float | None = WAIT,
    max_hold: float | None = None,
    retry_after: RetryAfter = RETRY_AFTER,
    on_refused: OnRefused = None,
    result: Result = None,
    on_unavailable: WithoutMajority = "refuse",
    **unknown: Never,
) -> View:
    """Do the work of a request once; answer its repetitions with the first answer.

    For ``def`` and ``async def`` views, and by ``method_decorator`` on ``dispatch`` for classes.
    The view finds its key in ``request.idempotency_key``, which is None if there is none, and its
    lease in ``request.lease``.

    Args:
        key: which requests are the same one: a text with fields from ``request``, ``client`` and
            the view's arguments, or a function, as for ``single_flight``. None: the header
            ``Idempotency-Key``, or the field of ``{% idempotency_key %}`` in a form.
        scope: whose keys they are; the same. None: the user's, else the session's; a request with
            neither gets a 400.
        keep: for how long an answer is replayed: a ``timedelta``, or seconds. Afterwards the same
            key is a new request.
        required: whether a request without a key gets a 400. False: it runs as if the view
            were not decorated.
        methods: the HTTP methods that are meant, and HEAD with GET; others pass.
        using: the database that the view writes to. The record is written to it in the same
            transaction. None: that to which Django's routers write the model of the records.
        store: a function of the response that says whether it is stored. What is not stored is
            rolled back. None: a response below 500, but no error with ``Retry-After``.
        headers: the names of the headers that are stored, besides ``Content-Type``.
        max_body: bytes of the body, at most.
        store_body: False: replay status and headers only.
        alias: the alias whose nodes decide. None: "default".
        ttl: seconds after which the nodes forget a process that does not renew its lease. None:
            the alias's TTL.
        wait: seconds that a repetition may wait for the first request, occupying a worker; none
            waits while no majority of the nodes can be asked. None: the alias's WAIT. See
            MAX_WAITING_REQUESTS.
        max_hold: seconds after which the lease is renewed no more. None: MAX_HOLD.
        retry_after: the ``Retry-After`` of the 409 while the first request runs; see
            ``single_flight``.
        on_refused: makes the response of a refused request; see ``single_flight``.
        result: where a visitor sees what the first request has done; see ``single_flight``.
        on_unavailable: "refuse": answer 503 when no majority of the nodes can be asked, unless
            there is an answer to replay; "run": run the view without the lock. The record alone
            keeps two from committing then.

    Raises:
        TypeError, ValueError: an argument makes no sense, or nothing can fill a field.
    """
    if unknown:
        raise unknown_keywords("idempotent", unknown, Options.__annotations__)
    if isinstance(view, str):
        raise TypeError(f"idempotent takes its key by name: @idempotent(key={view!r})")
    if wait is not None:
        check_seconds("wait", wait, zero=True)
    if on_unavailable not in ("refuse", "run"):
        raise ValueError(f"on_unavailable={on_unavailable!r} is none of 'refuse', 'run'")
    if iscoroutinefunction(on_refused):  # it is called in a thread
        on_refused = async_to_sync(on_refused)
    quiet = on_unavailable == "refuse"
    template = redlock.using(
        alias, ttl=ttl, wait=wait, max_hold=max_hold, waits_for="holder", quiet=quiet
    )
    # Before there is a lock, which the system checks would find half made.
    kept, database = kept_for(keep), checked_using(using)
    storing = Storing(store, headers, max_body, store_body=store_body)
    lock = IdempotentLock(
        template,
        RequestKey(template, key, scope),
        verbs_of(methods),
        Responder(409, retry_after, on_refused, result),
        runs_unlocked=on_unavailable == "run",
    )
    lock.keep, lock.required, lock.using, lock.storing = kept, bool(required), database, storing
    return decorating(lock, view)


class Outcome(NamedTuple):
    """What a view has come to.

    Attributes:
        response: the response; None where ``afterwards`` makes it.
        answer: what is stored of it in the transaction of the work; None: the work rolls back.
        afterwards: makes a response when the work is rolled back, which may be stored by itself.
    """

    response: Any = None
    answer: dict[str, Any] | None = None
    afterwards: Callable[[], Any] | None = None


class IdempotentLock(ViewLock):
    """The lock of a view under ``idempotent``, and what happens in it.

    It stands on the two methods that ``ViewLock`` has for it: ``wrap`` and ``run``.

    Attributes:
        keep: the time for which a record is kept.
        required: whether a request without a key gets a 400.
        using: the database that the view writes to; None: that of the routers.
        storing: decides what is stored of a response.
        by_session: whether clients without a user are told apart by their session.
        is_above_login: whether the decorator stands above ``login_required`` or another check of
            the user.
        answering: calls a view with a request, and returns its response or an ``Outcome``. REST
            framework has one of its own, which answers exceptions.
    """

    decorator: ClassVar[str] = "idempotent"
    example: ClassVar[str] = "idempotent()"
    module: ClassVar[str] = "django_redlock.idempotency"
    keep: timedelta
    required: bool
    using: str | None
    storing: Storing

    def __init__(self, template: LockTemplate, key: RequestKey, *args: Any, **kwargs: Any) -> None:
        super().__init__(template, key, *args, **kwargs)
        self.by_session: Final = key.by_session
        self._key_is_sent: Final = key.is_sent
        self.is_above_login = False
        self.answering: Callable[..., Any] = lambda view, *args, **kwargs: view(*args, **kwargs)
        self._lock: Final = template(LOCK)

    def wrap(self, view: View, read: Callable[..., Any], *, is_async: bool) -> View:
        """Return the view in its lock; ``read`` tells the identity of a call.

        An async view gets its transaction, too: a thread of its request opens it and waits for the
        view, and Django sends the queries of such a view to the thread that waits for it. If the
        client goes away, Django cancels the view, and the work is rolled back.

        Raises:
            TypeError: the view has a lock already, which would be released before the COMMIT.
        """
        marks = getattr(view, "__dict__", {})
        if PLACED in marks:
            below = marks[PLACED].decorator
            raise TypeError(
                f"idempotent opens a transaction around the lock of {below}, which would be "
                "released before the COMMIT: write @single_flight above @idempotent, and each once"
            )
        # For Django's LoginRequiredMiddleware, user_passes_test leaves this at what it decorates.
        self.is_above_login |= "login_url" in marks
        if not is_async:
            return super().wrap(view, read, is_async=False)
        marked = getattr(view, "_non_atomic_requests", ())

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await view(*args, **kwargs)

        def waiting(request: Any, *args: Any, **kwargs: Any) -> Any:
            _refuse_to_begin(request)
            return async_to_sync(awaited)(request, *args, **kwargs)

        waiting.__dict__["_non_atomic_requests"] = marked
        plain = super().wrap(waiting, read, is_async=False)

        @functools.wraps(view)
        async def asingle(request: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return await sync_to_async(plain)(request, *args, **kwargs)
            except asyncio.CancelledError:
                setattr(request, LEFT, True)
                raise

        asingle.__dict__["_non_atomic_requests"] = transactions.EveryDatabase(marked)
        return asingle

    def run(
        self,
        view: View,
        read: Callable[..., Any],
        marked: Collection[str],
        request: Any,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Replay the answer to a request, or run the view and store what it answers.

        Raises:
            RuntimeError: this thread is in a transaction.
            NotReplayable: the response cannot be stored; the work is rolled back.
        """
        self.enter(request)
        request.idempotency_key = None
        databases = transactions.wanted(request, marked)
        work = None
        if request.method in self.methods:
            transactions.check_none(self.decorator, self.module)
            try:
                work = self._work(read, request, args, kwargs)
                done = work and self._replay(work)
            except Unkeyed as error:
                return self._refuse(error, request)
            if done is not None:
                return done
        if work is None:
            return transactions.atomic(view, databases)(request, *args, **kwargs)
        lock = self._lock.filled({"identity": work.identity}, template=LOCK)
        inside = [each for each in databases if each != work.database]
        start = monotonic()

        def do(request: Any, *args: Any, **kwargs: Any) -> Any:
            _refuse_to_begin(request)
            try:
                if monotonic() - start > LOOK_AGAIN and (done := self._replay(work)) is not None:
                    return done  # it has waited for a twin, whose record its INSERT would meet
                return self._do(work, view, inside, request, *args, **kwargs)
            except Unkeyed as error:  # a twin with another content was faster
                return self._refuse(error, request)

        # The transactions are opened in ``_do``, which may have to begin them anew.
        return self.run_locked(do, lock, (), request, *args, **kwargs)

    def _work(self, read: Callable[..., Any], request: Any, args: Any, kwargs: Any) -> Work | None:
        """Return what the request asks for; None: it has no key, and needs none."""
        try:
            identity = read(request, *args, **kwargs)
        except Missing:
            if self.required:
                raise
            return None
        request.idempotency_key = identity.key
        database = database_of(self.using)
        scope, key = identity
        return Work(scope, key, fingerprint(request), self.keep, database)

    def _replay(self, work: Work) -> HttpResponseBase | None:
        """Return the answer that was stored, if there is one.

        Raises:
            Unkeyed: it is that of another request.
        """
        record = work.find()
        if record is None:
            return None
        if record.fingerprint != work.fingerprint:
            raise answers.of_another_request(record)
        return replay(record)

    def _refuse(self, error: Unkeyed, request: Any) -> HttpResponseBase:
        # The log tells the developer what the client cannot mend: a person knows nothing of keys.
        of_clients = {"size", "other"} if self._key_is_sent else {"size"}
        if error.why not in of_clients | (OF_PROGRAMS if wants_json(request) else set()):
            text = f"a request to the idempotent of {self.line} gets a {error.status}"
            self.log(logging.WARNING, text, error)
        # A form that is opened again has a new key, and a session.
        helps = error.why != "size" and (error.why != "other" or self._key_is_sent)
        form = sending_page(request) if helps else ""
        refusal = KeyRefusal(error.status, None, error, form=form)
        return self.responder.respond(request, refusal)

    def _refusal(
        self, error: LockTaken | NodesUnavailable, request: Any, wait: Wait
    ) -> Refusal | None:
        refusal = super()._refusal(error, request, wait)
        if refusal is None or refusal.begun or not isinstance(error, LockTaken):
            return refusal
        return SentAgain(refusal.status, refusal.retry_after, error)

    # -- in the lock -----------------------------------------------------------------------------

    def _do(
        self, work: Work, view: View, inside: list[str], request: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        """Run the view in its transactions; if another has run it meanwhile, replay its answer."""
        left = TRIES
        while True:
            left -= 1
            try:
                return self._once(work, view, inside, request, *args, **kwargs)
            except (Begun, OperationalError) as error:
                # The view of a twin has run; or a serializable transaction found one at its COMMIT.
                try:
                    done = self._replay(work)
                except Error:  # as the first one
                    done = None
                if done is not None:
                    if not isinstance(error, Begun):  # of an on_commit function, perhaps
                        text = "a request is answered from its record after an error: %s"
                        logger.warning(text, error, exc_info=error)
                    return done
                if not isinstance(error, Begun):
                    raise  # the view may have run; whether it may run again, the client decides
                if left <= 0:
                    raise error.__cause__ or error from None

    def _once(
        self, work: Work, view: View, inside: list[str], request: Any, /, *args: Any, **kwargs: Any
    ) -> Any:
        databases = (work.database, *inside)

        def run(*args: Any, **kwargs: Any) -> Outcome:
            outcome = self._outcome(view, databases, request, *args, **kwargs)
            if outcome.answer is None:
                for each in inside:
                    transaction.set_rollback(True, using=each)
            return outcome

        # Django's own block commits on SQLite and MySQL what a signal handler's exception keeps
        # it from rolling back.
        begun = transactions.under_lock(work.database)
        try:
            begun.begin(weakref.ref(run))
            record = work.begin()
            outcome = transactions.atomic(run, inside)(*args, **kwargs)
            if outcome.answer is not None:
                work.finish(record, **outcome.answer)
                begun.commit()
        finally:
            begun.roll_back()  # unless it is committed
        if outcome.afterwards is None:
            return outcome.response
        # Each in a transaction again, which REST framework may mark for a rollback.
        response = transactions.atomic(outcome.afterwards, databases)()
        return self._put(work, self._complete(request, response, kwargs))

    def _outcome(
        self, view: View, databases: Collection[str], request: Any, /, *args: Any, **kwargs: Any
    ) -> Outcome:
        """Run the view, in the transactions of these databases."""
        response = self.answering(view, request, *args, **kwargs)
        if isinstance(response, Outcome):
            return response
        if any(transactions.is_spoiled(connections[each]) for each in databases):
            # By set_rollback(), or after an error that the view has caught: nothing more can be
            # read here.
            return Outcome(afterwards=functools.partial(self._undone, request, response, kwargs))
        response = self._complete(request, response, kwargs)
        return Outcome(response, self.storing.answer_of(response))

    def _undone(self, request: Any, response: Any, arguments: Any) -> Any:
        """Return a response whose work is rolled back.

        Raises:
            NotReplayable: it tells of a success, which no repetition would find.
        """
        response = self._complete(request, response, arguments)
        if response.status_code < answers.ERROR:
            raise NotReplayable(
                f"the view answered {response.status_code}, and its work is rolled back: it caught "
                "an error of the database without a savepoint, closed the connection, or called "
                "set_rollback(True). Put what may fail into a transaction.atomic() of its own"
            )
        return response

    def _put(self, work: Work, response: Any) -> Any:
        """Store the response of a work that was rolled back, still under the lock."""
        answer = self.storing.answer_of(response)
        if answer is not None:
            try:
                work.put(**answer)
            except Begun:  # there was no lock, and a twin was faster
                return self._replay(work) or response
        return response

    def _complete(self, request: Any, response: Any, arguments: Any) -> Any:
        """Return the response of a view with its body: what renders it may read the database."""
        if not isinstance(response, HttpResponseBase):
            from .ninja import response_of  # which knows how an operation answers

            response = response_of(request, response, arguments)
        if not getattr(response, "is_rendered", True):
            response = response.render()
        return response


def _refuse_to_begin(request: Any) -> None:
    """Raise what a task is cancelled by, if the client of an async view has gone.

    A thread that waits for its turn cannot be cancelled. Older releases of asgiref wait for it in
    the event loop, where it would then wait for its view for ever.
    """
    if getattr(request, LEFT, False):
        raise asyncio.CancelledError

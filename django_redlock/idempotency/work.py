"""``idempotent_work``: work outside of views that is done once, and its result.

    @shared_task(acks_late=True, reject_on_worker_lost=True, autoretry_for=(LockTaken,))
    def charge(order_id):
        with idempotent_work("charge", order_id) as work:
            if not work.done:
                work.result = {"receipt": pay(order_id)}
        return work.result

A message that is delivered again returns the first result. While the first delivery is at work, the
second one waits for it; then it raises LockTaken, and the task comes back later.
"""

from __future__ import annotations

import hashlib
import json
from contextlib import ExitStack
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from django.core.serializers.json import DjangoJSONEncoder

from django_redlock import redlock
from django_redlock.core.names import is_record
from django_redlock.locks.advice import advised, unknown_keywords
from django_redlock.locks.atomic import checked_using

from .decorator import DAY, TRIES, WAIT
from .records import Begun, Work, database_of, kept_for

if TYPE_CHECKING:
    from .models import Record

UNASKED: Final = (
    "the block of idempotent_work(%r, %r) runs its body each time, also when the work was done "
    "before: write 'with idempotent_work(…) as work:' and, around the work, 'if not work.done:'"
)
OPTIONS: Final = ("alias", "ttl", "wait", "max_hold")  # of the lock
NAME: Final = "idempotency:{scope}:{key}"  # of the lock; what refuses a second delivery shows it


class IdempotentWork:
    """Work that is done once, for a ``with`` statement; ``idempotent_work`` makes it.

    Python runs the body of the block anyway, so the body asks ``done``.
    """

    def __init__(self, work: Work, lock: Any) -> None:
        self._work: Final = work
        self._lock: Final = lock
        self._block = ExitStack()
        self._record: Record | None = None
        self._asked = self._done = False
        self._result: Any = None

    @property
    def done(self) -> bool:
        """Whether the work was done before; ``result`` is that of the first time then."""
        self._asked = True
        return self._done

    @property
    def result(self) -> Any:
        """What is stored if the block ends without an exception; anything that JSON can have.

        Dates, UUIDs and decimals become texts. Where ``done``, it is that of the first time.

        Raises:
            RuntimeError: it is set where nothing stores it: the work is done already, or the block
                is over.
        """
        return self._result

    @result.setter
    def result(self, result: Any) -> None:
        if self._record is None:
            raise RuntimeError(
                f"the result of {self._work.scope!r} under the key {self._work.key!r} is not "
                "stored: set it inside of the block, and do that and the work if not work.done"
            )
        self._result = result

    def __enter__(self) -> Self:
        self._result, self._asked = None, False
        self._done = self._find()
        if self._done:
            return self
        for left in reversed(range(TRIES)):
            try:
                with ExitStack() as block:
                    block.enter_context(self._lock.atomic(self._work.database))
                    self._record = self._work.begin()
                    self._block = block.pop_all()
                break
            except Begun as begun:
                self._done = self._find()
                if self._done:
                    break
                if not left:
                    raise begun.__cause__ or begun from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        record, self._record = self._record, None
        if error is not None:
            self._block.__exit__(kind, error, trace)
            return
        with self._block:  # which holds nothing where the work was done before
            if not self._asked:
                raise RuntimeError(UNASKED % (self._work.scope, self._work.key))
            if record is not None:
                self._work.finish(record, body=_text(self.result))

    def _find(self) -> bool:
        record = self._work.find()
        if record is None:
            return False
        if record.status is not None or record.fingerprint != self._work.fingerprint:
            raise ValueError(
                f"{self._work.scope!r} has done something else under the key {self._work.key!r}"
            )
        self._result = json.loads(bytes(record.body or b"null"))
        return True


@advised("idempotent_work('charge', order_id): a scope and a key")
def idempotent_work(
    scope: str,
    key: object,
    *,
    keep: timedelta | float = DAY,
    using: str | None = None,
    fingerprint: str = "",
    **options: Any,
) -> IdempotentWork:
    """Return work that is done once: a task that is delivered again returns its first result.

    The block runs in a transaction of the database, in a lock, as by ``redlock(...).atomic()``. If
    it raises, the transaction rolls back, and the next time is a first one. Python runs the block
    anyway, so its body asks ``work.done``: one that does not is rolled back by a RuntimeError.

    Args:
        scope: whose keys they are, e.g. the name of the task.
        key: of the work: its text counts.
        keep: for how long the result is kept: a ``timedelta``, or seconds.
        using: the database that the work writes to, and which has the record. None: that to which
            Django's routers write the model of the records.
        fingerprint: a text that tells the work from another one under the same key.
        options: of the lock: ``alias``, ``ttl``, ``max_hold``; and ``wait``: seconds to wait while
            the same work is being done elsewhere, 5 by default; None: the alias's WAIT. Nothing
            waits while no majority of the nodes can be asked.

    Raises:
        TypeError, ValueError: an argument makes no sense.

    Entering it raises what a lock raises; ValueError, where another work has been done under the
    key; and RuntimeError inside a transaction.
    """
    for name, value in (("scope", scope), ("fingerprint", fingerprint)):
        if not isinstance(value, str):
            raise TypeError(f"{name} must be a text, not {type(value).__name__}")
    if is_record(key):
        raise TypeError(
            f"the key of idempotent_work is a {type(key).__name__}, whose text may change, and be "
            "that of others: give its pk"
        )
    if key is None or isinstance(key, bytes) or not str(key) or not scope:
        raise ValueError(f"idempotent_work needs a scope and a key, not {scope!r} and {key!r}")
    if unknown := options.keys() - set(OPTIONS):
        raise unknown_keywords("idempotent_work", sorted(unknown), OPTIONS)
    if fingerprint:  # of any length
        fingerprint = hashlib.sha256(fingerprint.encode()).hexdigest()
    work = Work(scope, str(key), fingerprint, kept_for(keep), database_of(checked_using(using)))
    alias, named = options.pop("alias", None), {"scope": scope, "key": str(key)}
    template = redlock.using(alias, durable=True, waits_for="holder", **{"wait": WAIT} | options)
    return IdempotentWork(work, template(NAME).filled(named, template=NAME))


def _text(result: Any) -> bytes:
    try:
        return json.dumps(result, cls=DjangoJSONEncoder).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"the result of idempotent_work cannot be stored as JSON: {error}"
        ) from error

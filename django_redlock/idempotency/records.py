"""A piece of work that is done once: look for its record, write it, both in one database.

The INSERT comes first in the transaction of the work. So the twin of a transaction waits there, on
the primary key, and its view does not run (PostgreSQL, MySQL); SQLite takes its write lock at once,
where a SELECT before it would make the INSERT fail with "database is locked".

The clock is the database's: of several web servers each may have another time.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final

from django.db import IntegrityError, OperationalError, router, transaction
from django.db.models import F, Q
from django.db.models.functions import Now
from django.db.models.lookups import GreaterThan

from .models import Record

LONGEST_KEPT: Final = timedelta(days=36525)  # beyond, dates end
LONGEST: Final = 255  # characters of scope and key that are shown; the identity has all


class Clock(Now):
    """The time of the database; in UTC where its connections may have a time zone each."""

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """Return the function of MySQL and MariaDB."""
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **context)


class Begun(Exception):  # noqa: N818 - what has happened
    """Another transaction has the record, or had it when this one wanted to write it."""


@dataclass(slots=True)
class Work:
    """One piece of work.

    Attributes:
        scope: the name of whose keys they are.
        key: the key of the work within the scope.
        fingerprint: a digest of what is to be done; "" where nothing but the key tells it.
        keep: the time for which the record is kept.
        database: the alias of the database that has the record.
        identity: the primary key of the record.
    """

    scope: str
    key: str
    fingerprint: str
    keep: timedelta
    database: str
    identity: str = field(init=False)
    _void: bool = field(default=False, init=False)  # a record is there that says nothing more

    def __post_init__(self) -> None:
        # The length keeps a scope from running into the key.
        text = f"{len(self.scope)}:{self.scope}{self.key}"
        self.identity = hashlib.sha256(text.encode()).hexdigest()

    def find(self) -> Record | None:
        """Return the record of the work, if it was done and the record is still kept."""
        records = Record.objects.using(self.database).filter(pk=self.identity)
        found = records.annotate(kept=GreaterThan(F("expires"), Clock())).first()
        counts = found is not None and found.finished and found.kept
        self._void = found is not None and not counts
        return found if counts else None

    def begin(self) -> Record:
        """Write the record, at the beginning of the transaction of the work.

        Raises:
            Begun: it is there, or the database could not do it now; roll back, and look again.
        """
        record = self._record()
        self._insert(record)
        return record

    def _insert(self, record: Record) -> None:
        try:
            if self._void:
                # Its time is over; or a statement of the view was an implicit COMMIT, as CREATE
                # TABLE is on MySQL, and the view has failed then.
                void = Q(expires__lte=Clock()) | Q(finished=None)
                Record.objects.using(self.database).filter(void, pk=self.identity).delete()
            record.save(using=self.database, force_insert=True)
        # A database that serializes transactions, or finds a deadlock, says it in the latter way.
        except (IntegrityError, OperationalError) as error:
            raise Begun from error

    def finish(self, record: Record, **answer: Any) -> None:
        """Fill the record, at the end of the same transaction.

        Args:
            answer: ``status``, ``headers`` and ``body``.
        """
        for name, value in answer.items():
            setattr(record, name, value)
        record.finished = Clock()
        record.save(using=self.database, update_fields=[*answer, "finished"])

    def put(self, **answer: Any) -> None:
        """Write a whole record, in a transaction of its own: that of the work rolls back.

        Raises:
            Begun: another has written one, or the database could not do it now.
        """
        record = self._record(finished=Clock(), **answer)
        with transaction.atomic(using=self.database):
            self._insert(record)

    def _record(self, **more: Any) -> Record:
        return Record(
            identity=self.identity,
            scope=self.scope[:LONGEST],
            key=self.key[:LONGEST],
            fingerprint=self.fingerprint,
            begun=Clock(),
            expires=Clock() + self.keep,
            **more,
        )


def database_of(using: str | None) -> str:
    """Return the alias of the database that has the records; None: what the routers say."""
    return router.db_for_write(Record) if using is None else using


def kept_for(keep: object) -> timedelta:
    """Return for how long a record is kept, of a ``timedelta`` or a number of seconds.

    Raises:
        TypeError, ValueError: it is none, or not above 0.
    """
    if isinstance(keep, int | float) and not isinstance(keep, bool):
        try:
            keep = timedelta(seconds=keep)
        except (OverflowError, ValueError) as error:
            raise ValueError(f"keep={keep!r} is no time in which a record can be kept") from error
    if not isinstance(keep, timedelta):
        raise TypeError(f"keep must be a timedelta or seconds, not {type(keep).__name__}")
    if not timedelta(0) < keep <= LONGEST_KEPT:
        raise ValueError(f"keep must be above 0 and at most 100 years, not {keep!r}")
    return keep

"""What becomes of a message that is delivered again, or whose key is held.

**A refused message** is skipped, sent again for later, or fails. A run leaves the id of its message
in the keys. A run that is refused by its own id is a second copy of a message that is running: it
was delivered again because the first was taken for lost. The copy must wait, for the first may yet
die. A run that is refused by another id is a duplicate, and ``on_conflict`` decides.

**A message that has finished** does not run again. A copy must run if the first run died, wait
while it lives, and end if it has finished. So a run takes a lock on its *run name* before it takes
its key, and holds it until the result is stored. Then the run name becomes a completion record:
``core.completion`` has the rules. The adapter knows which messages are copies of one another, and
when the result is stored.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, TypeAlias

from django_redlock import conf
from django_redlock.backend import LABEL_BYTES, process_label
from django_redlock.core import completion
from django_redlock.core.errors import LockTaken, NodesUnavailable
from django_redlock.core.policy import LONGEST
from django_redlock.core.protocol import one_or_all
from django_redlock.core.reasons import ReasonCode
from django_redlock.leases import context
from django_redlock.leases.lease import Lease
from django_redlock.locks.lock import Lock, tell_refusal
from django_redlock.locks.template import LockTemplate

from .marks import short_id, short_name
from .plan import Plan

logger = logging.getLogger("django_redlock")
FINISHED: Final = "%s[%s] has finished before: this copy does not run"
ROOM: Final = 60.0  # seconds for which a record stays after a copy may be delivered
Refusal: TypeAlias = LockTaken | NodesUnavailable


class Skipped(dict[str, Any]):
    """The result of a message that was skipped; plain data, so that any serializer takes it.

    ``{"skipped": True, "reason": "…", "retry_after": seconds or None}``
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(skipped=True, reason=reason, retry_after=retry_after)

    @classmethod
    def by(cls, refusal: Refusal) -> Skipped:
        """Return that of a message whose key is held."""
        left = refusal.retry_after if isinstance(refusal, LockTaken) else None
        return cls("the key is held", None if left is None else round(left, 3))


def label_of(task: str, task_id: str) -> str:
    """Return the owner label of a run, ``host:process(task):task_id``."""
    run = f"({short_name(task)}):{short_id(task_id)}"
    host, _, pid = process_label().rpartition(":")
    host = host.encode()[: LABEL_BYTES - len(pid) - len(run) - 1].decode(errors="ignore")
    return f"{host}:{pid}{run}"


def count(value: object) -> int:
    """Return a count that came with a message, which anybody may have written; else 0."""
    return value if type(value) is int and 0 <= value <= LONGEST else 0


# -- a message that is refused --------------------------------------------------------------------


class Fate(enum.Enum):
    """What becomes of a message that is refused."""

    FINISHED = "it has finished in an earlier run"
    LATER = "it comes back later"
    SKIPPED = "it ends as a success, without a run"
    FAILED = "it fails with the refusal"


def fate_of(
    plan: Plan, refusal: Refusal, *, has_message: bool, is_own: bool, may_have_run: bool
) -> Fate:
    """Decide what becomes of a message that is refused.

    Without a majority ``on_unavailable`` says what to do, and nothing is ever skipped.

    Args:
        plan: how the task is locked.
        refusal: of the run name or of the key.
        has_message: whether the call is the run of a message, which can come back.
        is_own: whether an earlier run of the message lives.
        may_have_run: whether the message may have had an earlier run.
    """
    if has_message and not _is_holder(refusal):
        if is_own and refusal.code == ReasonCode.RECORDED:  # else of the work of the key
            return Fate.FINISHED
        wanted = plan.on_conflict if isinstance(refusal, LockTaken) else plan.on_unavailable
        if is_own or wanted == "retry" or (wanted == "skip" and may_have_run):
            return Fate.LATER
    if isinstance(refusal, LockTaken) and plan.on_conflict == "skip":
        return Fate.SKIPPED
    return Fate.FAILED


def names_itself(refusal: Refusal, task_id: str) -> bool:
    """Return True if what holds the key is an earlier run of the message with this id.

    Any majority includes a node of the holder. A label without a task id ends in a process id,
    which may look like a task id.
    """
    own = short_id(task_id)
    return any(vote.holder.rsplit(":", 2)[2:] == [own] for vote in refusal.votes)


def _is_holder(refusal: Refusal) -> bool:
    """Return True if this call stack holds what it was refused: a body that locks its own key."""
    names = {refusal.name} if isinstance(refusal.name, str) else set(refusal.name)
    return any(names.intersection(lease.names) for lease in context.leases())


# -- a message that has finished ------------------------------------------------------------------


class RunName:
    """The lock that all runs of one message want, until one of them leaves a record.

    Args:
        task: the name of the task.
        number: of the message: the copies of one message have one number. None: there is no run
            name, for nothing would be delivered again, or it cannot be known.

    Attributes:
        lease: the lease of the run name; None: the run name is not held.
        meets_run: whether the run name was refused: an earlier run of the message lives.
    """

    def __init__(self, task: str, number: str | None) -> None:
        self.task, self.number = task, number
        self.lease: Lease | None = None
        self.meets_run = False

    def take(self, options: LockTemplate, lock: Lock, *, is_copy: bool) -> None:
        """Take the run name, if there is one, before the key is asked for.

        Args:
            options: of the lock, for the run name.
            lock: of the key; errors name it, and not the run name.
            is_copy: whether the message may have had an earlier run.

        Raises:
            LockTaken: an earlier run of the message lives; or, with the code "recorded", one has
                finished.
            NodesUnavailable: no majority of the nodes could be asked.
        """
        if self.number is None:
            return
        own = options.using(
            renew=True,
            min_hold=0,
            durable=False,
            waits_for="nodes",  # a copy that meets its run comes back later; a record wakes nobody
            thorough=is_copy,  # one completion record is enough to end a copy: hear all nodes
            foreign=self._own,
        )
        backend = conf.backend(lock.alias)
        began = backend.policy.clock()
        try:
            own.named(completion.RUN_NAME, task=self.task, number=self.number).acquire()
        except (LockTaken, NodesUnavailable) as error:
            self.meets_run = isinstance(error, LockTaken)
            error.name = one_or_all(lock.names)
            tell_refusal(backend, error, began, lock.template)
            raise

    def _own(self, lease: Lease) -> None:
        lease.told = True
        self.lease = lease

    def end(self, *, is_done: bool, life: float, task_id: str | None = None) -> None:
        """Leave a completion record, or release the run name.

        Args:
            is_done: whether there is a record.
            life: seconds for which it stays.
            task_id: of the message, for the log.
        """
        lease = self.lease
        if lease is None:
            return
        leave: Callable[[], object] = lease.release
        if is_done:
            leave = partial(record, lease, life)
        try:
            if leave() is False:
                text = "%s[%s] is done, and would run again if delivered again"
                logger.warning(text, self.task, task_id)
        except BaseException:  # a time limit, perhaps: the result is stored, and twice does no harm
            leave()
            raise
        finally:
            lease.disown()  # also where that was interrupted: nobody else ends its renewal
            self.lease = None


def record(lease: Lease, life: float) -> bool:
    """End a lease and leave completion records for its names.

    Args:
        lease: it has ended when this returns.
        life: seconds for which the records stay.

    Returns:
        Whether a majority of the nodes has them. They are written only where the names are still
        the lease's, and not at all if its time is over.
    """
    return lease.backend.run(lease.recording(life))

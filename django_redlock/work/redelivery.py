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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeAlias

from django_redlock import conf
from django_redlock.backend import LABEL_BYTES, process_label
from django_redlock.core import completion
from django_redlock.core.errors import LockTaken, NodesUnavailable
from django_redlock.core.policy import LONGEST
from django_redlock.core.protocol import one_or_all
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.events import TaskOutcome
from django_redlock.leases import context
from django_redlock.leases.lease import Lease
from django_redlock.locks.lock import Lock, tell_refusal
from django_redlock.locks.template import LockTemplate

from .marks import short_id, short_name
from .plan import Plan
from .publishing import notify

logger = logging.getLogger("django_redlock")
FINISHED: Final = "%s[%s] has finished before: this copy does not run"
ROOM: Final = 60.0  # seconds for which a record stays after a copy may be delivered
Refusal: TypeAlias = LockTaken | NodesUnavailable
Name: TypeAlias = str | tuple[str, ...]  # of a lock


class Skipped(dict[str, Any]):
    """The result of a message that was skipped; plain data, so that any serializer takes it.

    ``{"skipped": True, "reason": "…", "retry_after": seconds or None}``
    """

    def __init__(self, reason: str, retry_after: float | None = None) -> None:
        super().__init__(skipped=True, reason=reason, retry_after=retry_after)


def label_of(task: str, task_id: str) -> str:
    """Return the owner label of a run, ``host:process(task):task_id``."""
    run = f"({short_name(task)}):{short_id(task_id)}"
    host, _, pid = process_label().rpartition(":")
    host = host.encode()[: LABEL_BYTES - len(pid) - len(run) - 1].decode(errors="ignore")
    return f"{host}:{pid}{run}"


def count(value: object) -> int:
    """Return a count that came with a message, which anybody may have written; else 0."""
    return value if type(value) is int and 0 <= value <= LONGEST else 0


class Fate(enum.Enum):
    """What becomes of a message that is refused."""

    FINISHED = "it has finished in an earlier run"
    LATER = "it comes back later"
    SKIPPED = "it ends as a success, without a run"
    FAILED = "it fails with the refusal"


class Delivery:
    """A call of a locked function, and the message whose run it is, if it is one.

    An adapter says which message that is, when its result is stored, and how it is sent again.

    Args:
        plan: how the function is locked.
        name: of the task; "": the function was called directly.
        task_id: by which nodes know the message; None: there is none.
        number: of the message: the copies of one message have one number. None: there is no run
            name, for nothing would be delivered again, or it cannot be known.
        has_message: whether the call is the run of a message, which can come back.
        is_copy: whether the message was delivered before, or an earlier run of it was met.

    Attributes:
        lease: the lease of the run name; None: it is not held.
        meets_run: whether the run name was refused: an earlier run of the message lives.
        has_begun: whether the body has begun.
        is_sound: whether the lease of the key was good when the body ended.
    """

    def __init__(
        self,
        plan: Plan,
        name: str,
        task_id: str | None,
        number: str | None,
        *,
        has_message: bool,
        is_copy: bool,
    ) -> None:
        self.plan, self.name, self.task_id, self.number = plan, name, task_id, number
        self.has_message, self.is_copy = has_message, is_copy
        self.lease: Lease | None = None
        self.meets_run = self.has_begun = self.is_sound = False

    @property
    def label(self) -> str | None:
        """The owner label, ``host:process(task):task_id``; None: there is no task id."""
        return None if self.task_id is None else label_of(self.name, self.task_id)

    def notify(self, outcome: TaskOutcome, lock: Lock, name: Name, **more: Any) -> None:
        """Let signals and metrics know what became of the message, if it is a task's."""
        if self.name:
            more |= {"alias": lock.alias, "name": name, "template": lock.template}
            notify(outcome, self.name, self.task_id, **more)

    @contextmanager
    def body(self, lease: Lease | None) -> Iterator[None]:
        """Run the body in the block; note that it has begun, and how the lease has fared.

        Args:
            lease: of the key; None: the body runs without a lock.
        """
        self.has_begun = True
        try:
            yield
        finally:
            self.is_sound = lease is not None and lease.remaining() > 0

    # -- a message that is refused ----------------------------------------------------------------

    def meets_itself(self, refusal: Refusal) -> bool:
        """Return True if an earlier run of this message lives.

        Any majority includes a node of the holder. A label without a task id ends in a process id,
        which may look like a task id.
        """
        if not self.has_message or self.task_id is None:
            return False
        own = short_id(self.task_id)
        holders = [vote.holder.rsplit(":", 2)[2:] for vote in refusal.votes]
        return self.meets_run or [own] in holders

    def waits_for_slot(self, refusal: Refusal) -> bool:
        """Return True if all slots of the limit are held, and the message waits for one of them."""
        return self.plan.limit is not None and isinstance(refusal, LockTaken) and not self.meets_run

    def fate(self, refusal: Refusal, *, is_own: bool, may_have_run: bool) -> Fate:
        """Decide what becomes of a message that is refused.

        Without a majority ``on_unavailable`` says what to do, and nothing is ever skipped.

        Args:
            refusal: of the run name or of the key.
            is_own: whether an earlier run of the message lives.
            may_have_run: whether the message may have had an earlier run.
        """
        plan = self.plan
        if self.has_message and not _is_holder(refusal):
            if is_own and refusal.code == ReasonCode.RECORDED:  # else of the work of the key
                return Fate.FINISHED
            wanted = plan.on_conflict if isinstance(refusal, LockTaken) else plan.on_unavailable
            if is_own or wanted == "retry" or (wanted == "skip" and may_have_run):
                return Fate.LATER
        if isinstance(refusal, LockTaken) and plan.on_conflict == "skip":
            return Fate.SKIPPED
        return Fate.FAILED

    def skip(self, refusal: Refusal, lock: Lock) -> Skipped:
        """Return what a message ends with that is skipped."""
        self.notify(TaskOutcome.SKIPPED, lock, refusal.name, error=refusal)
        left = refusal.retry_after if isinstance(refusal, LockTaken) else None
        return Skipped("the key is held", None if left is None else round(left, 3))

    def skip_done(self, lock: Lock, at: datetime) -> Skipped:
        """Return what a message ends with, since the work of its key was done then."""
        name = one_or_all(lock.names)
        error = LockTaken(because(ReasonCode.RECORDED), name=name)
        self.notify(TaskOutcome.SKIPPED, lock, name, error=error)
        return Skipped(f"the work was done at {at.isoformat(timespec='seconds')}")

    # -- a message that has finished --------------------------------------------------------------

    def note_finished(self, lock: Lock, name: Name, text: str = FINISHED) -> None:
        """Say that an earlier run of the message has finished."""
        logger.info(text, self.name, self.task_id)
        self.notify(TaskOutcome.FINISHED_BEFORE, lock, name)

    def take(self, options: LockTemplate, lock: Lock) -> None:
        """Take the run name, if there is one, before the key is asked for.

        Args:
            options: of the lock, for the run name.
            lock: of the key; errors name it, and not the run name.

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
            thorough=self.is_copy,  # one completion record is enough to end a copy: hear all nodes
            foreign=self._own,
        )
        backend = conf.backend(lock.alias)
        began = backend.policy.clock()
        try:
            own.named(completion.RUN_NAME, task=self.name, number=self.number).acquire()
        except (LockTaken, NodesUnavailable) as error:
            self.meets_run = isinstance(error, LockTaken)
            error.name = one_or_all(lock.names)
            tell_refusal(backend, error, began, lock.template, once=True)
            raise

    def _own(self, lease: Lease) -> None:
        lease.told = True
        self.lease = lease

    def leave(self, life: float, *, is_done: bool) -> None:
        """Leave a completion record in place of the run name, or release it.

        Args:
            life: seconds in which a copy may be delivered.
            is_done: whether there is a record.
        """
        lease = self.lease
        if lease is None:
            return
        leave: Callable[[], object] = lease.release
        if is_done:
            leave = partial(record, lease, life + ROOM)
        try:
            if leave() is False:
                text = "%s[%s] is done, and would run again if delivered again"
                logger.warning(text, self.name, self.task_id)
        except BaseException:  # a time limit, perhaps: the result is stored, and twice does no harm
            leave()
            raise
        finally:
            lease.disown()  # also where that was interrupted: nobody else ends its renewal
            self.lease = None


def _is_holder(refusal: Refusal) -> bool:
    """Return True if this call stack holds what it was refused: a body that locks its own key."""
    names = {refusal.name} if isinstance(refusal.name, str) else set(refusal.name)
    return any(names.intersection(lease.names) for lease in context.leases())


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

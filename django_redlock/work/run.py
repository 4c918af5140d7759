"""One run of a locked task: its run name, its key, its mark, the body; or what a refusal becomes.

``Run.perform`` tells the sequence, and ``Run.aperform`` the same for a coroutine function.

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

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeAlias

from asgiref.sync import sync_to_async

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
from django_redlock.locks.once import OnceRun

from .marks import Mark, short_id, short_name
from .plan import Plan
from .publishing import notify

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


def label_of(task: str, task_id: str) -> str:
    """Return the owner label of a run, ``host:process(task):task_id``."""
    run = f"({short_name(task)}):{short_id(task_id)}"
    host, _, pid = process_label().rpartition(":")
    host = host.encode()[: LABEL_BYTES - len(pid) - len(run) - 1].decode(errors="ignore")
    return f"{host}:{pid}{run}"


def count(value: object) -> int:
    """Return a count that came with a message, which anybody may have written; else 0."""
    return value if type(value) is int and 0 <= value <= LONGEST else 0


class Run:
    """A call of a locked function, and the message whose run it is, if it is one.

    An adapter says which message that is, how it comes back (``come_back``), and what it ends with
    if it has finished (``finished``). It calls ``end`` when the result is stored.

    Args:
        plan: how the function is locked.
        name: of the task; "": the function was called directly.
        task_id: by which nodes know the message; None: there is none.
        number: of the message: the copies of one message have one number. None: there is no run
            name, for nothing would be delivered again, or it cannot be known.
        args, kwargs: the arguments of the call.
        owned: whether the first of them is the task or the context, and none of the message.
        has_message: whether the call is the run of a message, which can come back.
        is_copy: whether the message was delivered before, or an earlier run of it was met.

    Attributes:
        lock: of the key.
        label: the owner label, ``host:process(task):task_id``; None: there is no task id.
        mark: of the message; None: it has none, or has none any more.
        mark_id: a task id, whose mark is removed whatever its nonce; "": none.
        may_have_run: whether the message may have had an earlier run.
        lease: the lease of the run name; None: it is not held.
        meets_run: whether the run name was refused: an earlier run of the message lives.
        is_granted: whether the key was granted.
        has_begun: whether the body has begun.
        is_sound: whether the lease of the key was good when the body ended.
    """

    lock: Lock

    def __init__(
        self,
        plan: Plan,
        *,
        name: str,
        task_id: str | None,
        number: str | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        owned: bool,
        has_message: bool,
        is_copy: bool,
    ) -> None:
        self.plan, self.name, self.task_id, self.number = plan, name, task_id, number
        self.args, self.kwargs, self.owned = args, kwargs, owned
        self.has_message, self.is_copy = has_message, is_copy
        self.may_have_run = is_copy
        self.label = None if task_id is None else label_of(name, task_id)
        self.mark: Mark | None = None
        self.mark_id = ""
        self.lease: Lease | None = None
        self.meets_run = self.is_granted = self.has_begun = self.is_sound = False

    # -- the sequence -----------------------------------------------------------------------------

    def perform(self, body: Callable[[], Any]) -> Any:
        """Run the body under run name and key, or do with the refusal what the plan says."""
        try:
            self.prepare()
            try:
                self.take()
                with self.plan.block(self.lock) as found:
                    lease, at = self.enter(found)
                    self.drop_mark()  # the lock is the mark from here on
                    if at is not None:
                        return self.skip_done(at)
                    self.begin()
                    try:
                        return body()
                    finally:
                        self.is_sound = lease.remaining() > 0
            except (LockTaken, NodesUnavailable) as error:
                if self.is_granted:  # the body's own
                    raise
                refusal = error
            finally:
                if not self.has_begun:
                    self.end()
            # Outside of ``except``: what is raised or logged from here has no refusal as its cause.
            if not self.goes_unlocked(refusal):
                return self.refuse(refusal)
            self.drop_mark()
            self.begin()
            return body()
        finally:
            self.drop_mark()  # of what has failed or was interrupted, and so waits no more

    async def aperform(self, body: Callable[[], Any]) -> Any:
        """Run the body as ``perform`` does, in a task: a run that waits for its key has no thread.

        What asks the nodes besides, or the queue, does it in a thread.
        """
        try:
            self.prepare()
            try:
                if self.number is not None:
                    await sync_to_async(self.take)()
                async with self.plan.block(self.lock) as found:
                    lease, at = self.enter(found)
                    await self._adrop_mark()
                    if at is not None:
                        return await sync_to_async(self.skip_done)(at)
                    self.begin()
                    try:
                        return await body()
                    finally:
                        self.is_sound = lease.remaining() > 0
            except (LockTaken, NodesUnavailable) as error:
                if self.is_granted:
                    raise
                refusal = error
            finally:
                if self.lease is not None and not self.has_begun:
                    await sync_to_async(self.end)()
            if not self.goes_unlocked(refusal):
                return await sync_to_async(self.refuse)(refusal)
            await self._adrop_mark()
            self.begin()
            return await body()
        finally:
            await self._adrop_mark()

    def prepare(self) -> None:
        """Make the lock of the key; an adapter may find the mark by it."""
        self.lock = self.plan.lock_of_call(
            self.name, self.args, self.kwargs, label=self.label, owned=self.owned
        )

    def enter(self, found: Lease | OnceRun) -> tuple[Any, datetime | None]:
        """Note that the key is granted; return its lease, or when its work was done before."""
        self.is_granted = True
        return found if isinstance(found, OnceRun) else (found, None)

    def begin(self) -> None:
        """Note that the body begins."""
        self.has_begun = True

    def goes_unlocked(self, refusal: Refusal) -> bool:
        """Return True, and log it, if the body runs all the same, without the lock."""
        if self.plan.on_unavailable != "run" or not isinstance(refusal, NodesUnavailable):
            return False
        logger.warning("%r is not locked: %s", self.lock, refusal)
        return True

    # -- its mark ---------------------------------------------------------------------------------

    def drop_mark(self, *, only_own: bool = False) -> None:
        """Remove the mark, of a message whose body begins, or that ends without the lock.

        Args:
            only_own: whether the mark of another nonce stays, also that of ``mark_id``.
        """
        if self.mark is not None:
            self.mark.remove(task_id="" if only_own else self.mark_id)
            self.mark = None  # afterwards: at the end it is removed again if this was interrupted

    async def _adrop_mark(self) -> None:
        if self.mark is not None:
            await sync_to_async(self.drop_mark)()

    # -- a message that is refused ----------------------------------------------------------------

    def refuse(self, refusal: Refusal) -> Any:
        """Skip the message, or send it again for later, or raise the refusal.

        Without a majority ``on_unavailable`` says what to do, and nothing is ever skipped.

        Args:
            refusal: of the run name or of the key.
        """
        plan, is_taken = self.plan, isinstance(refusal, LockTaken)
        skips = is_taken and plan.on_conflict == "skip"
        if self.has_message and not _is_holder(refusal):
            own = self.meets_itself(refusal)
            again = own or self.may_have_run
            if own and refusal.code == ReasonCode.RECORDED:  # else of the work of the key
                self.drop_mark()
                self.note_finished()
                return self.finished()
            wanted = plan.on_conflict if is_taken else plan.on_unavailable
            if own or wanted == "retry" or (skips and again):
                if self.can_come_back:
                    return self.come_back(refusal, is_own=own, again=again)
                skips = False
        self.drop_mark()
        if not skips:
            raise refusal
        self.notify(TaskOutcome.SKIPPED, error=refusal)
        left = refusal.retry_after if isinstance(refusal, LockTaken) else None
        return Skipped("the key is held", None if left is None else round(left, 3))

    def meets_itself(self, refusal: Refusal) -> bool:
        """Return True if an earlier run of this message lives.

        Any majority includes a node of the holder. A label without a task id ends in a process id,
        which may look like a task id.
        """
        if self.task_id is None:
            return False
        own = short_id(self.task_id)
        holders = [vote.holder.rsplit(":", 2)[2:] for vote in refusal.votes]
        return self.meets_run or [own] in holders

    @property
    def can_come_back(self) -> bool:
        """Whether the message can be sent again for later."""
        return True

    def come_back(self, refusal: Refusal, *, is_own: bool, again: bool) -> Any:
        """Send the message again for later, and return what this run ends with, or raise it.

        Args:
            is_own: whether an earlier run of the message lives.
            again: whether the message may have had an earlier run.
        """
        raise NotImplementedError

    def waits_for_slot(self, refusal: Refusal) -> bool:
        """Return True if all slots of the limit are held, and the message waits for one of them."""
        return self.plan.limit is not None and isinstance(refusal, LockTaken) and not self.meets_run

    def skip_done(self, at: datetime) -> Skipped:
        """Return what a message ends with, since the work of its key was done then."""
        name = one_or_all(self.lock.names)
        error = LockTaken(because(ReasonCode.RECORDED), name=name)
        self.notify(TaskOutcome.SKIPPED, error=error)
        return Skipped(f"the work was done at {at.isoformat(timespec='seconds')}")

    def notify(self, outcome: TaskOutcome, **more: Any) -> None:
        """Let signals and metrics know what became of the message, if it is a task's."""
        if self.name:
            notify(outcome, self.name, self.task_id, self.lock, **more)

    # -- a message that has finished --------------------------------------------------------------

    def redelivered_for(self) -> float:
        """Return the seconds in which a copy may be delivered."""
        raise NotImplementedError

    def finished(self) -> Any:
        """Return, or raise, what a copy of a finished message ends with."""
        raise NotImplementedError

    def note_finished(self, text: str = FINISHED) -> None:
        """Say that an earlier run of the message has finished."""
        logger.info(text, self.name, self.task_id)
        self.notify(TaskOutcome.FINISHED_BEFORE)

    def take(self) -> None:
        """Take the run name, if there is one, before the key is asked for; errors name the key.

        Raises:
            LockTaken: an earlier run of the message lives; or, with the code "recorded", one has
                finished.
            NodesUnavailable: no majority of the nodes could be asked.
        """
        if self.number is None:
            return
        run_name = self.plan.template.using(
            label=self.label,
            renew=True,
            min_hold=0,
            durable=False,
            waits_for="nodes",  # a copy that meets its run comes back later; a record wakes nobody
            thorough=self.is_copy,  # one completion record is enough to end a copy: hear all nodes
            foreign=self._own,
        ).named(completion.RUN_NAME, task=self.name, number=self.number)
        backend = conf.backend(run_name.alias)
        began = backend.policy.clock()
        try:
            run_name.acquire()
        except (LockTaken, NodesUnavailable) as error:
            self.meets_run = isinstance(error, LockTaken)
            error.name = one_or_all(self.lock.names)
            tell_refusal(backend, error, began, self.lock.template, once=True)
            raise

    def _own(self, lease: Lease) -> None:
        lease.tell_once()
        self.lease = lease

    def end(self, *, is_stored: bool = False) -> None:
        """Leave a completion record in place of the run name, or release it.

        Args:
            is_stored: whether the result of the body is stored, so that no copy needs to run.
        """
        lease = self.lease
        if lease is None:
            return
        leave: Callable[[], object] = lease.release
        if is_stored and self.is_sound:
            leave = partial(record, lease, self.redelivered_for() + ROOM)
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

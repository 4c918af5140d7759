"""Renew the leases of a process, and tell their holders when one is lost.

A process has one watchdog thread for all its leases, also for those that tasks have taken: so a
blocked event loop keeps its leases. A lease is renewed at a third of its ttl, together with all
others of its group that are nearly due. At its deadline, whatever the network does, it is lost.

    RenewalSchedule   when there is something to do for which lease; no thread and no node
    RenewalBatch      one request that renews many leases; ``Healing``: one that heals one lease
    Watchdog          does both, by a thread and its workers

The simulation in the tests plays schedule and batches without the watchdog.
"""

from __future__ import annotations

import functools
import logging
import math
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from django_redlock.backend import Backend
from django_redlock.core import hold
from django_redlock.core.errors import NodesUnavailable
from django_redlock.core.hold import Outcome
from django_redlock.core.policy import boottime
from django_redlock.core.protocol import Grant, Steps
from django_redlock.core.reasons import ReasonCode, because
from django_redlock.interruption import ThreadWakeup, drain, first
from django_redlock.nodes.background import WorkerThreads, call_in_child

from .lease import Lease

logger = logging.getLogger("django_redlock")

EARLY: Final = 0.03  # the part of a ttl by which a renewal may be early, to share a message
AHEAD: Final = 0.25  # seconds by which deadlines are looked at early: most have moved by then
# A request must fit into what a fresh connection takes at once, and keep no node busy for long.
MOST_LEASES: Final = 128
MOST_BYTES: Final = 16_384
MOST_TOLD: Final = 32  # holders that are being told of a loss at the same time

# -- when -----------------------------------------------------------------------------------------
# A schedule keeps the lease of a ``with`` block until the lease ends, so that a loss is told where
# the block is gone. It keeps no other lease alive that the program has forgotten: of that it warns.
#
# A lease has one entry in one dictionary, with the time at which there is something to do for it.
# An entry is put and dropped in one step, and never changed: a block begins and ends without a
# lock. All of them are looked through when something is due: 10,000 leases cost a millisecond.

Reference: TypeAlias = "weakref.ref[Lease]"


class Due(NamedTuple):
    """What there is to do for a lease next: its renewal, or to see that its time is up.

    Attributes:
        at: the time at which it is due, on the clock of the deadline.
        not_before: the time from which it may be done together with others.
        waiting: True if a renewal waits that is not on its way yet.
        kept: the lease, if it is that of a block; else its grant, which says of a lease that the
            program has forgotten what it was.
    """

    at: float
    not_before: float
    waiting: bool
    kept: Lease | Grant


class Found(NamedTuple):
    """A lease for which there may be something to do.

    Attributes:
        due: its entry, if it is not taken.
        deadline: the time at which it is lost.
        lease: the lease.
    """

    due: Due
    deadline: float
    lease: Lease

    def may_be_renewed(self, now: float) -> bool:
        """Return True if its renewal is due, or near enough to go with others."""
        due = self.due
        waiting = due.waiting and due.at < self.deadline  # else that is the deadline's time
        return waiting and due.not_before <= now < self.deadline and self.lease.held


class RenewalSchedule:
    """When there is something to do for which lease.

    Any thread may add and forget leases, and ask for them; the rest is not thread-safe.

    The entry of a lease has the time of its renewal; while it is being renewed, or if it never
    is, that of its deadline. Both may have moved since: what the lease says counts.

    Attributes:
        forgotten: of leases that the program has forgotten and nobody released.
    """

    def __init__(self) -> None:
        self._entries: dict[Reference, Due] = {}
        self.forgotten: deque[Grant] = deque(maxlen=MOST_TOLD)

    # -- one lease ------------------------------------------------------------------------------

    def add(self, lease: Lease) -> float:
        """Schedule a lease until it ends; return when there is something to do for it first."""
        due = self._due_of(lease)
        lease.schedule = self
        self._entries[weakref.ref(lease)] = due
        return due.at

    def forget(self, lease: Lease) -> None:
        """Drop a lease that has ended."""
        self._entries.pop(weakref.ref(lease), None)

    def renew_later(self, lease: Lease) -> float:
        """Schedule the next renewal of a lease, if it is to be renewed; return when it is due."""
        if lease.schedule is not self or not lease.held:
            return math.inf
        due = self._due_of(lease)
        self._put(lease, due)
        return due.at

    def _put(self, lease: Lease, due: Due) -> None:
        """Give a lease another entry; another thread may end the lease at any time."""
        self._entries[weakref.ref(lease)] = due
        if not _is_watched(lease):
            self.forget(lease)

    def _due_of(self, lease: Lease, *, waiting: bool = True) -> Due:
        """Return the entry of a lease; ``waiting``: unless it is being renewed."""
        grant = lease.grant
        kept = grant if lease.block is None else lease
        deadline, renewal = grant.deadline, lease.renew_at if waiting else math.inf
        if renewal < deadline:
            return Due(renewal, renewal - EARLY * grant.ttl, waiting=True, kept=kept)
        return Due(deadline, deadline - AHEAD, renewal < math.inf, kept)

    # -- what there is to do --------------------------------------------------------------------

    def leases(self) -> Iterator[Lease]:
        """Yield the leases that are scheduled."""
        for reference in list(self._entries):  # in one step, as all copies of it
            if (lease := reference()) is not None:
                yield lease

    def next(self) -> float:
        """Return when there is something to do next; infinite: never."""
        return min(map(attrgetter("at"), list(self._entries.values())), default=math.inf)

    def take(self, now: float) -> tuple[list[Lease], list[Lease]]:
        """Take the leases whose time is up, and those to renew now, the most urgent first.

        If a renewal is due, all that may go with it are taken. The caller gives them back by
        ``renew_later``. What was renewed or extended by others meanwhile gets its new time.
        """
        found = list(self._look(now))
        over = [each for each in found if each.deadline <= now or each.lease.untold]
        due = [each for each in found if each.may_be_renewed(now)]
        if all(each.due.at > now for each in due):
            due = []
        over.sort(key=attrgetter("deadline"))
        due.sort(key=attrgetter("due.at"))
        for each in found:
            self._put(each.lease, each.due)
        for each in due:
            self._put(each.lease, self._due_of(each.lease, waiting=False))
        for each in over:
            self.forget(each.lease)
        return [each.lease for each in over], [each.lease for each in due]

    def _look(self, now: float) -> Iterator[Found]:
        """Yield the leases that may be due; drop those that have ended, or were forgotten."""
        for reference, due in self._entries.copy().items():
            lease = reference()
            if lease is None:
                if self._entries.pop(reference, None) and isinstance(due.kept, Grant):
                    self.forgotten.append(due.kept)
            elif due.not_before <= now:
                if _is_watched(lease):
                    entry = self._due_of(lease, waiting=due.waiting)
                    yield Found(entry, lease.grant.deadline, lease)
                else:
                    self.forget(lease)


def _is_watched(lease: Lease) -> bool:
    """Return True if there may still be something to do for a lease."""
    return lease.held or lease.untold


# -- what is asked --------------------------------------------------------------------------------
# A lease whose extension has a majority may still need healing, which is a request for it alone.
# After the restart of a node every lease does. So heals of such leases wait until no renewal does,
# else the last leases would be renewed too late. One whose majority depends on the heal is healed
# at once.


def batches(leases: Sequence[Lease]) -> Iterator[tuple[Backend, list[Reference]]]:
    """Yield the leases by backend, each time as many as one request carries."""
    groups: dict[int, tuple[Backend, list[Lease]]] = {}
    for lease in leases:
        backend = lease.backend
        groups.setdefault(id(backend), (backend, []))[1].append(lease)
    for backend, group in groups.values():
        batch: list[Reference] = []
        size = 0
        for lease in group:
            more = _bytes(lease)
            if batch and (len(batch) >= MOST_LEASES or size + more > MOST_BYTES):
                yield backend, batch
                batch, size = [], 0
            batch.append(weakref.ref(lease))
            size += more
        yield backend, batch


def _bytes(lease: Lease) -> int:
    """Estimate the bytes of a lease in a request: each name also as a key, and RESP's framing."""
    return 64 + sum(2 * len(key.encode()) + 16 for key in lease.grant.target.keys)


class RenewalBatch:
    """One request that renews many leases of a backend, and what heals those that need it.

    Attributes:
        leases: the leases that are still held, and not by a block that is gone.
        asked: the time at which the request began, on the clock of the deadline.
        lost: the leases whose holders must be told of a loss, as far as outcomes are known.
        wounded: the leases that were prolonged and need healing.
    """

    def __init__(self, backend: Backend, batch: Sequence[Reference]) -> None:
        leases = (reference() for reference in batch)
        self.leases = [each for each in leases if each is not None and each.held and not each.torn]
        self.backend = backend
        self.lost: list[Lease] = []
        self.wounded = Wounded()
        self.asked = backend.policy.clock()
        self._open = set(range(len(self.leases)))  # those whose outcome is not known

    def steps(self) -> Steps[object]:
        """Return the steps that extend and heal the leases; each lease hears its outcome."""
        ttls = [lease.grant.ttl for lease in self.leases]
        policy = self.backend.policy
        return hold.extend_many(policy, self.leases, ttls, self._hear, self._heal_later)

    def fail(self) -> None:
        """Report that the request failed; call it in the handler of that error."""
        logger.exception("renewing %d leases of %r failed", len(self._open), self.backend.alias)  # noqa: LOG004
        reason = because(ReasonCode.NOT_ASKED)
        for i in tuple(self._open):
            self._hear(i, NodesUnavailable(reason, name=self.leases[i].name))

    def _hear(self, i: int, outcome: Outcome) -> None:
        self._open.discard(i)
        lease = self.leases[i]
        if lease.hear_renewal(outcome, self.asked):
            self.lost.append(lease)

    def _heal_later(self, i: int, nodes: frozenset[int]) -> None:
        self.wounded[weakref.ref(self.leases[i])] = nodes


class Healing:
    """The request that heals one lease, which was prolonged; nobody waits for its outcome."""

    leases: Final = ()  # these three as of a ``RenewalBatch``
    lost: Final = ()
    wounded: Final[dict[Reference, frozenset[int]]] = {}

    def __init__(self, lease: Lease, nodes: frozenset[int]) -> None:
        self.backend = lease.backend
        self.lease, self._nodes = lease, nodes

    def steps(self) -> Steps[object]:
        """Return the steps that heal the lease."""
        lease = self.lease
        return hold.heal(self.backend.policy, lease, self._nodes, lease.grant.ttl)

    def fail(self) -> None:
        """Report that the request failed; call it in the handler of that error."""
        logger.exception("healing %r failed", self.lease.name)  # noqa: LOG004


class Wounded(dict[Reference, frozenset[int]]):
    """Leases of a group that need healing, each with the nodes on which its names are free.

    A lease that waits here when it is renewed again is there once, and keeps its turn.
    """

    def next_one(self) -> Healing | None:
        """Take out the lease that has waited for the longest; None: no lease waits any more."""
        while (reference := first(self)) is not None:
            nodes, lease = self.pop(reference, None), reference()
            if nodes and lease is not None and lease.held and not lease.torn:
                return Healing(lease, nodes)
        return None


# -- in a thread ----------------------------------------------------------------------------------


class Healer:
    """Heal leases of one group in its worker, each behind the renewals that wait."""

    def __init__(self, workers: WorkerThreads, kind: int) -> None:
        self.wounded = Wounded()
        self._workers, self._kind = workers, kind

    def go_on(self) -> None:
        """Heal the next one; where there is no thread, the next renewal finds it again."""
        if self._workers.until == math.inf:
            self._workers.offer(self._kind, self._heal_one, again=False)

    def _heal_one(self) -> None:
        healing = self.wounded.next_one()
        if healing is not None:
            try:
                _run(healing)
            finally:
                self.go_on()


class Watchdog:
    """Watch the leases of a process.

    The thread neither asks the nodes nor calls ``on_lost`` itself: a node that hangs or a callback
    that blocks would make it late for other leases. Both are jobs for workers: renewals of a group
    one after the other, and several callbacks at once, of which one may block for ever.

    The thread ends silently at exit; a forked child begins with no leases. When the background work
    is to end, the thread ends, and the next lease starts another.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all leases, as a forked child must: they are its parent's."""
        self._lock = threading.RLock()  # of the threads in the background
        self._wakeup = ThreadWakeup()
        self.schedule = RenewalSchedule()
        self._workers = WorkerThreads()
        self._workers.wakeups[self._wakeup] = None
        self._healers: dict[int, Healer] = {}  # by group
        self._wakes_at = math.inf  # when the thread looks next
        self._running = False

    def watch(self, lease: Lease) -> None:
        """Watch a lease until it ends."""
        self._look_by(self.schedule.add(lease))
        if not self._running:
            _warn_of_uwsgi()
            if not self._workers.offer("watch", self._run, again=False):
                # the next lease tries again
                logger.warning(
                    "no watchdog: leases end with their ttl, and on_lost is not called: "
                    "no thread can start"
                )

    def _look_by(self, when: float) -> None:
        """Have the thread look at the leases at that time, or before.

        It does so also if the lease of that time ends before: so later ones wake it no more.
        """
        if when < self._wakes_at:
            self._wakes_at = when
            self._wakeup.wake()

    def held(self) -> list[Lease]:
        """Return the leases of this process that have time left; asks no node, and locks nothing.

        A lease that nobody is told of, as that of a run name, is not counted.
        """
        leases = self.schedule.leases()
        return [each for each in leases if each.remaining() > 0 and not each.told]

    def _run(self) -> None:
        with self._lock:
            if self._running:  # of several that were started one is enough
                return
            self._running = True
        try:
            while self._workers.until == math.inf:
                self._attend()  # a call of its own: no variable here keeps a lease alive
        finally:
            self._running = False  # the next lease starts another

    def _attend(self) -> None:
        """Wait until there is something to do, and have it done."""
        wakes_at, self._wakes_at = self._wakes_at, math.inf  # each new lease wakes, from here …
        if wakes_at <= boottime():
            wakes_at = math.inf
        self._wakes_at = min(wakes_at, self.schedule.next())  # … to here: the sleep is over at once
        left = self._wakes_at - boottime()
        if left > 0:
            self._wakeup.sleep(left)
        with self._lock:
            over, due = self.schedule.take(boottime())
        self.tell([lease for lease in over if lease.run_out() or lease.untold])
        for backend, batch in batches(due):
            self._workers.do(id(backend.group), partial(self._renew, backend, batch))
        for grant in drain(self.schedule.forgotten.popleft):
            self._workers.do("tell", partial(_warn_of, grant), most=MOST_TOLD)

    def _renew(self, backend: Backend, batch: Sequence[Reference]) -> None:
        renewal = RenewalBatch(backend, batch)
        try:
            _run(renewal)
        finally:  # a listener may want to exit; the leases are still to be watched
            with self._lock:
                dues = [self.schedule.renew_later(lease) for lease in renewal.leases]
            self._look_by(min(dues, default=math.inf))
            self.tell(renewal.lost)
            if renewal.wounded:
                kind = id(backend.group)
                healer = self._healers.setdefault(kind, Healer(self._workers, kind))
                healer.wounded.update(renewal.wounded)
                healer.go_on()

    def tell(self, lost: Sequence[Lease]) -> None:
        """Tell the holders, each in a thread of its own, up to so many at the same time."""
        for lease in lost:
            self._workers.do("tell", lease.tell_lost, most=MOST_TOLD)


@functools.cache
def _warn_of_uwsgi() -> None:
    """Tell once where threads run only during requests: uWSGI keeps the interpreter in between.

    The watchdog's thread must not: it might have logging's lock when uWSGI forks.
    """
    if not getattr(sys.modules.get("uwsgi"), "has_threads", True):
        logger.warning(
            "uWSGI runs without enable-threads: a lease that is held between two requests is not "
            "renewed then, and ends with its ttl; set enable-threads = true"
        )


def _warn_of(forgotten: Grant) -> None:
    warnings.warn(
        f"the lease of {forgotten.target.name!r} was forgotten and never released, so the name "
        "stays taken until the ttl is over: keep what acquire() returns, and call its release()",
        ResourceWarning,
        stacklevel=1,  # the line that forgot it is not known any more
    )


def _run(renewal: RenewalBatch | Healing) -> None:
    try:
        renewal.backend.run(renewal.steps())
    except Exception:  # noqa: BLE001 - logged; the leases last until their deadlines
        renewal.fail()


watchdog: Final = Watchdog()
call_in_child(watchdog.reset)

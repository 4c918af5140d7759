"""Whose turn it is: leases by when they are to be prolonged and when their time is up.

Knows no threads, no event loop and no nodes; the watchdogs (``watchdog``,
``loop_watchdog``) ask it what there is to do now, and so does the simulation in the tests. Leases
are held weakly: one that nobody can release any more is not kept alive.
"""

from __future__ import annotations

import heapq
import itertools
import math
import weakref
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from .lease import Lease

EARLY: Final = 0.03  # the part of a ttl by which a renewal may be early, to share a message
AHEAD: Final = 0.25  # seconds by which deadlines are looked at early: most have moved by then
LEAST_ENTRIES: Final = 1024  # fewer are never tidied up

Reference: TypeAlias = "weakref.ref[Lease]"


class Entry(NamedTuple):
    """One thing to do: at ``when``, but from ``earliest`` on if others are done then.

    Attributes:
        first: of a renewal, whether the lease does not stand among the deadlines yet.
    """

    when: float
    order: int
    earliest: float
    lease: Reference
    first: bool


class RenewalSchedule:
    """Leases by when there is something to do for them. Not thread-safe.

    A lease stands among the renewals, but for the time in which it is being renewed; and among
    the deadlines from its first renewal on, or at once if it has none: most are released before
    that. Entries stay until they are due, also those of ended leases: so a process that takes and
    releases all the time wakes nobody for every lease. A lease with two entries is taken once.

    Args:
        lag, grace: how much later than the lease says, as a part of its ttl for renewals and in
            seconds for deadlines: for leases that somebody else looks after, as long as he can.
    """

    def __init__(self, *, lag: float = 0.0, grace: float = 0.0) -> None:
        self._lag = lag
        self._grace = grace
        self._renewals: list[Entry] = []
        self._deadlines: list[Entry] = []
        self._order = itertools.count()
        self._most = LEAST_ENTRIES

    def add(self, lease: Lease) -> None:
        """Look after a lease until it ends."""
        first = self._renewal(lease) < lease.tenancy.deadline
        if not first:
            self._push_deadline(lease)
        self._push_renewal(lease, first=first)

    def renew_later(self, lease: Lease) -> None:
        """Have it renewed when it says so, if it does."""
        self._push_renewal(lease, first=False)

    def _renewal(self, lease: Lease) -> float:
        return lease.renew_at + self._lag * lease.tenancy.ttl

    def _push_renewal(self, lease: Lease, *, first: bool) -> None:
        when = self._renewal(lease)
        if lease.held and when < math.inf:
            earliest = when - EARLY * lease.tenancy.ttl
            entry = Entry(when, next(self._order), earliest, weakref.ref(lease), first)
            heapq.heappush(self._renewals, entry)

    def _push_deadline(self, lease: Lease) -> None:
        when = lease.tenancy.deadline + self._grace
        entry = Entry(when, next(self._order), when, weakref.ref(lease), first=False)
        heapq.heappush(self._deadlines, entry)

    def next(self) -> float:
        """When there will be something to do; infinite: never."""
        renewal = self._renewals[0].when if self._renewals else math.inf
        deadline = self._deadlines[0].when if self._deadlines else math.inf
        return min(renewal, deadline)

    def take(self, now: float) -> tuple[list[Lease], list[Lease]]:
        """The leases whose time is up, and those to renew now, the most urgent first.

        The latter come back by ``renew_later``.
        """
        due = self._take_due(now)
        try:
            over = self._take_over(now)
            if len(self._renewals) + len(self._deadlines) > self._most:
                self._tidy_up()
        except BaseException:  # a signal handler's, in the thread of an event loop
            for lease in due:
                self.renew_later(lease)
            raise
        return over, due

    def _take_over(self, now: float) -> list[Lease]:
        over: dict[int, Lease] = {}
        moved: dict[int, Entry] = {}
        taken: list[Entry] = []
        try:
            while self._deadlines and self._deadlines[0].when <= now + AHEAD:
                entry = _pop(self._deadlines, taken)
                lease = entry.lease()
                if lease is None or not (lease.held or lease.untold):
                    continue
                deadline = lease.tenancy.deadline + self._grace
                if deadline <= now or lease.untold:
                    over[id(lease)] = lease
                else:
                    moved[id(lease)] = entry._replace(when=deadline)
            for entry in moved.values():
                heapq.heappush(self._deadlines, entry)
        except BaseException:
            _put_back(self._deadlines, taken)
            raise
        return list(over.values())

    def _take_due(self, now: float) -> list[Lease]:
        """When one is due, all those that may go with it, but for what was renewed elsewhere."""
        due: dict[int, Lease] = {}
        if not self._renewals or self._renewals[0].when > now:
            return []
        moved: dict[int, Lease] = {}
        taken: list[Entry] = []
        try:
            while self._renewals and self._renewals[0].earliest <= now:
                entry = _pop(self._renewals, taken)
                lease = entry.lease()
                if lease is None or not (lease.held or lease.untold):
                    continue
                if entry.first or lease.untold:
                    self._push_deadline(lease)
                if lease.held:
                    early = now + EARLY * lease.tenancy.ttl >= self._renewal(lease)
                    (due if early else moved)[id(lease)] = lease
            for lease in moved.values():
                self.renew_later(lease)
        except BaseException:
            _put_back(self._renewals, taken)
            raise
        return list(due.values())

    def _tidy_up(self) -> None:
        for heap in (self._renewals, self._deadlines):
            heap[:] = [
                entry
                for entry in heap
                if (lease := entry.lease()) is not None and (lease.held or lease.untold)
            ]
            heapq.heapify(heap)
        self._most = max(LEAST_ENTRIES, 2 * (len(self._renewals) + len(self._deadlines)))


def _pop(heap: list[Entry], taken: list[Entry]) -> Entry:
    """Take the first entry; noted before it is gone, for an interruption may come between."""
    entry = heap[0]
    taken.append(entry)
    heapq.heappop(heap)
    return entry


def _put_back(heap: list[Entry], taken: list[Entry]) -> None:
    """Undo an interrupted look; an entry that comes back twice is harmless."""
    for entry in taken:
        heapq.heappush(heap, entry)

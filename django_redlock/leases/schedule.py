"""Schedule leases: when each is to be renewed, and when its time is up.

The schedule knows no threads, no event loop and no nodes. The watchdogs (``watchdog``,
``loop_watchdog``) and the simulation in the tests ask it what there is to do now. It keeps the
lease of a ``with`` block until the lease ends, so that a loss is told where the block is gone. It
keeps no other lease alive that the program has forgotten.

A lease has one place, in a dictionary, with the time at which there is something to do for it. Its
release empties the place at once, in any thread and without a lock. A dictionary that was large
stays large when it is empty. So a schedule has many small ones, in chunks, and looks only into
those in which something may be due.
"""

from __future__ import annotations

import math
import weakref
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias, TypeGuard

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .lease import Lease, Schedule

EARLY: Final = 0.03  # the part of a ttl by which a renewal may be early, to share a message
AHEAD: Final = 0.25  # seconds by which deadlines are looked at early: most have moved by then
MOST: Final = 160  # leases in a chunk

Reference: TypeAlias = "weakref.ref[Lease]"
# When there is something to do, from when on that may be done together with others, whether it is a
# renewal that is not on its way yet, and the lease if it is that of a block.
Place: TypeAlias = "tuple[float, float, bool, Lease | None]"


class Chunk:
    """Some leases of a schedule. A lease stays in its chunk until it ends.

    Attributes:
        places: what is to be done for whom.
        first: no place has an earlier time, but one that is empty now may have had.
        earliest: the same of the times from when on.
        puts: how often a place was noted; shows ``find_first`` that it was interrupted.
        full: whether no lease is added any more.
    """

    __slots__ = ("earliest", "first", "full", "places", "puts")

    def __init__(self) -> None:
        self.places: dict[Reference, Place] = {}
        self.first = self.earliest = math.inf
        self.puts = 0
        self.full = False

    def forget(self, lease: Lease) -> None:
        """Drop a lease that has ended; any thread may call it at any time."""
        self.places.pop(weakref.ref(lease), None)
        if self.full and not self.places:
            self.places.clear()  # gives back the memory; no lease is added meanwhile

    def put(self, lease: Lease, place: Place) -> None:
        """Change the place of a lease.

        Another thread may forget the lease before it is put there, but only when it has ended.
        """
        reference = weakref.ref(lease)
        self.places[reference] = place
        self.note(place)
        if not _is_watched(lease):
            self.places.pop(reference, None)

    def note(self, place: Place) -> None:
        """Note that this place was given to a lease; no call here lets a signal handler run."""
        self.puts += 1
        if place[0] < self.first:  # noqa: PLR1730 - after a call, a handler's time could be lost
            self.first = place[0]
        if place[1] < self.earliest:  # noqa: PLR1730 - as above
            self.earliest = place[1]

    def find_first(self) -> None:
        """Find the first times again, unless a signal handler has noted others meanwhile."""
        puts = self.puts
        places = list(self.places.values())  # in one step: other threads may forget leases
        first = min(map(itemgetter(0), places), default=math.inf)
        earliest = min(map(itemgetter(1), places), default=math.inf)
        if puts == self.puts:
            self.first, self.earliest = first, earliest

    def tidy_up(self) -> None:
        """Drop leases that the program has forgotten without releasing them."""
        for reference in list(self.places):
            if reference() is None:
                self.places.pop(reference, None)


class Found(NamedTuple):
    """A lease for which there may be something to do.

    Attributes:
        place: where it belongs if it is not taken.
        deadline: when its time is up.
    """

    place: Place
    deadline: float
    lease: Lease
    chunk: Chunk

    def may_be_renewed(self, now: float) -> bool:
        """Tell whether its renewal is due, or near enough to go with others."""
        when, earliest, renews, _ = self.place
        renews = renews and when < self.deadline  # else that is the deadline's time
        return renews and earliest <= now < self.deadline and self.lease.held


class RenewalSchedule:
    """Leases in the order in which there is something to do for them.

    A lease has in ``schedules`` the chunks in which it is. ``Chunk.forget`` may be called at any
    time by any thread; the rest is not thread-safe.

    The place of a lease has the time of its renewal; while it is being renewed, or if it never
    is, that of its deadline. Both may have moved since: what the lease says counts.

    Args:
        lag, grace: how much later than the lease says it is taken, as a part of its ttl for
            renewals and in seconds for deadlines: an event loop is given this time for its own.
    """

    def __init__(self, *, lag: float = 0.0, grace: float = 0.0) -> None:
        self._lag = lag
        self._grace = grace
        self._newest = Chunk()
        self._chunks: dict[Schedule, Chunk] = {self._newest: self._newest}
        self._turns = 0  # of chunks to be tidied up
        self._added: tuple[tuple[Schedule, ...], tuple[Schedule, ...]] = ((), (self._newest,))

    # -- one lease ------------------------------------------------------------------------------

    def add(self, lease: Lease) -> float:
        """Schedule a lease until it ends; return when there is something to do for it first."""
        place, reference, before = self._place(lease), weakref.ref(lease), lease.schedules
        while True:  # a signal handler may fill the chunk before the lease is in it
            chunk = self._newest
            if chunk.full or len(chunk.places) >= MOST:
                chunk = self._next_chunk()
            lease.schedules = self._added_to(before, chunk)
            if not chunk.full:  # no call between this and the next statement
                chunk.places[reference] = place
                break
        chunk.note(place)
        return place[0]

    def _added_to(self, schedules: tuple[Schedule, ...], chunk: Chunk) -> tuple[Schedule, ...]:
        """Return these with the chunk; many leases share the tuple."""
        before, after = self._added
        if before is not schedules or after[-1] is not chunk:
            before, after = self._added = schedules, (*schedules, chunk)
        return after

    def _next_chunk(self) -> Chunk:
        """Return a chunk with room; drop those that are empty, and leases that were forgotten."""
        newest, chunks = self._newest, list(self._chunks.values())
        self._turns += 1
        for chunk in (newest, chunks[self._turns % len(chunks)]):
            chunk.tidy_up()
        if newest.full or len(newest.places) > MOST // 2:
            self._drop_empty(chunks)
            chunk = Chunk()
            self._chunks[chunk] = chunk
            newest.full, self._newest = True, chunk
        return self._newest

    def _drop_empty(self, chunks: Iterable[Chunk]) -> None:
        for chunk in chunks:
            if chunk.full and not chunk.places:
                self._chunks.pop(chunk, None)

    def renew_later(self, lease: Lease) -> None:
        """Schedule the next renewal of a lease, if it is to be renewed."""
        for each in lease.schedules:
            chunk = self._chunks.get(each)
            if chunk is not None and lease.held:
                chunk.put(lease, self._place(lease))

    def _place(self, lease: Lease, *, renews: bool = True) -> Place:
        """Return where a lease belongs; ``renews``: unless it is being renewed."""
        grant, kept = lease.grant, None if lease.block is None else lease
        deadline = grant.deadline + self._grace
        renewal = lease.renew_at + self._lag * grant.ttl if renews else math.inf
        if renewal < deadline:
            return renewal, renewal - EARLY * grant.ttl, True, kept
        return deadline, deadline - AHEAD, renewal < math.inf, kept

    # -- what there is to do --------------------------------------------------------------------

    def next(self) -> float:
        """Return when there is something to do next, or was for a lease that has ended since.

        Infinite: never.
        """
        firsts = [chunk.first for chunk in list(self._chunks.values()) if chunk.places]
        return min(firsts, default=math.inf)

    def take(self, now: float) -> tuple[list[Lease], list[Lease]]:
        """Take the leases whose time is up, and those to renew now, the most urgent first.

        If a renewal is due, all that may go with it are taken. The caller gives them back by
        ``renew_later``. What was renewed or extended by others meanwhile gets its new time.
        """
        chunks = [chunk for chunk in list(self._chunks.values()) if chunk.earliest <= now]
        found = [each for chunk in chunks for each in self._look(chunk, now)]
        over = [each for each in found if each.deadline <= now or each.lease.untold]
        due = [each for each in found if each.may_be_renewed(now)]
        if all(each.place[0] > now for each in due):
            due = []
        over.sort(key=attrgetter("deadline"))
        due.sort(key=lambda each: each.place[0])
        taken = [each.lease for each in over], [each.lease for each in due]
        try:
            for each in found:
                each.chunk.put(each.lease, each.place)
            for each in due:
                each.chunk.put(each.lease, self._place(each.lease, renews=False))
            for each in over:
                each.chunk.forget(each.lease)
            for chunk in chunks:
                chunk.find_first()
        except BaseException:  # a signal handler's, in the thread of an event loop
            _put_back(found)
            raise
        return taken

    def _look(self, chunk: Chunk, now: float) -> Iterator[Found]:
        """Yield the leases in a chunk that may be due; drop those that have ended."""
        places = chunk.places.copy()  # in one step: other threads may forget leases
        for reference, (_, earliest, renews, _) in places.items():
            if earliest <= now:
                lease = reference()
                if _is_watched(lease):
                    deadline = lease.grant.deadline + self._grace
                    yield Found(self._place(lease, renews=renews), deadline, lease, chunk)
                else:
                    chunk.places.pop(reference, None)


def _is_watched(lease: Lease | None) -> TypeGuard[Lease]:
    """Tell whether there may still be something to do for a lease."""
    return lease is not None and (lease.held or lease.untold)


def _put_back(found: Iterable[Found]) -> None:
    """Undo an interrupted ``take``."""
    for each in found:
        each.chunk.put(each.lease, each.place)

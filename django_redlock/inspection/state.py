"""Tell the state of one lock, for ``Lock.state`` and for templates: a look, never a promise.

A survey of the lock's names has the facts. Here they become what a program shows to its users:
held or not, by whom, since when, for how long.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NoReturn

from django_redlock.core.commands import MOST_NUMBER
from django_redlock.core.errors import NodesUnavailable
from django_redlock.core.protocol import Answer, Vote
from django_redlock.core.quorum import majority_of
from django_redlock.core.reasons import ReasonCode, because, printable

from .results import LockStatus
from .survey import LIMIT, surveying

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_redlock.backend import Backend
    from django_redlock.core.protocol import Steps

    from .results import HeldLock, Survey

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Of several names, the state of the first of these tells most about the lock.
TELLING: Final = (
    *(LockStatus.HELD, LockStatus.RESTING, LockStatus.UNCLEAR),
    *(LockStatus.SPLIT, LockStatus.PARTIAL, LockStatus.FREE),
)


@dataclass(frozen=True, slots=True)
class LockState:
    """What the nodes had of a lock a moment ago: to be shown, not to be relied on.

    It may be out of date when it is read, so it protects nothing: who wants to do the work takes
    the lock. It is neither true nor false: ``bool()`` of it is a TypeError; ask ``held``.

    Attributes:
        name: the name, or a tuple of names. Of several names, the other attributes are those of
            the name that is held, or taken, for longest.
        kind: ``"held"``, ``"resting"``, ``"partial"``, ``"split"``, ``"unclear"`` or ``"free"``,
            as in ``redlock_status``. Only ``"held"`` has a holder. ``"resting"``: nobody gets it
            before its ``min_hold`` is over. ``"unclear"``: nodes without a vote decide.
        holder: the holder's label; "" if it is not held, or the holder left none.
        remaining: seconds until it is free unless the holder renews it; None: never. 0 if it is
            neither held nor resting.
        since: when the holder got it, by the clock of the holder's machine, in UTC. None if it is
            not held, or another client holds it.
        fence: the holder's grant number; the lease's fence may differ from it while nodes
            disagree, so compare no writes with it. None as ``since``.
        each: of several names, the state of each, in their order; empty for one.
    """

    name: str | tuple[str, ...]
    kind: LockStatus
    holder: str = ""
    remaining: float | None = 0.0
    since: datetime | None = None
    fence: int | None = None
    each: tuple[LockState, ...] = ()

    @property
    def held(self) -> bool:
        """Whether it was held, for certain."""
        return self.kind is LockStatus.HELD

    @property
    def known(self) -> bool:
        """Whether the nodes that vote could tell if it is held."""
        return self.kind is not LockStatus.UNCLEAR

    def __bool__(self) -> NoReturn:
        msg = (
            "the state of a lock is neither true nor false: ask state.held; and to do the work, "
            "take the lock, e.g. by try_acquire()"
        )
        raise TypeError(msg)


def look(backend: Backend, names: Sequence[str]) -> Steps[LockState]:
    """Ask all nodes about a lock's names, once.

    Raises:
        NodesUnavailable: no majority of the nodes votes.
    """
    wanted = tuple(dict.fromkeys(names))
    found = yield from surveying(backend, wanted, LIMIT)
    if found.voting < found.majority:
        name = wanted[0] if len(wanted) == 1 else wanted
        reason = because(
            ReasonCode.NO_MAJORITY,
            votes=found.voting,
            size=len(found.nodes),
            needed=found.majority,
        )
        raise NodesUnavailable(reason, name=name, votes=_votes(found))
    return _state_of_all([state_of(lock) for lock in found.locks])


def state_of(lock: HeldLock) -> LockState:
    """Return the state of a name, as a survey found it."""
    taken = lock.kind in (LockStatus.HELD, LockStatus.RESTING)
    state = LockState(lock.name, lock.kind, remaining=_until_free(lock) if taken else 0.0)
    if lock.kind is not LockStatus.HELD:
        return state
    return replace(state, holder=printable(lock.holder), since=_since(lock), fence=lock.fence)


def _state_of_all(states: Sequence[LockState]) -> LockState:
    if len(states) == 1:
        return states[0]
    most = min(states, key=_rank)
    return replace(most, name=tuple(str(each.name) for each in states), each=tuple(states))


def _rank(state: LockState) -> tuple[int, float]:
    left = math.inf if state.remaining is None else state.remaining
    return TELLING.index(state.kind), -left


def _until_free(lock: HeldLock) -> float | None:
    """Return the seconds until the owner has less than a majority; None: never."""
    owner = lock.owners[0].owner
    left = sorted(
        (math.inf if cell.left is None else cell.left)
        for cell in lock.cells
        if cell is not None and cell.owner == owner
    )
    last = left[-majority_of(lock.of)]
    return None if last == math.inf else last


def _since(lock: HeldLock) -> datetime | None:
    """Return when the owner asked for the name: a grant number is a clock, or one above.

    The script that grants takes the client's clock, in microseconds, where the node's counter has
    not reached it; so the lowest number of a majority is nearest to the clock.
    """
    owner = lock.owners[0].owner
    numbers = [
        cell.number
        for cell in lock.cells
        if cell is not None and cell.owner == owner and cell.number is not None
    ]
    lowest = min(numbers, default=MOST_NUMBER)
    return EPOCH + timedelta(microseconds=lowest) if lowest < MOST_NUMBER else None


def _votes(found: Survey) -> tuple[Vote, ...]:
    """Return a vote for each node: whether it votes, and why it does not."""
    return tuple(
        Vote(node.label, Answer.YES if node.voting else Answer.UNKNOWN, reason=node.reason)
        for node in found.nodes
    )

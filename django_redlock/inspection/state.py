"""Tell the state of one lock, for ``Lock.state`` and for templates: a look, never a promise.

A survey of the lock's names has the facts. Here they become what a program shows to its users:
held or not, by whom, since when, for how long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, NoReturn

from django_redlock.backend import Backend
from django_redlock.core.errors import NodesUnavailable
from django_redlock.core.protocol import Answer, Steps, Vote
from django_redlock.core.reasons import ReasonCode, because, printable

from .survey import HeldLock, LockStatus, surveying

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
    found = yield from surveying(backend, wanted)
    if found.voting < found.majority:
        name = wanted[0] if len(wanted) == 1 else wanted
        reason = because(
            ReasonCode.NO_MAJORITY,
            votes=found.voting,
            size=len(found.nodes),
            needed=found.majority,
        )
        votes = tuple(
            Vote(node.label, Answer.YES if node.voting else Answer.UNKNOWN, reason=node.reason)
            for node in found.nodes
        )
        raise NodesUnavailable(reason, name=name, votes=votes)
    states = [state_of(lock) for lock in found.locks]
    if len(states) == 1:
        return states[0]
    most = min(states, key=_tells_most)
    return replace(most, name=tuple(str(each.name) for each in states), each=tuple(states))


def state_of(lock: HeldLock) -> LockState:
    """Return the state of a name, as a survey found it."""
    state = LockState(lock.name, lock.kind, remaining=lock.remaining)
    if lock.kind is not LockStatus.HELD:
        return state
    return replace(state, holder=printable(lock.holder), since=lock.since, fence=lock.fence)


def _tells_most(state: LockState) -> tuple[int, float]:
    left = math.inf if state.remaining is None else state.remaining
    return TELLING.index(state.kind), -left

"""Take a lock away from its holder.

``core.hold.revoke`` has the rule. Here a survey finds the holder of the name, so that a lock is
taken from the holder that somebody has seen and never from the next one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from django_redlock.core import hold
from django_redlock.core.errors import NodesUnavailable
from django_redlock.core.names import check_names
from django_redlock.core.protocol import Answer
from django_redlock.core.quorum import count
from django_redlock.core.reasons import printable
from django_redlock.core.slots import MOST, Slot, entry_of, shown

from .rows import on_nodes
from .survey import (
    ONE_OWNERS,
    HeldLock,
    LockStatus,
    entries_of,
    surveying,
    voting_or_raise,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from django_redlock.backend import Backend
    from django_redlock.core.protocol import Steps, Vote

LONGEST: Final = 200  # characters of a reason
GONE: Final = (
    "the holder of {0} that was found does not have it any more: the holder has let go, or the "
    "lease has ended. Look who holds {0} now"
)


class Revoked(NamedTuple):
    """What became of taking a lock away.

    Attributes:
        name: the name.
        holder: the label of the holder that had it; "" if it left none.
        done: whether a majority of the nodes has done it. Else: not yet; call it again.
        on, of: how many nodes have done it, and how many there are.
        free_in: seconds in which the name is free at the latest; None: not before a majority has
            done it.
        slot: the slot that was taken away; None: the lock has no limit.
        was_done: whether nobody had it: it was the record of work that is done once.
    """

    name: str
    holder: str
    done: bool
    on: int
    of: int
    free_in: float | None
    slot: int | None = None
    was_done: bool = False

    def __bool__(self) -> bool:
        return self.done


def revoking(
    backend: Backend,
    name: str,
    *,
    fence: int | None = None,
    reason: str = "",
    now: bool = False,
    slot: int | None = None,
) -> Steps[Revoked]:
    """Look who holds a name, and take it away; ``LockTemplate.revoke`` has the arguments."""
    why = why_of(backend.label(), reason)
    given: object = fence
    if not (given is None or type(given) is int):  # "7" is never 7, and both look alike
        msg = f"fence must be an int, as lease.fence, not {given!r}"
        raise ValueError(msg)
    names = check_names(name)
    if len(names) != 1:
        msg = f"revoke takes one name, not {len(names)}: one ends the lease of all its names"
        raise ValueError(msg)
    (name,) = names
    entry = name if slot is None else checked_entry(name, slot)
    report = yield from surveying(backend, (entry,))
    voting_or_raise(report, name)
    lock = report.locks[0]
    if lock.status is LockStatus.FREE and slot is None:
        yield from _refuse_slots(backend, name)
    refuse(lock, fence, now=now)
    return (yield from taking(backend, lock, why, now=now))


def _refuse_slots(backend: Backend, name: str) -> Steps[None]:
    """Refuse a name of which slots are held, and nobody has said which.

    Raises:
        LookupError: that is so.
    """
    report = yield from surveying(backend, entries_of(name))
    if taken := [lock for lock in report.locks if lock.on]:
        raise LookupError(f"{held_slots(name, taken)}. slot={taken[0].slot} takes one away")


def held_slots(name: str, taken: Sequence[HeldLock]) -> str:
    """Say which slots of a limited lock are held, and by whom."""
    held = "; ".join(
        f"slot {each.slot} by {printable(each.holder) or 'another client'}" for each in taken
    )
    return f"{name!r} has a limit, and these of its slots are held: {held}"


def checked_entry(name: str, slot: object) -> str:
    """Return the name that a slot of a limited lock has on the nodes.

    Raises:
        ValueError: it is the number of no slot.
    """
    if type(slot) is not int or not 0 <= slot < MOST:
        msg = f"slot must be a number from 0 to {MOST - 1}, as lease.slot, not {slot!r}"
        raise ValueError(msg)
    return entry_of(name, slot)


def why_of(by: str, reason: object) -> str:
    """Return by whom and why a lock is taken away, as its holder and the next ones read it.

    Raises:
        ValueError: the reason is no text, too long, or has characters that cannot be shown.
    """
    if not isinstance(reason, str):
        msg = f"reason must be a text, not {type(reason).__name__}"
        raise ValueError(msg)  # noqa: TRY004 - as for other arguments
    if len(reason) > LONGEST or not reason.isprintable():
        msg = f"reason must be at most {LONGEST} characters of one line"
        raise ValueError(msg)
    return f"revoked by {printable(by)}" + (f": {reason}" if reason else "")


def refuse(lock: HeldLock, fence: int | None = None, *, now: bool = False) -> None:
    """Refuse to take away what nobody holds, what another client holds, or with another fence.

    Raises:
        LookupError: that is so.
        NodesUnavailable: the nodes that do not vote decide whether it is held.
    """
    name, why = lock.quoted, ""
    if lock.status is LockStatus.UNCLEAR:
        unclear = (
            f"{lock.on} of {lock.of} nodes have it, and those that do not vote decide whether it "
            "is held: bring them back, and try again"
        )
        raise NodesUnavailable(unclear, name=lock.name)
    if lock.status is LockStatus.FREE:
        why = f"nobody holds {name}"
    elif lock.status not in ONE_OWNERS:
        endless = sum(each is not None and each.left is None for each in lock.cells)
        left = "keys that a failed attempt has left end with their ttl"
        if endless:  # no key of ours
            left = (
                f"a key of another client never expires on {endless} of {lock.of} nodes: end that "
                "client, and delete the key there"
            )
        why = f"nobody holds {name} for certain: its state is {lock.status}, and {left}"
    elif lock.status is LockStatus.HELD and lock.fence is None and not now:
        why = (
            f"another client holds {name}, and cannot be told that it was taken away: with --now "
            "(now=True) its key is deleted"
        )
    elif fence is not None and lock.fence is None:
        why = f"the holder of {name} has no fence, not {fence}"
    elif fence is not None and fence != lock.fence:
        why = f"the holder of {name} has the fence {lock.fence}, not {fence}"
    if why:
        raise LookupError(why)


def taking(backend: Backend, lock: HeldLock, why: str, *, now: bool = False) -> Steps[Revoked]:
    """Take a lock away from the holder that a survey has found.

    Raises:
        LookupError: that holder has let go. Who surveys again may find the next holder.
    """
    slot = None if lock.slot is None else Slot(lock.slot)
    target = backend.policy.target([lock.name], slot=slot)
    is_done = lock.status is LockStatus.DONE
    now = now or is_done or lock.status is LockStatus.RESTING  # nobody believes in such a name
    owner = lock.owners[0].owner
    votes: Sequence[Vote] = yield from hold.revoke(backend.policy, target, owner, why, now=now)
    left = [vote.left for vote in votes if vote.answer is Answer.YES]
    if is_done:  # where there is no record, none is to be taken away
        left = [0.0 for vote in votes if vote.answer is not Answer.UNKNOWN]
    done, gone = len(left) >= backend.policy.majority, count(votes).no
    if not done and gone >= backend.policy.majority:
        raise LookupError(GONE.format(lock.quoted))
    known = [each for each in left if each is not None]
    return Revoked(
        lock.name,
        lock.holder,
        done,
        len(left),
        len(votes),
        max(known, default=0.0) if done and len(known) == len(left) else None,
        lock.slot,
        is_done,
    )


def outcome_of(found: Revoked) -> str:
    """Say what became of taking a lock away."""
    name = printable(found.name) + shown(found.slot)
    what = "its record is removed" if found.was_done else "taken away"
    text = f"{name}: {what}{on_nodes(found.on, found.of)}, "
    if not found.done:
        return text + "not yet on a majority"
    if found.was_done:
        rest = "" if found.on == found.of else "; the others may bring it back, then do this again"
        return text + "and the work is done again when somebody next asks for it" + rest
    if found.free_in is None:
        return text + "free when its holder lets go"
    return text + (f"free in at most {found.free_in:.0f} s" if found.free_in else "free now")

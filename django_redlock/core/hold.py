"""Hold what was granted: extend it, heal it, release it, and roll back a failed attempt.

The requests that undo delete the keys of a nonce, and wake the next waiter. One request extends
many leases, and each has an outcome of its own. A node extends each lease of which all keys still
carry the nonce, and replies which ones these are. The majority of the nodes decides:

    Grant              kept, to a new deadline that is never before the old one
    LeaseLost          over: a majority does not have it, or its deadline passed before the votes
    NodesUnavailable   unknown: it lasts until its old deadline

One lease's outcome says nothing of another's, so a request for many is as good as one for each.

An extension creates no key, but each node also replies of which leases the names are *free*: it
never had them, or lost them in a restart. While time is left, at least one node has the lease, and
no majority says that it is gone, a second request, ``HEAL``, puts the lease back on these nodes,
and they count at once. Why that is safe is in docs/explanation/how-it-works.md, and
``dev/models/heal.py`` searches it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from .commands import Extend, Extension, Heal, Kept, Release, Rest, Return, Revoke
from .errors import LeaseLost, NodesUnavailable
from .policy import Policy, milliseconds
from .protocol import Answer, Grant, Request, Steps, Vote
from .quorum import (
    all_heard,
    heard,
    kept_or_not,
    majority_denies,
    revoked,
    some_unheard,
    with_majority,
)
from .reasons import Reason, ReasonCode, because

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Sequence

    from .protocol import LockKeys

Outcome: TypeAlias = Grant | LeaseLost | NodesUnavailable

RESERVED: Final = 50  # milliseconds for which a released name is kept for the woken waiter


# -- undoing ----------------------------------------------------------------------------------


def wake_next(policy: Policy, target: LockKeys, which: int) -> Request:
    """Return the request that wakes the next waiter for ``names[which]``, and deletes nothing.

    Its nonce is a new one, which no key has: it opens a reserved name, and no other.
    """
    everyone, nobody = policy.everyone, frozenset[int]()
    return undo(policy, target, policy.nonce(), everyone, touched=nobody, wake=(which,))


def give_back(
    policy: Policy, target: LockKeys, nonce: str, old: str, touched: frozenset[int]
) -> Request:
    """Return the request of an adopter without a majority: the giver's handle is good again."""
    decided = with_majority(heard, policy.majority)
    return Return(nonce, decided, target, old, to=touched, lasts=policy.max_ttl)


def undo(
    policy: Policy,
    target: LockKeys,
    nonce: str,
    to: frozenset[int],
    *,
    touched: frozenset[int] | None = None,
    reserve: int = 0,
    wake: Container[int] | None = None,
) -> Release:
    """Return the request that deletes the keys of ``nonce``, and wakes the next waiters.

    Args:
        touched: the nodes that may have these keys; None is all of ``to``.
        reserve: milliseconds for which a name is kept for its waiter.
        wake: the indices of the names whose waiter is woken; None is all of them.
    """
    return Release(
        nonce,
        with_majority(heard, policy.majority),
        target,
        reserve,
        wake,
        to=to,
        first=target.queue_nodes[0],
        touched=touched,
        lasts=policy.max_ttl,
    )


# -- releasing --------------------------------------------------------------------------------


def release(policy: Policy, grant: Grant, *, min_hold: float = 0.0) -> Steps[Sequence[Vote]]:
    """Release the grant on every node that may have its keys; return the votes.

    With ``min_hold`` the names stay taken until that many seconds after the attempt began, also
    those of a lease that was revoked.
    Without, a name that has a waiter is reserved for a moment for the first one, and all nodes are
    asked, since any of them may have the wait queue.
    """
    target, touched = grant.target, grant.touched
    if min_hold and (rest := milliseconds(grant.since + min_hold - policy.clock())) > 0:
        decided, lasts = with_majority(heard, policy.majority), policy.max_ttl
        request: Request = Rest(grant.nonce, decided, target, rest, to=touched, lasts=lasts)
    else:
        everyone = policy.everyone
        request = undo(policy, target, grant.nonce, everyone, touched=touched, reserve=RESERVED)
    votes = yield from ask_twice(request)
    if votes[request.first].woken:  # the node of the queue has woken a waiter
        policy.handed_over.note(target.entries, grant.since, policy.clock())
    if grant.unswapped:  # the giver's key would stay there for its ttl
        yield undo(policy, target, grant.old, grant.unswapped, wake=())
    return votes


def ask_twice(request: Request) -> Steps[Sequence[Vote]]:
    """Send a request that may be sent twice; after an interruption, once more. Return the votes."""
    try:
        votes: Sequence[Vote] = yield request
    except GeneratorExit:
        raise
    except BaseException:
        yield request  # unknown what arrived; sending it twice does no harm
        raise
    return votes


# -- taking away ------------------------------------------------------------------------------


def revoke(
    policy: Policy, target: LockKeys, owner: str, why: str, *, now: bool
) -> Steps[Sequence[Vote]]:
    """Take a name away from the holder with this digest; return the votes.

    Each node keeps the key, with its expiry, in a form that no extension, heal, adoption or release
    by its nonce keeps alive. So the name is free when the last deadline is over in which the holder
    can believe, and there is never a second believer; ``dev/models/revoke.py`` searches it.
    A majority of such nodes ends the lease at its next extension, which cannot miss all of them:
    a second request lets each mark last as long as the longest, which outlives that deadline.
    """
    request = Revoke(policy.nonce(), all_heard, target, owner, why, now)
    votes = yield from ask_twice(request)
    done = {i: vote.left for i, vote in enumerate(votes) if vote.answer is Answer.YES}
    left = [each for each in done.values() if each is not None]
    if now or len(left) < policy.majority:
        return votes
    last = replace(request, nonce=policy.nonce(), least=milliseconds(max(left)), to=frozenset(done))
    again = yield from ask_twice(last)
    return [again[i] if i in done else vote for i, vote in enumerate(votes)]


# -- extending --------------------------------------------------------------------------------


class Holding(Protocol):
    """The part of a lease that its extension uses. Other threads may end the lease meanwhile."""

    @property
    def grant(self) -> Grant:
        """What the nodes granted."""

    def touch(self, nodes: frozenset[int]) -> Grant | None:
        """Note that these nodes may have its keys from now on; return the grant, None if over."""

    def remaining(self) -> float:
        """Return the seconds until the holder must have stopped; 0 or less when over."""


def extend_many(
    policy: Policy,
    leases: Sequence[Holding],
    ttls: Sequence[float],
    notify: Callable[[int, Outcome], object],
    later: Callable[[int, frozenset[int]], object] | None = None,
) -> Steps[list[Outcome]]:
    """Prolong each lease to its ttl, in seconds from now; return the outcomes, in order.

    Args:
        notify: called with a lease's index and its outcome as soon as that is known: no lease waits
            until others are healed.
        later: called with the index of a lease that is prolonged, and the nodes on which its names
            are free: the caller heals it when no renewal waits. None: it is healed here.
    """
    start = policy.clock()
    outcomes = _over(leases, start)
    for i, over in outcomes.items():
        notify(i, over)
    held = [i for i in range(len(leases)) if i not in outcomes]
    votes: Sequence[Vote] = ()
    if held:
        votes = yield _extension(policy, [(leases[i].grant, ttls[i]) for i in held])
    now, kept, free = policy.clock(), _kept(votes, len(held)), _free(votes)
    unusual = free.keys() | _revoked(votes)
    wounded: list[tuple[int, frozenset[int], list[Vote]]] = []
    for nth, i in enumerate(held):
        if kept[nth] >= policy.majority and nth not in unusual and now < leases[i].grant.deadline:
            outcomes[i] = _prolonged(policy, leases[i], start, ttls[i])  # as nearly always
        else:
            own = _votes_on(votes, nth)
            outcomes[i] = _outcome(policy, leases[i], own, start=start, ttl=ttls[i])
            # With no node that kept it, its keys may have been deleted by hand on all.
            if nth in free and kept[nth] and not isinstance(outcomes[i], LeaseLost):
                if later is not None and isinstance(outcomes[i], Grant):
                    later(i, free[nth])
                else:
                    wounded.append((i, free[nth], own))
                if isinstance(outcomes[i], NodesUnavailable):
                    continue  # notified when it is healed, or not
        notify(i, outcomes[i])
    for i, nodes, own in wounded:
        healed = yield from _heal(policy, leases[i], own, nodes, ttls[i])
        outcome = outcomes[i]
        if isinstance(outcome, Grant):
            outcomes[i] = outcome._replace(touched=leases[i].grant.touched)
        else:
            outcomes[i] = _outcome(policy, leases[i], healed, start=start, ttl=ttls[i])
            notify(i, outcomes[i])
    return [outcomes[i] for i in range(len(leases))]


def _over(leases: Sequence[Holding], now: float) -> dict[int, Outcome]:
    """Return the outcomes of the leases that are over before the request is sent."""
    return {
        i: LeaseLost(because(ReasonCode.OVER_BEFORE_ASKED), name=lease.grant.target.name)
        for i, lease in enumerate(leases)
        if now >= lease.grant.deadline
    }


def _extension(policy: Policy, leases: Sequence[tuple[Grant, float]]) -> Request:
    return Extend(
        policy.nonce(),
        partial(kept_or_not, majority=policy.majority),
        [Extension(grant.nonce, grant.target, milliseconds(ttl)) for grant, ttl in leases],
        worth=some_unheard,  # a node that is a little late may say that names are free
    )


def _kept(votes: Sequence[Vote], count: int) -> list[int]:
    heard = [vote.result.kept for vote in votes if vote.answer is Answer.YES]
    return list(map(sum, zip(*heard, strict=True))) if heard else [0] * count


def _free(votes: Sequence[Vote]) -> dict[int, frozenset[int]]:
    """Return the nodes on which names are free, for each lease that has some."""
    found: dict[int, list[int]] = {}
    for node, vote in enumerate(votes):
        if vote.answer is Answer.YES:
            for nth in vote.result.free:
                found.setdefault(nth, []).append(node)
    return {nth: frozenset(nodes) for nth, nodes in found.items()}


def _revoked(votes: Sequence[Vote]) -> set[int]:
    """Return which leases a node says were taken away; nearly always none."""
    return {nth for vote in votes if vote.answer is Answer.YES for nth in vote.result.revoked}


def _votes_on(votes: Sequence[Vote], nth: int) -> list[Vote]:
    return [
        vote
        if vote.answer is not Answer.YES
        else Vote(vote.node, Answer.YES)
        if vote.result.kept[nth]
        else Vote(vote.node, Answer.NO, reason=_denial(vote.result, nth))
        for vote in votes
    ]


def _denial(result: Kept, nth: int) -> Reason:
    if nth in result.revoked:
        return because(ReasonCode.REVOKED, text=result.revoked[nth])
    return because(ReasonCode.GONE)


def _outcome(
    policy: Policy, lease: Holding, votes: Sequence[Vote], *, start: float, ttl: float
) -> Outcome:
    grant, now = lease.grant, policy.clock()
    name = grant.target.name
    if now >= grant.deadline:
        return LeaseLost(because(ReasonCode.OVER_BEFORE_EXTENDED), name=name, votes=votes)
    if (why := revoked(votes)) is not None:
        return LeaseLost(why, name=name, votes=votes)
    if sum(vote.answer is Answer.YES for vote in votes) >= policy.majority:
        return _prolonged(policy, lease, start, ttl)
    if majority_denies(votes, policy.majority):
        return LeaseLost(because(ReasonCode.DENIED), name=name, votes=votes)
    heard = sum(vote.answer is not Answer.UNKNOWN for vote in votes)
    reason = because(ReasonCode.NOT_EXTENDED, votes=heard, size=policy.size)
    return NodesUnavailable(reason, name=name, votes=votes)


def _prolonged(policy: Policy, lease: Holding, start: float, ttl: float) -> Grant:
    """Return the grant with its new deadline, which counts from before the first message."""
    grant = lease.grant
    return grant._replace(deadline=max(grant.deadline, start + policy.validity(ttl)))


# -- healing ----------------------------------------------------------------------------------


def heal(policy: Policy, lease: Holding, nodes: frozenset[int], ttl: float) -> Steps[None]:
    """Put a lease that was prolonged back on these nodes, on which its names are free."""
    yield from _heal(policy, lease, (), nodes, ttl)


def _heal(
    policy: Policy, lease: Holding, votes: Sequence[Vote], nodes: frozenset[int], ttl: float
) -> Steps[Sequence[Vote]]:
    """Put a lease back on these nodes, on which its names are free; return the votes with theirs.

    The nodes join ``touched`` first, so a later release goes to them, too. A lease that has ended
    when the votes come may have overtaken the heal: the nodes would keep the names, so the heal is
    rolled back. In doubt as well: that costs one message. The rollback wakes nobody: a wake-up
    opens every key of its nonce, and this lease may have been given away. If the lease was
    released, the release has woken the waiters, also of these nodes.
    """
    grant = lease.touch(nodes)
    if grant is None:
        return votes
    try:
        healed: Sequence[Vote] = yield _healing(lease, grant, nodes, ttl)
    except GeneratorExit:
        raise
    except BaseException:
        if _is_over(lease):
            yield undo(policy, grant.target, grant.nonce, nodes, wake=())
        raise
    if _is_over(lease):
        yield undo(policy, grant.target, grant.nonce, nodes, wake=())
        return votes
    return [healed[i] if i in nodes else vote for i, vote in enumerate(votes)]


def _healing(lease: Holding, grant: Grant, nodes: frozenset[int], ttl: float) -> Request:
    return Heal(
        grant.nonce,
        all_heard,
        grant.target,
        fence=grant.fence,
        ttl=milliseconds(ttl),
        label=grant.label,
        to=nodes,
        still=lambda: not _is_over(lease),
    )


def _is_over(lease: Holding) -> bool:
    return lease.remaining() <= 0

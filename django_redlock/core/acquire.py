"""Redlock with fencing tokens, written once, as generators that do no I/O.

A generator *yields* an effect and is *sent* its result:

    Request(…)      send a request to the nodes; sent back: one ``Vote`` per node, in order
    Sleep(seconds)  let time pass; sent back: anything, ignored

``wait`` adds the effects of the wait queue. What runs a generator (``Backend`` for threads and
asyncio, the simulator in the tests) owns sockets, sleeping and interruption. Time, randomness and
the size of the group come from ``Policy``.

A vote is YES, NO or UNKNOWN. UNKNOWN means that no reply counts: none came in time, the node has
no vote (restart guard, replica), or it replied with an error. The node may have granted the names
all the same, so an unknown vote is undone like a YES and counted like a NO.

The rules, and where they come from:

* Majority, one random value per attempt, release by comparing it, validity counted from
  before the first message less the clock drift: "Distributed Locks with Redis" (redis.io).
* No decision about a lease reads a wall clock: M. Kleppmann, "How to do distributed locking"
  (2016), and S. Sanfilippo's reply "Is Redlock safe?" (2016), agree on that.
* Fencing over a majority (``_token``): ours; docs/explanation/how-it-works.md has the argument.

Interruption: after an exception between a ``Request`` and its votes it is unknown what the nodes
did, so the attempt is rolled back on all nodes before the exception goes on. Only
``GeneratorExit`` passes at once: a generator that is being closed may not yield.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from . import completion
from . import wait as waiting
from .commands import Acquire, Raise
from .errors import LeaseLost, LockTaken, NodesUnavailable
from .hold import give_back, undo, wake_next
from .policy import Policy, milliseconds
from .protocol import Answer, Grant, LockKeys, NextTry, Sleep, Steps, Vote
from .quorum import (
    NO,
    YES,
    adopted_or_not,
    adoption_is_over,
    all_heard,
    answer_of,
    count,
    fence_of,
    free_in,
    granted_or_not,
    has_record,
    is_split,
    majority_reserves,
    not_yes,
    ours_to_wake,
    reached,
    recorded_or_heard,
    sent_to,
    unheard,
    was_sent,
    with_majority,
)
from .reasons import ReasonCode, because
from .wait import NameLine

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from .wait import Line

Refusal: TypeAlias = LockTaken | NodesUnavailable
WaitsFor: TypeAlias = Literal["holder", "nodes"] | None

NONE: Final[frozenset[int]] = frozenset()  # one for all grants
SPLITS: Final = 3  # retries after a split, for a caller that does not wait


class Wanted(Protocol):
    """What a caller wants of a lock: all its names (``Names``), or any slot (``limited.Slots``)."""

    @property
    def first(self) -> NextTry:
        """What the first attempt asks for."""

    def choose(self, refusal: LockTaken, tried: NextTry, *, surely: bool) -> NextTry | None:
        """Return what may be free though ``tried`` was refused; None: all that is wanted is held.

        With ``surely``, nodes that were not heard count as those of a holder.
        """

    def line(self, refusal: LockTaken) -> Line[Any]:
        """Return where the caller waits for a holder."""

    def reserved(self, refusal: LockTaken) -> Iterator[NextTry]:
        """Yield what a majority has reserved for a woken waiter."""

    def held(self, refusal: LockTaken) -> LockTaken:
        """Return the error for a caller that waits no longer."""


class Names:
    """All names of a plain lock, as ``acquire`` wants them."""

    __slots__ = ("_policy", "first")

    def __init__(self, policy: Policy, target: LockKeys) -> None:
        self._policy = policy
        self.first: Final = NextTry(target)

    def choose(self, refusal: LockTaken, _: NextTry, *, surely: bool) -> NextTry | None:
        # Several callers have split the nodes between them: nobody has the names.
        split = is_split(refusal.votes, self._policy.majority, surely=surely)
        return self.first._replace(pauses=True) if split else None

    def line(self, refusal: LockTaken) -> NameLine:
        return NameLine(self._policy, self.first.target, refusal)

    def reserved(self, refusal: LockTaken) -> Iterator[NextTry]:
        if majority_reserves(refusal.votes, self._policy.majority):
            yield self.first._replace(woken=waiting.waited_for(refusal))

    def held(self, refusal: LockTaken) -> LockTaken:
        return refusal


def acquire(
    policy: Policy,
    wanted: Wanted,
    *,
    label: str,
    ttl: float,
    wait: float,
    waits_for: WaitsFor = None,
    thorough: bool = False,
    puts_back: bool = False,
) -> Steps[Grant]:
    """Attempt until granted or ``wait`` seconds are over; 0 does not wait.

    While the lock is held, the caller joins the wait queue (``wait``). When several attempts have
    split the nodes between them, none of them has the lock, so each caller tries again soon,
    even one that does not wait. A caller that waits leaves the waiter that this process has just
    woken a head start.

    Args:
        waits_for: "holder": wait for a holder only, not for a majority that can be asked; "nodes":
            the other way round; None: for both.
        thorough: whether to hear all nodes that reply in time, for one of them may have the
            record that the work is done (``completion``).
        puts_back: whether to put such a record back where the name is free, if it tells when the
            work was done; with ``thorough``.

    Raises:
        LockTaken: the names, or all slots, were held to the end, or are, with "nodes"; or, with the
            code "recorded", the work is done.
        NodesUnavailable: at the end no majority could be asked; or, at once, with "holder", or none
            can vote before the end, because of the restart guard.
    """
    give_up, splits, tries = policy.clock() + wait, 0, 0
    tried = wanted.first
    if wait > 0 and tried.target.slot is None:  # of several slots another one may be free
        yield from waiting.head_start(policy, tried.target, wait)
    while True:
        patient = policy.clock() < give_up and waits_for != "nodes"
        grant, refusal = yield from attempt(
            policy,
            tried.target,
            label=label,
            ttl=ttl,
            wakeup=tried.wakeup,
            woken=tried.woken,
            patient=patient,
            thorough=thorough,
            puts_back=puts_back,
        )
        if grant is not None:
            return grant  # no call between the grant and its owner: see attempt()
        assert refusal is not None  # one of the two
        left, woken = give_up - policy.clock(), tried.wakeup != ""
        tried = tried._replace(wakeup="")
        # Four reasons to try again, each with its own pause: too few nodes replied …
        if isinstance(refusal, NodesUnavailable):
            yield sleep_or_raise(policy, refusal, tries, left=left, waits_for=waits_for)
            tries += 1
            continue
        found = wanted.choose(refusal, tried, surely=left > 0)
        # … nobody has what is chosen: several attempts have split the nodes, or a slot is free …
        if found is not None and (not found.pauses or left > 0 or splits < SPLITS):
            tried = found
            if found.pauses:
                splits += 1
                yield Sleep(policy.uniform(0.001, 0.01) * min(splits, 5))
        # … all is held: a queue wakes this caller …
        elif left > 0 and waits_for != "nodes":
            tried = yield from waiting.wait_in_line(policy, wanted.line(refusal), give_up)
        # … or reserved for a waiter that may be gone: its wake-up may be claimed, once.
        elif not patient:
            tried = yield from _claimed(policy, wanted, refusal, woken=woken)


def _claimed(policy: Policy, wanted: Wanted, refusal: LockTaken, *, woken: bool) -> Steps[NextTry]:
    """Take a wake-up that no waiter has taken, and return what it opens.

    Raises:
        LockTaken: there is none; or the caller was woken, and has used its wake-up in vain.
    """
    for each in () if woken else wanted.reserved(refusal):
        wakeup = yield from waiting.claim(policy, each, refusal.votes)
        if wakeup:
            return each._replace(wakeup=wakeup)
    raise wanted.held(refusal)


def adopt(policy: Policy, target: LockKeys, *, old: str, label: str, ttl: float) -> Steps[Grant]:
    """Take over the lease of the nonce ``old``: nodes that have this nonce grant the names.

    Only nodes that swapped the nonce count, so of two adopters at most one succeeds. When several
    have split the nodes between them, each gives back what it has, and tries again soon.

    Raises:
        LeaseLost: the lease is over, or another adopter was first.
        LockTaken: several adopters split the nodes to the end; the handle is as good as before.
        NodesUnavailable: no majority could be asked; the handle is as good as before.
    """
    for tries in range(SPLITS + 1):
        grant, refusal = yield from attempt(policy, target, label=label, ttl=ttl, old=old)
        if grant is not None:
            return grant
        assert refusal is not None  # one of the two
        votes = refusal.votes
        if adoption_is_over(votes, policy.majority):
            reason = because(ReasonCode.TOO_LATE_TO_ADOPT)
            raise LeaseLost(reason, name=target.name, votes=votes)
        if isinstance(refusal, NodesUnavailable) or tries == SPLITS:
            break
        yield Sleep(policy.uniform(0.001, 0.01) * (tries + 1))
    if isinstance(refusal, NodesUnavailable):
        cause = because(ReasonCode(refusal.code), **refusal.data)
        reason = because(ReasonCode.STILL_ADOPTABLE, cause=cause)
        raise NodesUnavailable(reason, name=target.name, votes=votes)
    raise LockTaken(because(ReasonCode.ADOPTED_BY_SEVERAL), name=target.name, votes=votes)


def attempt(
    policy: Policy,
    target: LockKeys,
    *,
    label: str,
    ttl: float,
    old: str = "",
    wakeup: str = "",
    woken: int = 0,
    patient: bool = False,
    thorough: bool = False,
    puts_back: bool = False,
) -> Steps[tuple[Grant | None, Refusal | None]]:
    """Ask all nodes once for the names; roll back a grant that has no majority.

    An attempt that fails wakes the next waiter, if it was woken or had a grant on some node; see
    ``ours_to_wake``. An interruption may come at any call: from the first message to the return
    every call is inside the ``try``.

    Args:
        old: the nonce to be adopted, or "".
        wakeup: the nonce that woke the caller for ``names[woken]``, or ""; it lets this attempt
            take a reserved name.
        patient: whether the caller waits after a refusal.
        thorough, puts_back: whether to hear all nodes, and what to do then; see ``acquire``.

    Returns:
        The grant, or else the reason why there is none; a record is raised.
    """
    nonce = policy.nonce()
    touched = policy.everyone
    usual = adopted_or_not if old else recorded_or_heard if thorough else granted_or_not
    tells = patient or (target.slot is not None and not old)  # a refusal tells of all slots
    worth = with_majority(unheard, policy.majority, patient=tells)
    try:
        start = policy.clock()
        votes = yield Acquire(
            nonce,
            all_heard if puts_back else with_majority(usual, policy.majority),
            target,
            wish=policy.wall(),
            slack=int(policy.slack * 1_000_000),
            ttl=milliseconds(ttl),
            label=label,
            old=old,
            opener=wakeup,
            waits=milliseconds(waiting.NEWS) if patient else 0,
            first=target.queue_nodes[0],
            worth=worth,
            thorough=thorough,
        )
        if NO in map(answer_of, votes) or not all(map(was_sent, votes)):
            touched = reached(votes)
        fence, evidence = yield from _token(policy, target, nonce, votes)
        deadline = start + policy.validity(ttl)
        if fence is not None and policy.clock() < deadline:
            late = not_yes(votes) if old else NONE
            return Grant(
                target, nonce, fence, deadline, start, ttl, touched, tuple(votes), old, late, label
            ), None
        refusal = refusal_of(policy, target, evidence, in_time=fence is None)
        if old and not adoption_is_over(evidence, policy.majority):
            yield give_back(policy, target, nonce, old, touched)
            return None, refusal
        carried = woken if wakeup else None
        if puts_back and refusal.code == ReasonCode.RECORDED:
            yield from _spread(policy, target, nonce, votes, ttl=ttl, start=start, woken=carried)
        else:
            yield from _roll_back(
                policy, target, nonce, votes, touched=touched, evidence=evidence, woken=carried
            )
    except GeneratorExit:
        raise
    except BaseException:
        to = policy.everyone if wakeup else touched
        if old:
            yield give_back(policy, target, nonce, old, touched)
        else:
            yield undo(policy, target, nonce, to, touched=touched)
        raise
    if refusal.code == ReasonCode.RECORDED:
        raise refusal
    return None, refusal


def _roll_back(
    policy: Policy,
    target: LockKeys,
    nonce: str,
    votes: Sequence[Vote],
    *,
    touched: frozenset[int],
    evidence: Sequence[Vote],
    woken: int | None,
) -> Steps[None]:
    """Undo what was granted, and wake the next waiters if that is for this attempt to do."""
    wake = ours_to_wake(evidence, policy.majority, names=len(target.keys), woken=woken)
    if (touched or woken is not None) and wake:
        yield undo(policy, target, nonce, sent_to(votes), touched=touched, wake=wake)
    elif touched:
        yield undo(policy, target, nonce, touched, wake=())


def _spread(
    policy: Policy,
    target: LockKeys,
    nonce: str,
    votes: Sequence[Vote],
    *,
    ttl: float,
    start: float,
    woken: int | None,
) -> Steps[None]:
    """Put a record back where this attempt was granted the name, undo the rest, wake the next.

    Each waiter that hears of a record wakes another one: all are to hear of it.
    """
    touched, elapsed = reached(votes), policy.clock() - start
    back = completion.put_back(policy, target, nonce, votes, ttl=ttl, elapsed=elapsed)
    if back is not None:
        yield back
    if left := touched - (NONE if back is None or back.to is None else back.to):
        yield undo(policy, target, nonce, left, wake=())
    if touched or woken is not None:
        yield wake_next(policy, target, woken or 0)


def _token(
    policy: Policy, target: LockKeys, nonce: str, votes: Sequence[Vote]
) -> Steps[tuple[int | None, Sequence[Vote]]]:
    """Return the number that a majority acknowledges, or None, and the votes that decided.

    A grant acknowledges its own number. When a majority granted but no number has a majority, the
    largest is the token, and the nodes below are raised to it. A record allows no token.
    """
    answers, given = list(map(answer_of, votes)), list(map(fence_of, votes))
    if answers.count(YES) < policy.majority or (NO in answers and has_record(votes)):
        return None, votes
    token = max(given, key=given.count)  # ten times faster than a Counter
    if token and given.count(token) >= policy.majority:  # 0 is of nodes that granted nothing
        return token, votes
    token = max(given)
    numbers = {i: vote.fence for i, vote in enumerate(votes) if vote.answer is YES}
    below = {i: number for i, number in numbers.items() if number < token}
    agreeing = len(numbers) - len(below)
    raised = yield Raise(
        nonce,
        lambda votes: agreeing + count(votes).yes >= policy.majority,
        target,
        token,
        to=frozenset(below),
        each=below,
    )
    acknowledged = agreeing + count(raised).yes
    # A node that does not reply now did reply to the grant: it could be asked.
    denied = {i for i in below if raised[i].answer is Answer.NO}
    evidence = [raised[i] if i in denied else vote for i, vote in enumerate(votes)]
    return (token if acknowledged >= policy.majority else None), evidence


def sleep_or_raise(
    policy: Policy, refusal: NodesUnavailable, tries: int, *, left: float, waits_for: WaitsFor
) -> Sleep:
    """Return the pause until the next attempt without a majority: growing, jittered.

    Raises:
        NodesUnavailable: there is to be none.
    """
    if waits_for == "holder" or left <= 0 or is_hopeless(refusal, policy.majority, left):
        raise refusal
    pause = policy.uniform(0.5, 1.0) * min(0.2, 0.01 * 1.5 ** min(tries, 20))
    return Sleep(min(pause, left))


# -- why there is no grant --------------------------------------------------------------------


def refusal_of(
    policy: Policy, target: LockKeys, votes: Sequence[Vote], *, in_time: bool
) -> Refusal:
    """Return LockTaken if a majority replied at all, or one has a record; else NodesUnavailable."""
    if has_record(votes):
        left = max([vote.left or 0.0 for vote in votes if vote.code == ReasonCode.RECORDED])
        why = because(ReasonCode.RECORDED)
        return LockTaken(why, name=target.name, votes=votes, retry_after=left or None)
    if not in_time:
        reason = because(ReasonCode.GRANTED_TOO_LATE)
        return NodesUnavailable(reason, name=target.name, votes=votes)
    yes, no, _ = count(votes)
    if yes + no < policy.majority:
        reason = because(
            ReasonCode.NO_MAJORITY, votes=yes + no, size=policy.size, needed=policy.majority
        )
        return NodesUnavailable(reason, name=target.name, votes=votes)
    if not no:
        reason = because(ReasonCode.FENCE_UNKNOWN)
        return NodesUnavailable(reason, name=target.name, votes=votes)
    refused = [vote for vote in votes if vote.answer is NO]
    holders = Counter(vote.holder for vote in refused if vote.holder)
    holder = holders.most_common(1)[0][0] if holders else None
    return LockTaken(
        because(ReasonCode.HELD, holder=holder or "", nodes=no, size=policy.size),
        name=target.name,
        votes=votes,
        retry_after=free_in(refused, policy.majority - yes),
        holder=holder,
    )


def is_hopeless(refusal: NodesUnavailable, majority: int, left: float) -> bool:
    """Tell whether the restart guard keeps a majority from voting for more than ``left`` seconds.

    How long a guard lasts is known, and it never becomes shorter. What else keeps a node from
    voting may be over at any moment.
    """
    return sum(_guard_left(vote) <= left for vote in refusal.votes) < min(
        majority, len(refusal.votes)
    )


def _guard_left(vote: Vote) -> float:
    reason = vote.reason
    if reason is None or reason.code is not ReasonCode.RESTART_GUARD:
        return 0.0
    seconds = reason.data["seconds"]
    return seconds if isinstance(seconds, int | float) else 0.0

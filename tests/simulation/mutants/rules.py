"""Rules of the algorithm that are broken; each function takes the real one and returns another."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from django_redlock.core.commands import COMMANDS, Acquire, Extend, Release
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import (
    UNDO,
    Answer,
    BlockOnNode,
    Grant,
    LockKeys,
    Request,
    Steps,
    Vote,
    Votes,
    one_or_all,
)
from django_redlock.core.quorum import YES, count
from django_redlock.core.wait import LOOK_EVERY

Attempt = Callable[..., Steps[Any]]
Rule = Callable[[Votes, int], bool]


def driven(
    inner: Steps[Any],
    *,
    effect: Callable[[Any, bool], Any] = lambda effect, _: effect,
    votes: Callable[[Any, Any], Any] = lambda _, value: value,
    goes_on: bool = False,
) -> Steps[Any]:
    """Carry out steps with other effects, or other results of them.

    Args:
        effect: gets an effect, and whether an exception was thrown into the steps; returns what is
            done in its place; None: nothing.
        votes: gets the effect and its result; returns what the steps are sent.
        goes_on: whether closing the steps is an exception like others to them.
    """
    go_on: Callable[[Any], Any] = inner.send
    value: Any = None
    thrown = False
    while True:
        try:
            wanted = effect(go_on(value), thrown)
        except StopIteration as stop:
            return stop.value
        go_on, value = inner.send, []
        try:
            if wanted is not None:
                value = votes(wanted, (yield wanted))
        except GeneratorExit:
            if thrown or not goes_on:
                inner.close()
                raise
            go_on, value, thrown = inner.throw, KeyboardInterrupt(), True
        except BaseException as error:  # noqa: BLE001 - the steps raise it again
            go_on, value, thrown = inner.throw, error, True


def with_nonce(of: Callable[..., str]) -> Callable[[Attempt], Attempt]:
    """Make attempts with the nonce that ``of`` returns for their arguments; "": a new one."""

    def make(real: Attempt) -> Attempt:
        def attempt(policy: Policy, target: LockKeys, **facts: Any) -> Steps[Any]:
            nonce = of(**facts)
            known = replace(policy, nonce=lambda: nonce) if nonce else policy
            return real(known, target, **facts)

        return attempt

    return make


def with_one_nonce(real: Attempt) -> Attempt:
    """Make all attempts with the nonce of the first."""

    def acquire(policy: Policy, target: LockKeys, **facts: Any) -> Steps[Any]:
        first = policy.nonce()
        return real(replace(policy, nonce=lambda: first), target, **facts)

    return acquire


def asking_a_majority(real: type[Acquire]) -> Callable[..., Acquire]:
    """Ask only as many nodes as are needed."""

    def request(nonce: str, decided: partial[bool], *fields: Any, **named: Any) -> Acquire:
        to = frozenset(range(decided.keywords["majority"]))
        return real(nonce, decided, *fields, **named, to=to)

    return request


def counting_silence(real: Callable[..., Steps[Any]]) -> Callable[..., Steps[Any]]:
    """Count a vote that was not heard as a YES, for the grant and for the raise."""

    def believed(_: object, votes: Sequence[Vote]) -> list[Vote]:
        return [v._replace(answer=YES) if v.answer is Answer.UNKNOWN else v for v in votes]

    def token(policy: Policy, target: LockKeys, nonce: str, votes: Sequence[Vote]) -> Steps[Any]:
        return driven(real(policy, target, nonce, believed(None, votes)), votes=believed)

    return token


def refusing_hastily(_: Rule) -> Rule:
    """End the waiting as soon as no majority can grant."""

    def granted_or_not(votes: Votes, majority: int) -> bool:
        yes, no, rest = count(votes)
        return yes >= majority or yes + rest < majority or yes + no >= majority

    return granted_or_not


def ending_with_one_denial(_: Rule) -> Rule:
    """End the waiting for a lease with the first denial."""

    def kept_or_not(votes: Votes, majority: int) -> bool:
        heard = [vote.result.kept for vote in votes if vote and vote.answer is YES]
        unheard = votes.count(None)
        if not heard:
            return unheard < majority
        sums = [(yes, len(heard) - yes) for yes in map(sum, zip(*heard, strict=True))]
        return all(yes >= majority or no or yes + unheard < majority for yes, no in sums)

    return kept_or_not


def any_reply(real: Callable[..., Vote | None]) -> Callable[..., Vote | None]:
    """Take a reply to another request for one to this."""
    return lambda request, node, nonce, reply: real(request, node, (reply or [nonce])[0], reply)


def any_outcome(real: Callable[..., Vote | None]) -> Callable[..., Vote | None]:
    """Take the outcome of any other command for the one of this."""
    outcomes = {kind.done for kind in COMMANDS}

    def vote(request: Request, node: str, nonce: bytes, reply: list[Any]) -> Vote | None:
        if reply[1] in outcomes:
            reply = [reply[0], request.done, *reply[2:]]
        return real(request, node, nonce, reply)

    return vote


def with_a_lease_s_nonce(real: Callable[..., Extend]) -> Callable[..., Extend]:
    """Send an extension with the nonce of its first lease."""
    return lambda policy, asked: replace(real(policy, asked), nonce=asked[0][0].nonce)


def without_waiting(real: Callable[..., Extend]) -> Callable[..., Extend]:
    """Wait for no node once the outcome is clear."""
    return lambda policy, asked: replace(real(policy, asked), worth=None)


def holding_for(part: float) -> Callable[[Attempt], Attempt]:
    """Release as if ``min_hold`` were a part of what it is."""

    def make(real: Attempt) -> Attempt:
        return lambda policy, grant, *, min_hold=0.0: real(policy, grant, min_hold=min_hold * part)

    return make


def releasing_a_majority(real: Attempt) -> Attempt:
    """Send a release to as many nodes as were needed for the grant."""

    def release(policy: Policy, grant: Grant, *, min_hold: float = 0.0) -> Steps[Any]:
        touched = frozenset(sorted(grant.touched)[: policy.majority])
        return real(policy, grant._replace(touched=touched), min_hold=min_hold)

    return release


def handing_over(**changes: Any) -> Callable[[Callable[..., Steps[Any]]], Callable[..., Any]]:
    """Release to a waiter with other fields."""

    def changed(effect: Any, _: bool) -> Any:
        reserves = isinstance(effect, Release) and effect.reserve
        return replace(effect, **changes) if reserves else effect

    return lambda real: lambda *args, **facts: driven(real(*args, **facts), effect=changed)


def keeping_duplicates(real: Callable[..., LockKeys]) -> Callable[..., LockKeys]:
    """Count a name that is given twice as two."""

    def target(self: Policy, names: Sequence[str]) -> LockKeys:
        each = [real(self, [name]) for name in names]

        def all_of(what: str) -> Iterator[Any]:
            return (getattr(one, what)[0] for one in each)

        parts: dict[str, Any] = {
            what: tuple(all_of(what)) for what in ("entries", "keys", "fields", "queue_nodes")
        }
        return each[0]._replace(name=one_or_all(tuple(names)), **parts)

    return target


def waking_for_none(real: Callable[..., set[int]]) -> Callable[..., set[int]]:
    """Leave it to the holder of one name to wake for all others."""

    def ours_to_wake(
        votes: Sequence[Vote], majority: int, *, names: int, woken: int | None
    ) -> set[int]:
        found = real(votes, majority, names=names, woken=woken)
        return found if len(found) == names else set()

    return ours_to_wake


# -- time -------------------------------------------------------------------------------------


def with_a_clock_that_stands(real: Callable[..., Steps[Any]]) -> Callable[..., Steps[Any]]:
    """Never look at the clock again."""

    def steps(policy: Policy, *args: Any, **facts: Any) -> Steps[Any]:
        start = policy.clock()
        return real(replace(policy, clock=lambda: start), *args, **facts)

    return steps


def counting_from_the_reply(real: Attempt) -> Attempt:
    """Let a lease begin when the votes are there."""

    def attempt(policy: Policy, target: LockKeys, *, ttl: float, **facts: Any) -> Steps[Any]:
        steps = with_a_clock_that_stands(real)(policy, target, ttl=ttl, **facts)
        grant, refusal = yield from steps
        deadline = policy.clock() + policy.validity(ttl)
        return grant and grant._replace(deadline=deadline), refusal

    return attempt


# -- what is undone ---------------------------------------------------------------------------


def undoing(
    change: Callable[[Any, bool, dict[str, Any]], Request | None],
) -> Callable[[Attempt], Attempt]:
    """Send another undo, or none.

    Args:
        change: gets the undo, whether an exception ended the steps, and what they were called with;
            returns what is sent; None: nothing.
    """

    def make(real: Attempt) -> Attempt:
        def steps(*args: Any, **facts: Any) -> Steps[Any]:
            def changed(effect: Any, thrown: bool) -> Any:
                undo = isinstance(effect, Request) and effect.command in UNDO
                return change(effect, thrown, facts) if undo else effect

            return driven(real(*args, **facts), effect=changed)

        return steps

    return make


def waking_nobody(undo: Any, thrown: bool, _: object) -> Request | None:
    """Undo a failed attempt where it has keys, and wake no waiter for its names."""
    if thrown or undo.touched is None:
        return undo  # type: ignore[no-any-return]
    return replace(undo, wake=(), to=undo.touched) if undo.touched else None


def going_on_when_closed(real: Attempt) -> Attempt:
    """Undo an attempt that Python closes."""
    return lambda *args, **facts: driven(real(*args, **facts), goes_on=True)


def forgetting_silence(real: Attempt) -> Attempt:
    """Count a node that did not reply to a grant as one to which nothing was sent."""

    def forgotten(effect: object, value: Any) -> Any:
        if not isinstance(effect, Acquire):
            return value
        return [vote._replace(sent=vote.answer is not Answer.UNKNOWN) for vote in value]

    return lambda *args, **facts: driven(real(*args, **facts), votes=forgotten)


# -- the fencing token ------------------------------------------------------------------------


def taking_the_smallest(_: object) -> Callable[..., Steps[Any]]:
    """Take the smallest number for the token, where they differ."""

    def token(policy: Policy, _: LockKeys, __: str, votes: Sequence[Vote]) -> Steps[Any]:
        yield from ()
        numbers = [vote.fence for vote in votes if vote.answer is YES]
        if len(numbers) < policy.majority:
            return None, votes
        most = max(numbers, key=numbers.count)
        return (most if numbers.count(most) >= policy.majority else min(numbers)), votes

    return token


def asking_for_no_raise(choose: Callable[[list[int]], int]) -> Callable[..., Any]:
    """Take a number for the token, whether a majority has acknowledged it or not."""

    def make(real: Callable[..., Steps[Any]]) -> Callable[..., Steps[Any]]:
        def token(policy: Policy, *args: Any) -> Steps[Any]:
            numbers = [vote.fence for vote in args[-1] if vote.answer is YES]
            if len(numbers) < policy.majority:
                return (yield from real(policy, *args))
            return choose(numbers), args[-1]

        return token

    return make


def raising_by_one(real: Callable[..., Steps[Any]]) -> Callable[..., Steps[Any]]:
    """Take the token, however few nodes have acknowledged the raise."""

    def token(policy: Policy, target: LockKeys, nonce: str, votes: Sequence[Vote]) -> Steps[Any]:
        steps, value, asked = real(policy, target, nonce, votes), None, 0
        try:
            while True:
                request = steps.send(value)
                asked = request.token  # type: ignore[union-attr]
                value = yield request
        except StopIteration as stop:
            fence, evidence = stop.value
            return fence or asked or None, evidence

    return token


# -- waiting ----------------------------------------------------------------------------------


def never_looking(real: Callable[..., Steps[Any]]) -> Callable[..., Steps[Any]]:
    """Rely on being woken."""

    def at_the_nodes(policy: Policy, *args: Any, **facts: Any) -> Steps[Any]:
        def uniform(low: float, high: float) -> float:
            return math.inf if (low, high) == LOOK_EVERY else policy.uniform(low, high)

        return real(replace(policy, uniform=uniform), *args, **facts)

    return at_the_nodes


def sleeping_through_the_end(real: Callable[..., Steps[Any]]) -> Callable[..., Steps[Any]]:
    """Block for as long as ever, although the key ends before."""

    def blocked(effect: Any, _: bool) -> Any:
        if not isinstance(effect, BlockOnNode):
            return effect
        return effect._replace(seconds=min(max(effect.seconds, LOOK_EVERY[0]), effect.longest))

    return lambda *args, **facts: driven(real(*args, **facts), effect=blocked)


def looking_at_one_node(real: Callable[..., Steps[Any]]) -> Callable[..., Steps[Any]]:
    """Believe the node whose queue the waiter is in."""

    def look(policy: Policy, line: Any, order: list[int]) -> Steps[Any]:
        looked = yield from real(policy, line, order)
        return {place: looked[place] for place in [i for i in order if i in looked][:1]}

    return look

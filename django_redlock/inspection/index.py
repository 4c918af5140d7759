"""Read what nodes list in their indexes of names: held locks, queued tasks, completion records.

An index is read page by page. A page costs a node less than a millisecond, and between two pages it
serves other clients. Pages are in the order in which names are due. A name that is held throughout
is in one of them: its time only grows, so a renewal can move it to a later page and never to an
earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from django_redlock.backend import Backend
from django_redlock.core.commands import Heal, Index, Page
from django_redlock.core.names import LONGEST
from django_redlock.core.protocol import Answer, Request, Steps, Vote
from django_redlock.core.quorum import all_heard
from django_redlock.core.reasons import ReasonCode
from django_redlock.nodes.node import NodeStatus

LIMIT: Final = 1000  # names shown of an index, unless told otherwise …
MOST: Final = 10_000  # … and at most: a node serves no other client while it reads them
PAGE: Final = 1000  # names read at once …
LARGEST: Final = 10_000  # … and where more than that are due in the same millisecond
PAGES: Final = 100  # read of each index at the most
BATCH: Final = 64  # names in one request: of the longest ones, half of what a connection takes
AGAIN: Final = 2  # times that nodes which were only too slow are asked again


def check_limit(limit: int) -> None:
    """Check how many rows are asked for.

    Raises:
        ValueError: it is not from 1 to 10,000.
    """
    if not 1 <= limit <= MOST:
        msg = f"limit must be from 1 to {MOST}, not {limit}"
        raise ValueError(msg)


def as_name(entry: bytes) -> str:
    """Return an entry of an index as the name that it is; "" if this package writes no such."""
    try:
        return entry.decode() if len(entry) <= LONGEST else ""
    except UnicodeDecodeError:
        return ""


# -- one request to all nodes ---------------------------------------------------------------------


def heard(votes: Sequence[Vote]) -> frozenset[int]:
    """Return the positions of the nodes that replied."""
    return frozenset(i for i, vote in enumerate(votes) if vote.answer is Answer.YES)


def ask_all(backend: Backend, ask: Request) -> Steps[list[Vote]]:
    """Send a request to all nodes, and again to those that were only too slow."""
    votes = list((yield ask))
    patient = True
    for _ in range(AGAIN):
        prompt, slow = _worth_another_try(votes, backend.group.states())
        to = prompt or (slow if patient else frozenset())
        if not to:
            break
        patient = patient and to is not slow  # waiting for connections once more is enough
        again = yield replace(ask, nonce=backend.policy.nonce(), to=to)
        votes = [again[i] if i in to else vote for i, vote in enumerate(votes)]
    return votes


def _worth_another_try(
    votes: Sequence[Vote], states: Sequence[NodeStatus]
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the nodes that were only too slow: those connected by now, and those connecting.

    A process that has just started connects to all nodes within the time of the first request,
    and one slow node may leave no time for the replies of the others. A node whose vote and state
    have the same reason is known to be down, and is not asked again.
    """
    silent = frozenset(range(len(votes))) - heard(votes)
    reached = frozenset(i for i in silent if states[i].uptime is not None)
    prompt = frozenset(
        i for i in reached if states[i].voting or states[i].guard_left > 0 or states[i].clock_off
    )
    slow = frozenset(i for i in silent - reached if states[i].reason != votes[i].reason)
    return prompt, slow


def any_emptied(backend: Backend, to: frozenset[int]) -> Steps[bool]:
    """Return whether one of these nodes lost its data after this process had connected to it.

    Such a node lists what it has, and has no vote. Putting a lease without names back writes
    nothing, and the node refuses it as it refuses every grant; its connection is closed then.
    """
    policy = backend.policy
    nothing = policy.target(())
    votes = yield Heal(policy.nonce(), all_heard, nothing, fence=0, ttl=0, label="", to=to)
    return any(votes[i].code == ReasonCode.EMPTIED for i in to)


# -- page by page ---------------------------------------------------------------------------------


class Reading(NamedTuple):
    """How far the indexes were read.

    Attributes:
        complete: whether to their ends.
        silent: the votes of the nodes that stopped replying, by position.
    """

    complete: bool
    silent: dict[int, Vote]


def read(
    ask: Callable[[int, dict[int, int]], Request],
    take: Callable[[int, Sequence[object]], object],
    to: frozenset[int],
    pages: int,
) -> Steps[Reading]:
    """Read pages of the indexes of these nodes.

    Args:
        ask: returns the request for pages, given their size and where each node's one begins.
        take: called with a node's position and what is on its page.
        to: positions of the nodes.
        pages: at most so many of each node.
    """
    silent: dict[int, Vote] = {}
    begin, size, complete = dict.fromkeys(to, 0), PAGE, True
    for _ in range(pages):
        if not begin:
            break
        votes = yield ask(size, begin)
        after = {}
        for i, start in begin.items():
            vote = votes[i]
            if vote.answer is not Answer.YES:
                silent[i] = vote
                continue
            page: Page = vote.result
            take(i, page.rows)
            if page.after > start or (page.after and size < LARGEST):
                after[i] = page.after
            elif page.after:
                complete = False
        # A page that begins and ends in the same millisecond is read again as a larger one.
        stuck = any(number == begin[i] for i, number in after.items())
        begin, size = after, LARGEST if stuck else PAGE
    return Reading(complete and not begin, silent)


def search(
    backend: Backend, matches: Callable[[str], bool], to: frozenset[int]
) -> Steps[tuple[list[str], Reading]]:
    """Return the held names for which ``matches`` is true, sorted, and how far was read."""
    seen: set[bytes] = set()
    names: list[str] = []

    def ask(size: int, begin: dict[int, int]) -> Request:
        held, to = f"{backend.policy.prefix}held", frozenset(begin)
        return Index(backend.policy.nonce(), all_heard, held, size, to=to, each=begin)

    def take(_: int, listed: Sequence[object]) -> None:
        found = {name for name in listed if isinstance(name, bytes)} - seen
        seen.update(found)
        names.extend(filter(matches, filter(None, map(as_name, found))))

    done = yield from read(ask, take, to, PAGES)
    return sorted(names), done

"""Read the nodes' indexes of names page by page, and search that of the held ones.

A page costs a node less than a millisecond, and between two pages it serves other clients. Pages
are in the order in which names are due. A name that is held throughout is in one of them: its
time only grows, so a renewal can move it to a later page and never to an earlier one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from django_redlock.core.commands import Index, Page
from django_redlock.core.names import LONGEST
from django_redlock.core.protocol import Answer
from django_redlock.core.quorum import all_heard

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from django_redlock.backend import Backend
    from django_redlock.core.protocol import Request, Steps, Vote

PAGE: Final = 1000  # names read at once …
LARGEST: Final = 10_000  # … and where more than that are due in the same millisecond
PAGES: Final = 100  # read of each index at the most


class Matches(NamedTuple):
    """The result of a search.

    Attributes:
        names: those that match, sorted.
        complete: whether all names were looked at.
        lost: the votes of the nodes that stopped replying, by place.
    """

    names: list[str]
    complete: bool
    lost: dict[int, Vote]


class Reading(NamedTuple):
    """How far the indexes were read.

    Attributes:
        complete: whether to their ends.
        lost: the votes of the nodes that stopped replying, by place.
    """

    complete: bool
    lost: dict[int, Vote]


def search(backend: Backend, matches: Callable[[str], bool], to: frozenset[int]) -> Steps[Matches]:
    """Find the names in the indexes of these nodes for which ``matches`` is true."""
    seen: set[bytes] = set()
    names: list[str] = []

    def ask(size: int, begin: dict[int, int]) -> Request:
        held, to = f"{backend.policy.prefix}held", frozenset(begin)
        return Index(backend.policy.nonce(), all_heard, held, size, to=to, each=begin)

    def take(_: int, listed: Sequence[object]) -> None:
        found = {name for name in listed if isinstance(name, bytes)} - seen
        seen.update(found)
        names.extend(filter(matches, filter(None, map(_readable, found))))

    done = yield from read(ask, take, to, PAGES)
    return Matches(sorted(names), *done)


def read(
    ask: Callable[[int, dict[int, int]], Request],
    take: Callable[[int, Sequence[object]], object],
    to: frozenset[int],
    pages: int,
) -> Steps[Reading]:
    """Read pages of the indexes of these nodes.

    Args:
        ask: returns the request for pages, given their size and where each node's one begins.
        take: called with a node's place and what is on its page.
        pages: at most so many of each node.
    """
    lost: dict[int, Vote] = {}
    begin, size, complete = dict.fromkeys(to, 0), PAGE, True
    for _ in range(pages):
        if not begin:
            break
        votes = yield ask(size, begin)
        after = {}
        for place, start in begin.items():
            vote = votes[place]
            if vote.answer is not Answer.YES:
                lost[place] = vote
                continue
            page: Page = vote.result
            take(place, page.rows)
            if page.after > start or (page.after and size < LARGEST):
                after[place] = page.after
            elif page.after:
                complete = False
        stuck = any(number == begin[place] for place, number in after.items())
        begin, size = after, LARGEST if stuck else PAGE
    return Reading(complete and not begin, lost)


def _readable(name: bytes) -> str:
    """Return the name as text; "" for an entry that this package does not write."""
    try:
        return name.decode() if len(name) <= LONGEST else ""
    except UnicodeDecodeError:
        return ""

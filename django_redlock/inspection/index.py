"""Search the nodes' indexes of held names, page by page.

A page costs a node less than a millisecond, and between two pages it serves others. The pages go
by the time when names are due. A name that is held throughout is in one of them: its time only
grows, so a renewal can move it to a later page and never to an earlier one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from django_redlock.core.names import LONGEST
from django_redlock.core.protocol import Answer, Command

from . import polling

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_redlock.backend import Backend
    from django_redlock.core.protocol import Steps, Vote

PAGE: Final = 1000  # names read at once …
LARGEST: Final = 10_000  # … and where more than that are due in the same millisecond
PAGES: Final = 100  # read of each index at the most


class Matches(NamedTuple):
    """What a search has found.

    Attributes:
        names: those that match, sorted.
        complete: whether all names were looked at.
        lost: the votes of the nodes that stopped answering, by place.
    """

    names: list[str]
    complete: bool
    lost: dict[int, Vote]


def search(backend: Backend, matches: Callable[[str], bool], to: frozenset[int]) -> Steps[Matches]:
    """Find the names in the indexes of these nodes for which ``matches`` is true."""
    seen: set[bytes] = set()
    names: list[str] = []
    lost: dict[int, Vote] = {}
    begin, size, complete = dict.fromkeys(to, 0), PAGE, True
    for _ in range(PAGES):
        if not begin:
            break
        to = frozenset(begin)
        votes = yield polling.question(backend, Command.INDEX, (size,), to=to, each=begin)
        after = {}
        for place, start in begin.items():
            vote = votes[place]
            if vote.answer is not Answer.YES:
                lost[place] = vote
                continue
            found = set(vote.data) - seen
            seen |= found
            names += filter(matches, filter(None, map(_readable, found)))
            if vote.number > start or (vote.number and size < LARGEST):
                after[place] = vote.number
            elif vote.number:
                complete = False
        stuck = any(number == begin[place] for place, number in after.items())
        begin, size = after, LARGEST if stuck else PAGE
    return Matches(sorted(names), complete and not begin, lost)


def _readable(name: bytes) -> str:
    """The name as text; "" for what only a stranger can have written into the index."""
    try:
        return name.decode() if len(name) <= LONGEST else ""
    except UnicodeDecodeError:
        return ""

"""Look up names, or what the nodes' indexes list, on all nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from django_redlock.core.commands import DIGITS, LABEL, Survey, as_text, seconds_left
from django_redlock.core.names import LONGEST
from django_redlock.core.protocol import Answer
from django_redlock.core.quorum import all_heard

from . import index, polling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from django_redlock.backend import Backend
    from django_redlock.core.protocol import Request, Steps, Vote

BATCH: Final = 64  # names in one request: of the longest ones, half of what a connection takes


class Cell(NamedTuple):
    """A lock's key on one node.

    Attributes:
        left: seconds until it expires there; None: never.
        owner: a digest of its value, the same on all nodes; the nonce is never read.
        label: the owner's label; "" for other clients' values.
        number: the node's grant number; None for other clients' values.
    """

    left: float | None
    owner: str
    label: str
    number: int | None


Table: TypeAlias = dict[bytes, list[Cell | None]]  # by name; one cell for each node


class Lookup:
    """Collect what the nodes have of some names, or of all that are held.

    Attributes:
        votes: the last vote of each node.
        table: the cells by name.
        more: whether an index has more names than were read.
        beyond, unsearched: as in a survey.
    """

    def __init__(self, backend: Backend, limit: int) -> None:
        self._backend = backend
        self._limit = limit
        self.votes: list[Vote] = []
        self.table: Table = {}
        self.more = self.unsearched = False
        self.beyond = 0

    def at_the_index(self) -> Steps[None]:
        """Enter the held names that the indexes list, the first due first."""
        self.votes = yield from polling.hear(self._backend, self._request(()))
        self.more = any(vote.result and vote.result.looked_at > self._limit for vote in self.votes)
        self._enter(range(len(self.votes)))
        self.table = dict(sorted(self.table.items())[: self._limit])
        yield from self._look_up(_incomplete(self.table, len(polling.heard(self.votes))))

    def by_name(
        self, names: tuple[str, ...], matching: Callable[[str], bool] | None
    ) -> Steps[None]:
        """Enter the names, and those in the indexes that match."""
        # Without names it finds out which nodes reply; each reply has one name or none.
        first = self._request(names[:BATCH], most=self._limit if names else 0)
        self.votes = yield from polling.hear(self._backend, first)
        self._add(names)
        if names:
            self._enter(range(len(self.votes)))
        yield from self._look_up(names[BATCH:])
        if matching:
            heard = polling.heard(self.votes)
            found = yield from index.search(self._backend, matching, heard)
            for i, vote in found.lost.items():
                self.votes[i] = vote
            new = [name for name in found.names if name not in names]
            self.beyond = max(0, len(new) - self._limit)
            self.unsearched = not found.complete
            self._add(new[: self._limit])
            yield from self._look_up(new[: self._limit])

    def _look_up(self, names: Sequence[str]) -> Steps[None]:
        """Enter what the replying nodes have of these names; note which reply no more."""
        for start in range(0, len(names), BATCH):
            batch = tuple(names[start : start + BATCH])
            to = polling.heard(self.votes)
            again = yield self._request(batch, to=to)
            for i in to:
                self.votes[i] = again[i]
                if again[i].answer is Answer.YES:
                    for name in batch:
                        self.table[name.encode()][i] = None
            self._enter(to)

    def _request(
        self, names: tuple[str, ...], *, most: int | None = None, to: frozenset[int] | None = None
    ) -> Request:
        most = self._limit if most is None else most
        # One more than the limit, so that a node with exactly so many is not called truncated.
        policy = self._backend.policy
        held, prefix = f"{policy.prefix}held", f"{policy.prefix}lock:"
        return Survey(policy.nonce(), all_heard, held, prefix, most + 1, names, to=to)

    def _add(self, names: Sequence[str]) -> None:
        self.table |= {name.encode(): [None] * len(self.votes) for name in names}

    def _enter(self, places: Iterable[int]) -> None:
        """Enter the last votes of these nodes into the table."""
        for i in places:
            for name, cell in _cells(self.votes[i]):
                self.table.setdefault(name, [None] * len(self.votes))[i] = cell


def _incomplete(table: Table, heard: int) -> tuple[str, ...]:
    """Return the names that not every replying node has in its index."""
    found = [name for name, cells in table.items() if len(cells) - cells.count(None) < heard]
    # This package writes no other names into the index; those of others are not looked up.
    return tuple(name.decode() for name in found if len(name) <= LONGEST and _is_utf8(name))


def _is_utf8(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _cells(vote: Vote) -> Iterator[tuple[bytes, Cell]]:
    """Yield the names and cells of a node's reply."""
    item: Any
    for item in vote.result.rows if vote.result else ():
        name, owner, milliseconds, number, label = item
        yield (
            name,
            Cell(
                left=seconds_left(milliseconds),
                owner=as_text(owner),
                label=as_text(label)[:LABEL],
                number=int(number) if 0 < len(number) <= DIGITS else None,
            ),
        )

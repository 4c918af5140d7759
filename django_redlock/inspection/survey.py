"""Survey the nodes: what is held, by which holders, until when, and what is wrong with a node.

The commands, the pages and ``Lock.state`` take these facts from here. A survey reads each node's
index of held names (``{prefix}held``), so its cost grows with what is held, not with the database.
A name that only some indexes list is looked up on all nodes: another client's key is in no index,
and a lock may have been taken or released between the replies of two nodes.

Decide nothing by a survey: it is out of date when it is read.
"""

from __future__ import annotations

import enum
import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple, NoReturn, TypeAlias

from django_redlock.backend import Backend
from django_redlock.core.commands import (
    DIGITS,
    LABEL,
    MOST_NUMBER,
    Memory,
    MemoryLimit,
    Survey,
    as_text,
    seconds_left,
)
from django_redlock.core.errors import NodesUnavailable
from django_redlock.core.names import check_names
from django_redlock.core.policy import check_seconds
from django_redlock.core.protocol import Answer, Request, Steps, Vote, one_or_all
from django_redlock.core.quorum import all_heard, majority_of
from django_redlock.core.reasons import (
    Reason,
    ReasonCode,
    Sentence,
    action,
    because,
    is_silent,
    printable,
)
from django_redlock.nodes.node import NodeStatus

from . import index
from .index import BATCH, LIMIT, MOST, as_name, check_limit
from .patterns import Parsed, parse
from .probe import NodeReport, eviction
from .tasks import Task, TaskList, TaskState, list_tasks

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
NO_TASKS: Final = TaskList()
PATIENCE: Final = 2.0  # seconds for which a command or a page waits until nodes are connected


class LockStatus(enum.StrEnum):
    """The status of a name, as far as the nodes that replied can tell."""

    HELD = "held"  # one owner on a majority
    REVOKED = "revoked"  # taken away from its holder, and free when the holder's time is over
    RESTING = "resting"  # released, and not to be taken until its ``min_hold`` is over
    PARTIAL = "partial"  # one owner on fewer nodes than a majority: not held
    SPLIT = "split"  # several owners, none on a majority: not held
    UNCLEAR = "unclear"  # held or not: nodes that did not reply, or do not vote, decide
    FREE = "free"  # on no node; only names that were asked for


ONE_OWNERS: Final = (LockStatus.HELD, LockStatus.REVOKED, LockStatus.RESTING)
UNSETTLED: Final = (LockStatus.PARTIAL, LockStatus.SPLIT, LockStatus.UNCLEAR)
UNSETTLED_TASKS: Final = (TaskState.PARTIAL, TaskState.UNCLEAR)


class Health(enum.StrEnum):
    """Whether locks can be taken; from good to bad."""

    OK = "ok"
    DEGRADED = "degraded"
    NOT_YET = "not_yet"  # only time is missing; a survey says no_majority
    NO_MAJORITY = "no_majority"

    @classmethod
    def worst(cls, found: Iterable[Health]) -> Health:
        """Return the worst of these."""
        return max(found, key=list(cls).index)


SUMMARIES: Final = {
    Health.OK: ReasonCode.HEALTHY,
    Health.DEGRADED: ReasonCode.DEGRADED,
    Health.NO_MAJORITY: ReasonCode.NO_LOCK,
}


# -- what is held ---------------------------------------------------------------------------------


class Cell(NamedTuple):
    """A lock's key on one node.

    Attributes:
        left: seconds until it expires there; None: never.
        owner: a digest of its value, the same on all nodes; the nonce is never read.
        label: the owner's label; "" for other clients' values.
        number: the node's grant number; 0 if the lock was revoked; None for other clients' values.
        waited: whether the node was told in the last 1.5 s that somebody waits for the name.
    """

    left: float | None
    owner: str
    label: str
    number: int | None
    waited: bool = False


class Owner(NamedTuple):
    """A client that has keys of a lock.

    Attributes:
        owner: the digest of its values.
        label: its owner label, as text; "" if it left none.
        on: how many nodes carry its value.
    """

    owner: str
    label: str
    on: int


class HeldLock(NamedTuple):
    r"""A name and what the nodes have of it. *The owner* is the one on most nodes.

    Attributes:
        name: bytes that are no UTF-8 are written as ``\xff``.
        kind: its status.
        holder: the owner's label, "" if it left none.
        fence: the owner's highest grant number; it is the lease's fence when the nodes that
            granted it agreed at once, else the fence may differ. None for other clients.
        on: how many nodes carry the owner's value.
        of: how many nodes there are.
        lowest, highest: seconds left on those nodes; None: the key never expires.
        cells: one for each node; None if there is no key, or no reply.
        owners: all clients that have keys of it, *the owner* first: by the number of nodes.
        own: the cells of the owner.
    """

    name: str
    kind: LockStatus
    holder: str
    fence: int | None
    on: int
    of: int
    lowest: float | None
    highest: float | None
    cells: tuple[Cell | None, ...]
    owners: tuple[Owner, ...]
    own: tuple[Cell, ...]

    @property
    def remaining(self) -> float | None:
        """Seconds until the owner has less than a majority; 0: it has none; None: never."""
        left = sorted(math.inf if cell.left is None else cell.left for cell in self.own)
        majority = majority_of(self.of)
        last = left[-majority] if len(left) >= majority else 0.0
        return None if last == math.inf else last

    @property
    def waited(self) -> int:
        """How many nodes that have a key of it know of a waiter; of how many waiters, none does."""
        return sum(cell.waited for cell in self.cells if cell is not None)

    @property
    def since(self) -> datetime | None:
        """When the holder asked for the name, in UTC; None if it has none, or another client has.

        A grant number is a clock, or one above: the script that grants takes the client's clock, in
        microseconds, where the node's counter has not reached it. So the lowest number of a
        majority is nearest to the clock.
        """
        if self.kind is not LockStatus.HELD:
            return None
        numbers = [cell.number for cell in self.own if cell.number]
        lowest = min(numbers, default=MOST_NUMBER)
        return EPOCH + timedelta(microseconds=lowest) if lowest < MOST_NUMBER else None

    @property
    def age(self) -> float | None:
        """The seconds since ``since``; None as there.

        Both clocks are set by people, that of the holder's machine and ours, so it is to be shown.
        """
        since = self.since
        return None if since is None else max(0.0, (datetime.now(UTC) - since).total_seconds())


def oldest_first(locks: Iterable[HeldLock], older_than: float = 0.0) -> list[HeldLock]:
    """Return the locks that are held for so many seconds, the oldest first."""
    ages = [(age, lock) for lock in locks if (age := lock.age) is not None and age >= older_than]
    return [lock for _, lock in sorted(ages, key=lambda pair: -pair[0])]


def judge(
    name: bytes, found: Sequence[Cell | None], nodes: Sequence[NodeReport], majority: int
) -> HeldLock:
    """Classify a name by its keys.

    A node that does not vote, by the restart guard for one, may have forgotten a key: that it has
    none says nothing.
    """
    labels = {cell.owner: cell.label for cell in found if cell is not None}
    counts = Counter(cell.owner for cell in found if cell is not None)
    owners = tuple(Owner(owner, labels[owner], on) for owner, on in counts.most_common())
    own = tuple(cell for cell in found if cell is not None and cell.owner == owners[0].owner)
    left = [cell.left for cell in own if cell.left is not None]
    unheard = sum(cell is None and not node.voting for cell, node in zip(found, nodes, strict=True))
    if len(own) >= majority:
        revoked = sum(cell.number == 0 for cell in own) >= majority
        rests = LockStatus.RESTING if _rests(own[0]) else LockStatus.HELD
        kind = LockStatus.REVOKED if revoked else rests
    elif len(own) + unheard >= majority:
        kind = LockStatus.UNCLEAR
    elif len(owners) > 1:
        kind = LockStatus.SPLIT
    else:
        kind = LockStatus.PARTIAL if own else LockStatus.FREE
    return HeldLock(
        name=as_text(name),
        kind=kind,
        holder=own[0].label if own else "",
        fence=max((cell.number for cell in own if cell.number), default=None),
        on=len(own),
        of=len(found),
        lowest=min(left, default=None),
        highest=max(left) if left and len(left) == len(own) else None,
        cells=tuple(found),
        owners=owners,
        own=own,
    )


def _rests(cell: Cell) -> bool:
    """Return True if this is the value that ``rest.lua`` leaves; no client owns it."""
    digest = hashlib.sha1(f"rest::{cell.label}".encode(), usedforsecurity=False).hexdigest()
    return cell.number is None and digest.startswith(cell.owner)


# -- the report -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report:
    """The state of an alias's nodes and locks at one moment.

    Attributes:
        alias: its name.
        nodes: the nodes, in the order of the settings.
        locks: those that were asked for, or those that are held.
        majority: how many nodes must vote for a lock.
        truncated: whether more is held than ``limit`` allowed to show.
        beyond: how many more names match than ``limit`` allowed to show.
        unsearched: whether more names are held than were searched.
        tasks: those that wait and run, if they were asked for.
        waiting: how many names somebody waits for, at most 10,000; None: that was not asked for,
            or no node told. A node believes in a waiter for 1.5 s after it was heard of.
    """

    alias: str
    nodes: tuple[NodeReport, ...]
    locks: tuple[HeldLock, ...]
    majority: int
    truncated: bool = False
    beyond: int = 0
    unsearched: bool = False
    tasks: TaskList = NO_TASKS
    waiting: int | None = None

    @property
    def heard(self) -> frozenset[int]:
        """The positions of the nodes that replied; of the others, cells are unknown."""
        return frozenset(i for i, node in enumerate(self.nodes) if node.heard)

    @property
    def unwell(self) -> tuple[NodeReport, ...]:
        """The nodes that do not vote, or vote and are set up badly."""
        return tuple(node for node in self.nodes if not node.voting or node.warning)

    @property
    def complete(self) -> bool:
        """Whether so many nodes vote that no held lock can be missing.

        A reply is not enough: a node under the restart guard may have forgotten a lock.
        """
        return len(self.nodes) - self.voting < self.majority

    @property
    def voting(self) -> int:
        """How many nodes vote now."""
        return sum(node.voting for node in self.nodes)

    @property
    def health(self) -> Health:
        """Whether locks can be taken, and whether a node needs attention."""
        if self.voting == len(self.nodes):
            return Health.OK
        return Health.DEGRADED if self.voting >= self.majority else Health.NO_MAJORITY

    @property
    def summary(self) -> Reason:
        """The health as a reason, with the votes."""
        votes, size = self.voting, len(self.nodes)
        return because(SUMMARIES[self.health], votes=votes, size=size, needed=self.majority)

    @property
    def advice(self) -> tuple[Reason, ...]:
        """What to do about nodes that need attention, each thing once."""
        return tuple(self._advice())

    def _advice(self) -> Iterator[Reason]:
        replying = [node for node in self.nodes if node.heard]
        if any(node.guard_left for node in replying):
            yield because(ReasonCode.ADVICE_GUARD)
        if any(node.clock_off for node in replying):
            yield because(ReasonCode.ADVICE_CLOCK)
        silent = [node for node in self.nodes if not node.heard]
        if any(is_silent(node.reason) for node in silent):
            yield because(ReasonCode.ADVICE_DOWN, alias=self.alias)
        running = {node.why: node.reason for node in silent if not is_silent(node.reason)}
        for cause in filter(None, running.values()):
            if do := action(cause):
                yield because(ReasonCode.ADVICE_NODE, cause=cause, action=do)
        evicts = eviction(self.nodes)
        if evicts:
            yield evicts


# -- ask ------------------------------------------------------------------------------------------


def survey(
    backend: Backend,
    names: Sequence[str] = (),
    *,
    limit: int = LIMIT,
    matching: Callable[[str], bool] | None = None,
    memory: bool = False,
    patience: float = PATIENCE,
) -> Report:
    """Ask all nodes what is held.

    A node that does not reply costs NODE_TIMEOUT; nodes known to be down cost nothing while there
    is a majority without them. At the first contact connecting to a node may take longer than the
    NODE_TIMEOUT that a lock would wait for it, by TLS for one, and makes no node seem to be down.

    Args:
        backend: that of the alias; see ``conf.backend``.
        names: look up these and nothing else, whether they are in the index or not.
        limit: the most names to read from the index.
        matching: search the index for the names for which this is true, besides ``names``.
        memory: ask also what the nodes do when their memory is full, how many names have waiters,
            and whether they were emptied under this process; two more requests.
        patience: seconds for which nodes that are being connected are waited for, at least; 0 for
            who must not wait, such as a view: then healthy nodes may seem to be down.

    Raises:
        ValueError: a name that no lock can have, or a limit that is not from 1 to 10,000.
    """
    check_limit(limit)
    wanted = tuple(dict.fromkeys(check_names(list(names)))) if names else ()
    steps = surveying(backend, wanted, limit, matching, memory=memory, patience=patience)
    return backend.run(steps)


def surveying(
    backend: Backend,
    names: tuple[str, ...],
    limit: int = LIMIT,
    matching: Callable[[str], bool] | None = None,
    *,
    memory: bool = False,
    patience: float = 0.0,
) -> Steps[Report]:
    """Ask as ``survey`` does, in steps for threads or tasks; the arguments are checked already."""
    found = yield from _Lookup(backend, limit, patience).run(names, matching)
    if memory and (yield from index.any_emptied(backend, index.heard(found.votes))):
        # Connected anew, this process knows that they do not vote, and for how long.
        found = yield from _Lookup(backend, limit, patience).run(names, matching)
    told: Sequence[Vote | None] = [None] * len(found.votes)
    if memory:
        policy, to = backend.policy, index.heard(found.votes)
        keys = f"{policy.prefix}held", f"{policy.prefix}waits"
        told = yield Memory(policy.nonce(), all_heard, *keys, MOST, to=to)
    majority = backend.policy.majority
    nodes = tuple(map(_report, backend.group.states(), found.votes, told))
    locks = [judge(name, cells, nodes, majority) for name, cells in found.table.items()]
    return Report(
        backend.alias,
        nodes,
        # What the index had may have been released before it was looked up.
        tuple(lock for lock in locks if lock.kind is not LockStatus.FREE or lock.name in names),
        majority,
        truncated=found.more or found.beyond > 0 or found.unsearched,
        beyond=found.beyond,
        unsearched=found.unsearched,
        waiting=max((vote.result.waiting for vote in told if vote and vote.result), default=None),
    )


def _report(state: NodeStatus, vote: Vote, memory: Vote | None) -> NodeReport:
    """Make the report of a node of what its process knows of it, and of its replies."""
    heard = vote.answer is Answer.YES
    report = NodeReport(heard=heard, **state._asdict())
    if not heard:
        reason = vote.reason if state.uptime is None else state.reason or vote.reason
        report = replace(report, voting=False, reason=reason, uptime=None, round_trip=None)
    if memory is not None and memory.answer is Answer.YES:
        told: MemoryLimit = memory.result
        report = replace(
            report,
            maxmemory=told.limit,
            maxmemory_policy=told.policy.decode("ascii", "replace"),
            evicted_keys=told.evicted,
        )
    return report


Table: TypeAlias = dict[bytes, list[Cell | None]]  # by name; one cell for each node


class _Lookup:
    """Collect what the nodes have of some names, or of all that are held.

    Attributes:
        votes: the last vote of each node.
        table: the cells by name.
        more: whether an index has more names than were read.
        beyond, unsearched: as in a report.
    """

    def __init__(self, backend: Backend, limit: int, patience: float) -> None:
        self._backend = backend
        self._limit, self._patience = limit, patience
        self.votes: list[Vote] = []
        self.table: Table = {}
        self.more = self.unsearched = False
        self.beyond = 0

    def run(self, names: tuple[str, ...], matching: Callable[[str], bool] | None) -> Steps[_Lookup]:
        """Look up these names and those that match; without any, what the indexes list."""
        yield from self._by_name(names, matching) if names or matching else self._at_the_index()
        return self

    def _at_the_index(self) -> Steps[None]:
        """Enter the held names that the indexes list, the first due first."""
        most = min(self._limit, index.PAGE)
        self.votes = yield from index.ask_all(self._backend, self._request((), most=most))
        self.more = any(vote.result and vote.result.looked_at > most for vote in self.votes)
        self._enter(range(len(self.votes)))
        if self.more and most < self._limit:
            # One script for all would last longer than a node timeout, and keep others waiting.
            beyond, complete = yield from self._search(bool, max(0, self._limit - len(self.table)))
            self.more = beyond > 0 or not complete
        self.table = dict(sorted(self.table.items())[: self._limit])
        # Names that not every replying node lists. Those that others wrote are not looked up.
        replied = len(index.heard(self.votes))
        some = [
            as_name(name)
            for name, cells in self.table.items()
            if len(cells) - cells.count(None) < replied
        ]
        yield from self._look_up(list(filter(None, some)))

    def _by_name(
        self, names: tuple[str, ...], matching: Callable[[str], bool] | None
    ) -> Steps[None]:
        """Enter the names, and those in the indexes that match."""
        # Without names it finds out which nodes reply; each reply has one name or none.
        first = self._request(names[:BATCH], most=self._limit if names else 0)
        self.votes = yield from index.ask_all(self._backend, first)
        self._add(names)
        if names:
            self._enter(range(len(self.votes)))
        yield from self._look_up(names[BATCH:])
        if matching:
            self.beyond, complete = yield from self._search(matching, self._limit)
            self.unsearched = not complete

    def _search(self, matches: Callable[[str], bool], room: int) -> Steps[tuple[int, bool]]:
        """Enter at most ``room`` more names that the indexes list and that match.

        Returns:
            How many more match, and whether the indexes were read to their ends.
        """
        found, reading = yield from index.search(self._backend, matches, index.heard(self.votes))
        for i, vote in reading.silent.items():
            self.votes[i] = vote
        new = [name for name in found if name.encode() not in self.table]
        self._add(new[:room])
        yield from self._look_up(new[:room])
        return max(0, len(new) - room), reading.complete

    def _look_up(self, names: Sequence[str]) -> Steps[None]:
        """Enter what the replying nodes have of these names; note which reply no more."""
        for start in range(0, len(names), BATCH):
            batch = tuple(names[start : start + BATCH])
            to = index.heard(self.votes)
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
        keys = f"{policy.prefix}held", f"{policy.prefix}waits", f"{policy.prefix}lock:"
        return Survey(policy.nonce(), all_heard, *keys, most + 1, names, self._patience, to=to)

    def _add(self, names: Sequence[str]) -> None:
        self.table |= {name.encode(): [None] * len(self.votes) for name in names}

    def _enter(self, nodes: Iterable[int]) -> None:
        """Enter the last votes of these nodes into the table."""
        for i in nodes:
            found = self.votes[i].result
            row: Any
            for row in found.rows if found else ():
                name, owner, milliseconds, number, label, waited = row
                cell = Cell(
                    left=seconds_left(milliseconds),
                    owner=as_text(owner),
                    label=as_text(label)[:LABEL],
                    number=int(number) if 0 < len(number) <= DIGITS else None,
                    waited=waited == 1,
                )
                self.table.setdefault(name, [None] * len(self.votes))[i] = cell


# -- the state of one lock, for ``Lock.state`` and for templates: a look, never a promise ----------

# Of several names, the state of the first of these tells most about the lock.
TELLING: Final = (
    *(LockStatus.HELD, LockStatus.REVOKED, LockStatus.RESTING, LockStatus.UNCLEAR),
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
        kind: ``"held"``, ``"revoked"``, ``"resting"``, ``"partial"``, ``"split"``, ``"unclear"``
            or ``"free"``, as in ``redlock_status``. Only ``"held"`` has a holder. ``"revoked"``: it
            was taken away, and is free when its holder's time is over. ``"resting"``: nobody gets
            it before its ``min_hold`` is over. ``"unclear"``: nodes without a vote decide.
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
    voting_or_raise(found, *wanted)
    states = [state_of(lock) for lock in found.locks]
    if len(states) == 1:
        return states[0]
    most = min(states, key=_tells_most)
    return replace(most, name=tuple(str(each.name) for each in states), each=tuple(states))


def voting_or_raise(found: Report, *names: str) -> None:
    """Return if a majority of the nodes votes, else raise NodesUnavailable with what they say."""
    if found.voting >= found.majority:
        return
    size, needed = len(found.nodes), found.majority
    reason = because(ReasonCode.NO_MAJORITY, votes=found.voting, size=size, needed=needed)
    votes = tuple(
        Vote(node.label, Answer.YES if node.voting else Answer.UNKNOWN, reason=node.reason)
        for node in found.nodes
    )
    raise NodesUnavailable(reason, name=one_or_all(names), votes=votes)


def state_of(lock: HeldLock) -> LockState:
    """Return the state of a name, as a survey found it."""
    state = LockState(lock.name, lock.kind, remaining=lock.remaining)
    if lock.kind is not LockStatus.HELD:
        return state
    return replace(state, holder=printable(lock.holder), since=lock.since, fence=lock.fence)


def _tells_most(state: LockState) -> tuple[int, float]:
    left = math.inf if state.remaining is None else state.remaining
    return TELLING.index(state.kind), -left


# -- what somebody asks for -----------------------------------------------------------------------


class Wanted:
    """What is asked for by names, and by patterns that names of held locks match.

    A pattern is looked up as a name, too, and shown if that is taken: the lock may be
    another client's, which is in no index. A task is shown if its name, its id or a name that it
    locks is asked for. Without any text, all is.

    Args:
        finished: whether finished tasks are asked for as well.
        older_than: seconds; only locks that are held for so long, the oldest first. None: all.
        problems: only locks and tasks that need attention.

    Raises:
        ValueError: a text is too long, or the seconds are negative.
    """

    def __init__(
        self,
        texts: Sequence[str] = (),
        *,
        finished: bool = False,
        older_than: float | None = None,
        problems: bool = False,
    ) -> None:
        if older_than is not None:
            check_seconds("--older-than", older_than, zero=True)
        self.finished, self.older_than, self.problems = finished, older_than, problems
        self.texts: list[Parsed] = [parse(text) for text in texts]
        self.patterns = [each for each in self.texts if each.is_pattern]
        self.filters: Final = problems or older_than is not None  # what was read

    def survey(self, backend: Backend, limit: int = LIMIT) -> Report:
        """Ask the nodes of an alias for locks, tasks, and all that a report of them has.

        Raises:
            ValueError: what cannot be a lock's name, or a limit not from 1 to 10,000.
        """
        names = [each.name for each in self.texts]
        matching = self._matches if self.patterns else None
        found = survey(backend, names, limit=limit, matching=matching, memory=True)
        tasks = list_tasks(
            backend,
            found.heard,
            finished=self.finished,
            limit=limit,
            matching=self._matches_task if self.texts else None,
        )
        shown_free = {each.name for each in self.texts if not each.is_pattern}
        shown_free -= {text for task in tasks.tasks for text in (task.task, task.task_id)}
        locks = [lock for lock in found.locks if lock.on or lock.name in shown_free]
        if self.older_than is not None:
            locks = oldest_first(locks, self.older_than)
        if self.problems:
            locks = [lock for lock in locks if lock.kind in UNSETTLED]
            odd = [task for task in tasks.tasks if task.state in UNSETTLED_TASKS]
            tasks = replace(tasks, tasks=tuple(odd))
        return replace(found, locks=tuple(locks), tasks=tasks)

    def unmet(self, found: Report) -> Iterator[Sentence]:
        """Say what was asked for and is not held, as far as that is known.

        A name that is free has a row.
        """
        if self.problems:
            tasks = found.tasks
            unread = found.truncated or tasks.truncated or tasks.beyond
            if not (found.locks or tasks.tasks or found.unwell or unread):
                yield Sentence("Nothing needs attention.")
            return
        if self.older_than is not None:
            if not (found.locks or found.truncated):
                yield Sentence(
                    "No lock is held for {seconds:g} s or longer.", seconds=self.older_than
                )
            return
        if not (self.texts or found.locks):
            yield Sentence("No lock is held.")
        names = [lock.name for lock in found.locks]
        for each in self.patterns if not found.truncated else ():
            if each.name not in names and not any(map(each.matches, names)):
                yield Sentence("No held lock matches '{name}'.", name=each.name)

    def _matches(self, name: str) -> bool:
        return any(each.matches(name) for each in self.patterns)

    def _matches_task(self, task: Task) -> bool:
        return any(each.matches(text) for each in self.texts for text in task.texts)

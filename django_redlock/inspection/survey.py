"""Survey the nodes: what is held, by which holders, until when, and what is wrong with a node.

The commands, the pages and ``Lock.state`` take these facts from here. Each node keeps an index of
the held locks, of the marks of queued tasks, of the last completion records, and of the last work
that was done once. A survey reads these page by page, so its cost grows with what is there, not
with the database; between two pages a node serves other clients. A page has the names that are due
first. A name that is held throughout is on one of them: its time only grows, so a renewal can move
it to a later page and never to an earlier one. A name that only some nodes list is looked up on all
of them: another client's key is in no index, and a lock may have been taken or released between the
replies of two nodes.

Decide nothing by a survey: it is out of date when it is read.
"""

from __future__ import annotations

import enum
import fnmatch
import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Any, Final, NamedTuple, NoReturn

from django_redlock.backend import Backend
from django_redlock.core import completion
from django_redlock.core.commands import (
    DIGITS,
    EMPTIED,
    LABEL,
    MOST_NUMBER,
    Memory,
    MemoryLimit,
    Page,
    Survey,
    as_text,
    seconds_left,
)
from django_redlock.core.errors import NodesUnavailable
from django_redlock.core.names import LONGEST, check_names
from django_redlock.core.policy import check_seconds
from django_redlock.core.protocol import Answer, Request, Steps, Vote, one_or_all
from django_redlock.core.quorum import all_heard, majority_of
from django_redlock.core.reasons import Reason, ReasonCode, action, because, is_silent, printable
from django_redlock.core.slots import MOST as MOST_SLOTS
from django_redlock.core.slots import entry_of, read_entry, read_label, shown
from django_redlock.nodes.node import NodeStatus

from .probe import PATIENCE, Health, NodeReport, eviction

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
LIMIT: Final = 1000  # names shown of an index, unless told otherwise …
MOST: Final = 10_000  # … and at most
PAGE: Final = 1000  # names read at once, at first of all indexes together …
LARGEST: Final = 10_000  # … and where more than that are due in the same millisecond
PAGES: Final = 100  # read of each index at the most, after the first
BATCH: Final = 64  # names in one request: of the longest ones, half of what a connection takes
AGAIN: Final = 2  # times that nodes which were only too slow are asked again
# By index: the kind of the values that it lists, and what their keys begin with.
INDEXES: Final = {
    "held": ("lock", "lock:"),
    "marks": ("mark", "mark:"),
    "records": ("done", "lock:"),
    "once": ("lock", "lock:"),
}
COUNTED: Final = ("held", "marks")
LISTED: Final = (*COUNTED, "once")  # without the finished tasks
TASK: Final = re.compile(r"\(([\w.-]+)\):([\w.-]+)\Z", re.ASCII)  # at the end of a run's label


class LockStatus(enum.StrEnum):
    """The status of a name, as far as the nodes that replied can tell."""

    HELD = "held"  # one owner on a majority
    REVOKED = "revoked"  # taken away from its holder, and free when the holder's time is over
    RESTING = "resting"  # released, and not to be taken until its ``min_hold`` is over
    PARTIAL = "partial"  # one owner on fewer nodes than a majority: not held
    SPLIT = "split"  # several owners, none on a majority: not held
    UNCLEAR = "unclear"  # held or not: nodes that did not reply, or do not vote, decide
    FREE = "free"  # on no node; only names that were asked for
    QUEUED = "queued"  # the mark of a task whose message waits, or comes back later
    DONE = "done"  # its work is done, as ``once`` has recorded on one node at least
    FINISHED = "finished"  # the completion record of a task, on one node at least


ONE_OWNERS: Final = (LockStatus.HELD, LockStatus.REVOKED, LockStatus.RESTING, LockStatus.DONE)
UNSETTLED: Final = (LockStatus.PARTIAL, LockStatus.SPLIT, LockStatus.UNCLEAR)


SUMMARIES: Final = {
    Health.OK: ReasonCode.HEALTHY,
    Health.DEGRADED: ReasonCode.DEGRADED,
    Health.NO_MAJORITY: ReasonCode.NO_LOCK,
}


# -- what is held ---------------------------------------------------------------------------------


class Cell(NamedTuple):
    """The key of a lock, a mark or a record on one node.

    Attributes:
        left: seconds until it expires there; None: never.
        owner: a digest of its value, the same on all nodes; the nonce is never read.
        label: the owner's label, of a mark the task's id; "" for other clients' values.
        number: the node's grant number; 0 if the lock was revoked; None for other clients' values.
        waited: whether the node was told in the last 1.5 s that somebody waits for the name.
        done: when the work of the name was done, in milliseconds since 1970; 0: it is no such
            record.
        limit: how many may hold the name at a time, as its owner takes it; None: it did not tell.
        rests: whether this is the value of a name that rests; no client owns it.
    """

    left: float | None
    owner: str
    label: str
    number: int | None
    waited: bool = False
    done: int = 0
    limit: int | None = None
    rests: bool = False


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

    It is a lock, the mark of a queued task, or a completion record. Of several names that a queued
    task will lock, the mark has the first, the number of the others and a digest. Each slot of a
    limited lock is a lock of its own.

    Attributes:
        name: bytes that are no UTF-8 are written as ``\xff``.
        status: see ``LockStatus``; ``kind`` is the same, as ``LockState`` and ``--json`` call it.
        holder: the owner's label, "" if it left none.
        fence: the owner's highest grant number; it is the lease's fence when the nodes that
            granted it agreed at once, else the fence may differ. None for other clients.
        on: how many nodes carry the owner's value.
        of: how many nodes there are.
        lowest, highest: seconds left on those nodes; None: the key never expires.
        cells: one for each node; None if there is no key, or no reply.
        owners: all clients that have keys of it, *the owner* first: by the number of nodes.
        own: the cells of the owner.
        key: the key on the nodes, without the prefix of all keys.
        is_lock: whether it is a lock, not a mark or a record.
        task, task_id: the task that runs, waits or has finished; "" where none is known.
        slot: which slot of a limited lock it is, from 0; None: it is a plain lock, or no lock.
        limit: how many slots there are, as *the owner* takes it; None: it did not tell.
    """

    name: str
    status: LockStatus
    holder: str
    fence: int | None
    on: int
    of: int
    lowest: float | None
    highest: float | None
    cells: tuple[Cell | None, ...]
    owners: tuple[Owner, ...]
    own: tuple[Cell, ...]
    key: str = ""
    is_lock: bool = True
    task: str = ""
    task_id: str = ""
    slot: int | None = None
    limit: int | None = None

    @property
    def entry(self) -> str:
        """The name of the lock on the nodes."""
        return entry_of(self.name, self.slot)

    @property
    def quoted(self) -> str:
        """The name for a sentence, with the slot."""
        return f"{self.name!r}{shown(self.slot, self.limit)}"

    @property
    def kind(self) -> LockStatus:
        """The status."""
        return self.status

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts by which it is found: its name, and its task's name and id."""
        return tuple(filter(None, (self.name, self.task, self.task_id)))

    @property
    def remaining(self) -> float | None:
        """Seconds until the owner has less than a majority; 0 if it has none, None if never."""
        left = sorted(math.inf if cell.left is None else cell.left for cell in self.own)
        majority = majority_of(self.of)
        last = left[-majority] if len(left) >= majority else 0.0
        return None if last == math.inf else last

    @property
    def waited(self) -> int:
        """How many nodes that have a key of it know of a waiter; of how many waiters, none does."""
        return sum([cell.waited for cell in self.cells if cell is not None])

    @property
    def since(self) -> datetime | None:
        """When the holder asked for the name, in UTC; None if it has none, or another client has.

        Of work that is done once, when it was done.

        A grant number is a clock, or one above: the script that grants takes the client's clock, in
        microseconds, where the node's counter has not reached it. So the lowest number of a
        majority is nearest to the clock.
        """
        if self.status is LockStatus.DONE:
            return EPOCH + timedelta(milliseconds=self.own[0].done)
        if self.status is not LockStatus.HELD:
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
    held = [lock for lock in locks if lock.status is LockStatus.HELD]
    ages = [(age, lock) for lock in held if (age := lock.age) is not None and age >= older_than]
    return [lock for _, lock in sorted(ages, key=lambda pair: -pair[0])]


def judge(
    entry: bytes,
    found: Sequence[Cell | None],
    nodes: Sequence[NodeReport],
    majority: int,
    kind: str = "lock",
) -> HeldLock:
    """Make the row of an entry of an index, by the keys of the nodes.

    A node that does not vote, by the restart guard for one, may have forgotten a key: that it has
    none says nothing.

    Args:
        kind: "lock", "mark" or "done": the kind of value that the index lists.
    """
    before = f"{_about(kind, entry, '')[1]}, id " if kind == "mark" else ""
    cells = [cell for cell in found if cell is not None]
    labels = {cell.owner: before + cell.label for cell in cells}
    counts = Counter([cell.owner for cell in cells]).most_common()
    owners = [Owner(owner, labels[owner], on) for owner, on in counts]
    if owners and owners[0].on < majority and (last := max(cells, key=_done)).done:
        owners.sort(key=lambda each: each.owner != last.owner)  # a record counts most, unless held
    own = tuple([cell for cell in cells if cell.owner == owners[0].owner])
    status = JUDGES[kind](own, majority) if own else None
    if status is None:
        pairs = zip(found, nodes, strict=True)
        unheard = sum([cell is None and not node.voting for cell, node in pairs])
        status = _unsettled(len(own), len(owners), unheard, majority)
    # The run of a name that rests is over.
    runs = own and status not in {LockStatus.RESTING, LockStatus.DONE}
    name, task, task_id = _about(kind, entry, own[0].label if runs else "")
    left = [cell.left for cell in own if cell.left is not None]
    text = as_text(entry)
    return HeldLock(
        slot=None if kind == "mark" else read_entry(text).slot,
        limit=own[0].limit if own else None,
        name=name,
        status=status,
        holder=owners[0].label if own else "",
        fence=max([cell.number for cell in own if cell.number], default=None),
        on=len(own),
        of=len(found),
        lowest=min(left, default=None),
        highest=max(left) if left and len(left) == len(own) else None,
        cells=tuple(found),
        owners=tuple(owners),
        own=own,
        key=f"{'mark' if kind == 'mark' else 'lock'}:{text}",
        is_lock=kind == "lock",
        task=task,
        task_id=task_id,
    )


def _judge_lock(own: Sequence[Cell], majority: int) -> LockStatus | None:
    if own[0].done:  # on one node is enough
        return LockStatus.DONE
    if len(own) < majority:
        return None
    if [cell.number for cell in own].count(0) >= majority:
        return LockStatus.REVOKED
    return LockStatus.RESTING if own[0].rests else LockStatus.HELD


def _judge_mark(own: Sequence[Cell], majority: int) -> LockStatus | None:
    return LockStatus.QUEUED if len(own) >= majority else None


def _judge_record(own: Sequence[Cell], majority: int) -> LockStatus:  # noqa: ARG001 - as the others
    return LockStatus.FINISHED  # on one node is enough


# By kind: the status by the cells of the owner; None: they do not settle it.
JUDGES: Final = {"lock": _judge_lock, "mark": _judge_mark, "done": _judge_record}


def _unsettled(own: int, owners: int, unheard: int, majority: int) -> LockStatus:
    if own + unheard >= majority:
        return LockStatus.UNCLEAR
    if owners > 1:
        return LockStatus.SPLIT
    return LockStatus.PARTIAL if own else LockStatus.FREE


def _done(cell: Cell) -> int:
    return cell.done


def _about(kind: str, entry: bytes, label: str) -> tuple[str, str, str]:
    """Return the name, the task and the task's id that an entry of an index is about."""
    name = as_text(entry)
    if kind == "mark":
        task, locked = completion.of_mark(name)
        return locked, task, label
    name = read_entry(name).name
    found = TASK.search(label)
    return (name, found[1], found[2]) if found else (name, "", "")


def _rests(owner: str, text: str) -> bool:
    """Return True if this is the digest of the value that ``rest.lua`` leaves."""
    digest = hashlib.sha1(f"rest::{text}".encode(), usedforsecurity=False).hexdigest()
    return digest.startswith(owner)


# -- the report -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Report:
    """The state of an alias's nodes and locks at one moment.

    Attributes:
        alias: its name.
        nodes: the nodes, in the order of the settings.
        locks: those that were asked for, or those that are held; and marks and records.
        majority: how many nodes must vote for a lock.
        truncated: whether more is held than ``limit`` allowed to show.
        beyond: how many more names match than ``limit`` allowed to show.
        unsearched: whether an index has more names than were searched.
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
        return sum(map(attrgetter("voting"), self.nodes))

    @property
    def health(self) -> Health:
        """Whether locks can be taken, and whether a node needs attention."""
        voting = self.voting
        if voting == len(self.nodes):
            return Health.OK
        return Health.DEGRADED if voting >= self.majority else Health.NO_MAJORITY

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
        if any(map(attrgetter("guard_left"), replying)):
            yield because(ReasonCode.ADVICE_GUARD)
        if any(map(attrgetter("clock_off"), replying)):
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
    indexes: Sequence[str] = ("held",),
    patience: float = PATIENCE,
) -> Report:
    """Ask all nodes what is held.

    A node that does not reply costs NODE_TIMEOUT; nodes known to be down cost nothing while there
    is a majority without them. At the first contact connecting to a node may take longer than the
    NODE_TIMEOUT that a lock would wait for it, by TLS for one, and makes no node seem to be down.

    Args:
        backend: that of the alias; see ``conf.backend``.
        names: look up the locks of these names and nothing else, whether an index has them or not;
            that of a slot is ``core.slots.entry_of`` of name and slot.
        limit: the most names of each index.
        matching: search the indexes for what has a text for which this is true, besides ``names``.
        indexes: which of ``INDEXES`` are read, where no names are asked for: locks only, or the
            marks, and the last 10,000 completion records and records of ``once`` as well.
        memory: ask also what the nodes do when their memory is full, how many names have waiters,
            and whether they were emptied under this process; one more request.
        patience: seconds for which nodes that are being connected are waited for, at least; 0 for
            who must not wait, such as a view: then healthy nodes may seem to be down.

    Raises:
        ValueError: a name that no lock can have, or a limit that is not from 1 to 10,000.
    """
    if not 1 <= limit <= MOST:
        msg = f"limit must be from 1 to {MOST}, not {limit}"
        raise ValueError(msg)
    given: Sequence[object] = names
    if given:
        check_names([read_entry(each).name if isinstance(each, str) else each for each in given])
    wanted = tuple(dict.fromkeys(map(str, names)))
    reader = _Reader(backend, limit, matching, indexes, patience)
    return backend.run(_surveying(backend, reader, wanted, memory=memory))


def entries_of(name: str, limit: int = MOST_SLOTS) -> tuple[str, ...]:
    """Return the name on the nodes of each slot of a limited lock."""
    return tuple([entry_of(name, slot) for slot in range(limit)])


def slots_taken(backend: Backend, name: str) -> tuple[HeldLock, ...]:
    """Return the slots of a limited lock that are not free, whatever their holders take for k."""
    found = survey(backend, entries_of(name))
    return tuple(lock for lock in found.locks if lock.on)


def surveying(backend: Backend, names: tuple[str, ...]) -> Steps[Report]:
    """Ask for these names as ``survey`` does, in steps, and wait for no connection."""
    return _surveying(backend, _Reader(backend), names)


def _surveying(
    backend: Backend, reader: _Reader, names: tuple[str, ...], *, memory: bool = False
) -> Steps[Report]:
    yield from reader.run(names)
    memories: Sequence[Vote | None] = [None] * len(reader.votes)
    if memory:
        memories = asked = yield from _ask_for_memory(backend, heard(reader.votes))
        if EMPTIED in [vote.reason for vote in asked]:
            # Connected anew, this process knows that they do not vote, and for how long.
            yield from reader.run(names)
            memories = yield from _ask_for_memory(backend, heard(reader.votes))
    majority = backend.policy.majority
    nodes = tuple(map(_report, backend.group.states(), reader.votes, memories))
    locks = [
        judge(name, cells, nodes, majority, kind) for (kind, name), cells in reader.table.items()
    ]
    running = {lock.task_id for lock in locks if lock.status is LockStatus.HELD}
    shown = [
        lock
        for lock in locks
        # What an index had may have been released before it was looked up.
        if (lock.status is not LockStatus.FREE or lock.entry in names)
        # A task that runs is queued no more.
        and not (lock.status is LockStatus.QUEUED and lock.task_id in running)
    ]
    return Report(
        backend.alias,
        nodes,
        tuple(shown),
        majority,
        truncated=reader.more or reader.beyond > 0 or reader.unsearched,
        beyond=reader.beyond,
        unsearched=reader.unsearched,
        waiting=max(
            [vote.result.waiting for vote in memories if vote and vote.result], default=None
        ),
    )


def _ask_for_memory(backend: Backend, to: frozenset[int]) -> Steps[Sequence[Vote]]:
    policy = backend.policy
    keys = f"{policy.prefix}fences", f"{policy.prefix}waits"
    votes: Sequence[Vote] = yield Memory(policy.nonce(), all_heard, *keys, MOST, to=to)
    return votes


def _report(state: NodeStatus, vote: Vote, memory: Vote | None) -> NodeReport:
    heard = vote.answer is Answer.YES
    report = NodeReport(heard=heard, **state._asdict())
    if not heard:
        reason = vote.reason if state.uptime is None else state.reason or vote.reason
        report = replace(report, voting=False, reason=reason, uptime=None, round_trip=None)
    if memory is not None and memory.answer is Answer.YES:
        limits: MemoryLimit = memory.result
        report = replace(
            report,
            maxmemory=limits.limit,
            maxmemory_policy=limits.policy.decode("ascii", "replace"),
            evicted_keys=limits.evicted,
        )
    return report


def heard(votes: Sequence[Vote]) -> frozenset[int]:
    """Return the indices of the nodes that replied."""
    return frozenset([i for i, vote in enumerate(votes) if vote.answer is Answer.YES])


def ask_all(backend: Backend, request: Request) -> Steps[list[Vote]]:
    """Send a request to all nodes, and again to those that were only too slow."""
    votes = list((yield request))
    patient = True
    for _ in range(AGAIN):
        if len(heard(votes)) == len(votes):
            break
        prompt, slow = _worth_another_try(votes, backend.group.states())
        to = prompt or (slow if patient else frozenset())
        if not to:
            break
        patient = patient and to is not slow  # waiting for connections once more is enough
        again = yield replace(request, nonce=backend.policy.nonce(), to=to)
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


class _Reader:
    """Collect what the nodes have of some names, or of all that their indexes list.

    Attributes:
        votes: the last vote of each node.
        table: the cells of the nodes, by kind and name.
        more: whether an index has more names than were read.
        beyond, unsearched: as in a report.
    """

    def __init__(
        self,
        backend: Backend,
        limit: int = LIMIT,
        matching: Callable[[str], bool] | None = None,
        indexes: Sequence[str] = (),
        patience: float = 0.0,
    ) -> None:
        self._backend, self._prefix = backend, backend.policy.prefix
        self._limit, self._matching, self._patience = limit, matching, patience
        self._indexes = indexes
        self._begin: Final = dict.fromkeys(backend.policy.everyone, 0)  # of each node's first page

    def run(self, names: Sequence[str]) -> Steps[None]:
        """Look up these names and what matches; without any, read what the indexes list."""
        self.votes: list[Vote] = []
        self.more = self.unsearched = False
        self.beyond, size = 0, self._backend.policy.size
        self.table: dict[tuple[str, bytes], list[Cell | None]] = {
            ("lock", name.encode()): [None] * size for name in names
        }
        yield from self._look_up("lock", names)
        if self._indexes and (self._matching or not names):
            most = max(1, PAGE // len(self._indexes))  # of each; a next page is of one alone
            most = most if self._matching else min(self._limit, most)
            first, *more = self._indexes
            request = self._request("lock:", most, index=first, more=more, each=self._begin)
            replied = yield from self._ask(request)
            pages = {i: self.votes[i].result for i in replied}
            for nth, index in enumerate(self._indexes):
                yield from self._read(index, {i: each[nth] for i, each in pages.items()}, most)
        for i in self._backend.policy.everyone - heard(self.votes):  # what it has is unknown
            for cells in self.table.values():
                cells[i] = None

    def _read(self, index: str, pages: Mapping[int, Page], size: int) -> Steps[None]:
        """Enter what an index lists: all that matches, or as many names as may be shown.

        Args:
            pages: the first page of each node.
            size: the most names on these.
        """
        kind, beginning = INDEXES[index]
        known = list(self.table)
        usual = PAGE if self._matching else min(self._limit, PAGE)
        begin, complete = self._begin, True
        for nth in range(1 + PAGES if self._matching or self._limit > size else 1):
            if not begin:
                break
            if nth > 0:
                request = self._request(beginning, size, index=index, each=begin)
                pages = {i: self.votes[i].result[0] for i in (yield from self._ask(request))}
            after = {}
            for i, page in pages.items():  # they overlap where many are due in a millisecond
                if page.rows:
                    self._enter(i, page.rows, kind)
                if page.after > begin[i] or (page.after and size < LARGEST):
                    after[i] = page.after
                elif page.after:
                    complete = False
            # A page that begins and ends in the same millisecond is read again as a larger one.
            stuck = any(number == begin[i] for i, number in after.items())
            begin, size = after, LARGEST if stuck else usual
            if not self._matching and len(self.table) - len(known) > self._limit:
                break
        yield from self._keep(kind, known, complete=complete and not begin)

    def _keep(
        self, kind: str, known: Sequence[tuple[str, bytes]], *, complete: bool
    ) -> Steps[None]:
        """Keep as many new names as may be shown, and look up those that only some nodes list."""
        new = sorted(self.table.keys() - set(known), key=_order)
        self.table = {key: self.table[key] for key in [*known, *new[: self._limit]]}
        if self._matching:
            self.beyond += len(new[self._limit :])
            self.unsearched |= not complete
        else:
            self.more |= not complete or len(new) > self._limit
        if not new:
            return
        replied = len(heard(self.votes))
        some = [
            _as_name(key[1])
            for key in new[: self._limit]
            if len(self.table[key]) - self.table[key].count(None) < replied
        ]
        yield from self._look_up(kind, list(filter(None, some)))

    def _look_up(self, kind: str, names: Sequence[str]) -> Steps[None]:
        beginning = "mark:" if kind == "mark" else "lock:"
        for start in range(0, len(names), BATCH):
            batch = names[start : start + BATCH]
            for i in (yield from self._ask(self._request(beginning, names=batch))):
                for name in batch:
                    if (kind, name.encode()) in self.table:
                        self.table[kind, name.encode()][i] = None
                self._enter(i, self.votes[i].result[0].rows, kind, searched=False)

    def _request(
        self,
        beginning: str,
        most: int = 0,
        *,
        names: Sequence[str] = (),
        index: str = "held",
        more: Sequence[str] = (),
        each: dict[int, int] | None = None,
    ) -> Request:
        return Survey(
            self._backend.policy.nonce(),
            all_heard,
            f"{self._prefix}{index}",
            f"{self._prefix}waits",
            f"{self._prefix}{beginning}",
            most,
            names,
            0.0 if self.votes else self._patience,
            [f"{self._prefix}{each}" for each in more],
            to=None if each is None else frozenset(each),
            each=each,
        )

    def _ask(self, request: Request) -> Steps[Collection[int]]:
        """Ask the nodes that reply, the first time all; return those that have replied."""
        if not self.votes:
            self.votes = yield from ask_all(self._backend, request)
            return heard(self.votes)
        to = heard(self.votes)
        to = to if request.to is None else to & request.to
        again = (yield replace(request, to=to)) if to else ()
        for i in to:
            self.votes[i] = again[i]
        return to & heard(self.votes)

    def _enter(self, i: int, rows: Iterable[Any], kind: str, *, searched: bool = True) -> None:
        """Enter rows of a node that are of this kind, and match if they were searched for."""
        for name, of_kind, owner, milliseconds, number, label, waited in rows:
            once = of_kind == b"once" and kind != "mark"  # of a lock's own name, in either index
            if of_kind.decode() != kind and not once:
                continue  # a lock that has become a record meanwhile, or the reverse
            count = int(number) if 0 < len(number) <= DIGITS else None
            text, digest = as_text(label), as_text(owner)
            plain, limit = read_label(text)
            cell = Cell(
                left=seconds_left(milliseconds),
                owner=digest,
                label=plain[:LABEL],
                number=None if once else count,
                waited=waited == 1,
                done=min(count or 0, completion.LATEST) if once else 0,
                limit=limit,
                rests=count is None and _rests(digest, text),
            )
            if searched and self._matching:
                texts = filter(None, _about(kind, name, cell.label))
                if not any(map(self._matching, texts)):
                    continue
            key = ("lock" if once else kind), name
            self.table.setdefault(key, [None] * self._backend.policy.size)[i] = cell


def _as_name(entry: bytes) -> str:
    """Return an entry of an index as the name that it is; "" if this package writes no such."""
    try:
        name = entry.decode()
    except UnicodeDecodeError:
        return ""
    return name if len(read_entry(name).name.encode()) <= LONGEST else ""


def _order(key: tuple[str, bytes]) -> tuple[str, str, int]:
    """Return by what rows are sorted: the slots of a name are together."""
    kind, entry = key
    name, slot = read_entry(as_text(entry))
    return kind, name, -1 if slot is None else slot


def clear_task(backend: Backend, task_id: str) -> int:
    """Remove the marks and the completion records of a task; what its run holds stays.

    Then another message with its arguments is no duplicate, and a copy of its message runs again.
    The indexes are read for this, whatever was shown before: somebody may have confirmed it minutes
    after the look, and what has come since is removed as well. Before a node removes a key, it
    compares the key with the id of the task once more.

    Returns:
        How many nodes have replied.
    """
    report = survey(backend, limit=MOST, matching=task_id.__eq__, indexes=("marks", "records"))
    replied = len(report.heard)
    for row in report.locks:
        key = f"{backend.policy.prefix}{row.key}"
        # The operator reads how many nodes have replied, so each has the whole node timeout.
        votes = backend.run(completion.remove(backend.policy, key, task_id=task_id, hear_all=True))
        replied = min(replied, sum(vote.answer is not Answer.UNKNOWN for vote in votes))
    return replied


# -- the state of one lock, for ``Lock.state`` and for templates: a look, never a promise ----------

# Of several names, the state of the first of these tells most about the lock.
TELLING: Final = (
    *(LockStatus.HELD, LockStatus.REVOKED, LockStatus.RESTING, LockStatus.DONE),
    LockStatus.UNCLEAR,
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
        kind: ``"held"``, ``"revoked"``, ``"resting"``, ``"done"``, ``"partial"``, ``"split"``,
            ``"unclear"`` or ``"free"``, as in ``redlock_status``. Only ``"held"`` has a holder.
            ``"revoked"``: it was taken away, and is free when its holder's time is over.
            ``"resting"``: nobody gets it before its ``min_hold`` is over. ``"done"``: ``once`` has
            recorded that its work is done. ``"unclear"``: nodes without a vote decide.
        holder: the holder's label; "" if it is not held, or the holder left none.
        remaining: seconds until it is free unless the holder renews it; None: never. 0 if it is
            neither held nor resting. With ``"done"``, until the work may be done again.
        since: when the holder got it, or with ``"done"`` when that was; by the clock of the
            holder's machine, in UTC. Else None, and where another client holds it.
        fence: the holder's grant number; the lease's fence may differ from it while nodes
            disagree, so compare no writes with it. None if it is not held, or another client
            holds it.
        each: of several names, the state of each, in their order; empty for one. Of a limited lock,
            the state of each slot. Its other attributes are then those of the slot that is free, or
            is free first.
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


def look_at_slots(backend: Backend, name: str, limit: int) -> Steps[LockState]:
    """Ask all nodes about each slot of a limited lock, once; ``each`` has them in their order.

    Raises:
        NodesUnavailable: no majority of the nodes votes.
    """
    found = yield from surveying(backend, entries_of(name, limit))
    voting_or_raise(found, name)
    states = tuple(map(state_of, found.locks))
    least = max(states, key=_tells_most)  # of a slot that is free, if there is one
    return replace(least, name=name, each=states)


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
    if lock.status is LockStatus.DONE:
        return LockState(lock.name, lock.status, remaining=lock.highest, since=lock.since)
    state = LockState(lock.name, lock.status, remaining=lock.remaining)
    if lock.status is not LockStatus.HELD:
        return state
    return replace(state, holder=printable(lock.holder), since=lock.since, fence=lock.fence)


def _tells_most(state: LockState) -> tuple[int, float]:
    left = math.inf if state.remaining is None else state.remaining
    return TELLING.index(state.kind), -left


# -- what somebody asks for -----------------------------------------------------------------------


class Wanted:
    """What is asked for by names, and by patterns as ``fnmatch`` has them.

    A pattern is looked up as a name, too, and shown if that is taken: the lock may be
    another client's, which is in no index. A row is shown if its name, or the name or the id of its
    task, is asked for. Without any text, all is.

    Args:
        part: whether a text may be a part of what is found, in capitals or not: a search.
        finished: whether completion records are asked for as well.
        once: whether the records of ``once`` are.
        older_than: seconds; only locks that are held for so long, the oldest first. None: all.
        problems: only what needs attention.

    Raises:
        ValueError: the seconds are negative.
    """

    def __init__(
        self,
        texts: Sequence[str] = (),
        *,
        part: bool = False,
        finished: bool = False,
        once: bool = True,
        older_than: float | None = None,
        problems: bool = False,
    ) -> None:
        if older_than is not None:
            check_seconds("--older-than", older_than, zero=True)
        self.older_than, self.problems = older_than, problems
        self.texts, self.part = list(texts), part
        self.filters: Final = problems or older_than is not None  # what was read
        listed = LISTED if once and not self.filters else COUNTED
        self._indexes: Final = (*listed, "records") if finished else listed
        self._patterns = {each: self._pattern(each) for each in texts}

    def _pattern(self, text: str) -> re.Pattern[str]:
        pattern = fnmatch.translate(text)  # it never backtracks over a "*"
        if not self.part:
            return re.compile(pattern)
        return re.compile(f"(?s:.*{re.escape(text)}.*)|{pattern}", re.IGNORECASE)

    def survey(self, backend: Backend, limit: int = LIMIT) -> Report:
        """Ask the nodes of an alias for what is wanted, and all that a report has.

        Raises:
            ValueError: what cannot be a lock's name, or a limit not from 1 to 10,000.
        """
        found = survey(
            backend,
            self.names,
            limit=limit,
            matching=self.matches if self.texts else None,
            memory=True,
            indexes=self._indexes,
        )
        met = {text for lock in found.locks if lock.on for text in lock.texts}
        exact = {each for each in self.texts if not (self.part or is_pattern(each))} - met
        locks = [lock for lock in found.locks if lock.on or lock.name in exact]
        if self.older_than is not None:
            locks = oldest_first(locks, self.older_than)
        if self.problems:
            locks = [lock for lock in locks if lock.status in UNSETTLED]
        return replace(found, locks=tuple(locks))

    @property
    def names(self) -> list[str]:
        """The texts as names to be looked up; of a search, those that can be names."""
        return [each for each in self.texts if not self.part or _can_be_a_name(each)]

    def matches(self, text: str) -> bool:
        """Return True if this text was asked for."""
        shown = printable(text)
        return any(
            each.fullmatch(text) or each.fullmatch(shown) for each in self._patterns.values()
        )

    def unmet(self, found: Report) -> Iterator[str]:
        """Say what was asked for and is not held, as far as that is known.

        A name that is free has a row.
        """
        if self.problems:
            if not (found.locks or found.unwell or found.truncated):
                yield "Nothing needs attention."
        elif self.older_than is not None:
            if not (found.locks or found.truncated):
                yield f"No lock is held for {self.older_than:g} s or longer."
        elif not (self.texts or found.locks):
            yield "No lock is held."
        elif not found.truncated:
            met = [text for lock in found.locks for text in lock.texts]
            for text, pattern in self._patterns.items():
                if is_pattern(text) and text not in met and not any(map(pattern.fullmatch, met)):
                    yield f"Nothing matches '{printable(text)}'."


def is_pattern(text: str) -> bool:
    """Tell whether a text has a wildcard."""
    return "*" in text or "?" in text or "]" in text.partition("[")[2]


def _can_be_a_name(text: str) -> bool:
    try:
        return bool(check_names(text))
    except ValueError:
        return False

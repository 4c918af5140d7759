"""The requests to the nodes, a class for each command: what it asks, and what a reply means.

A command is one script of ``nodes/lua``. Its class packs the keys and the arguments for
that script; the node in memory carries out the same object without packing it. Fields are in the
node's units: milliseconds, and microseconds for grant numbers.

``read`` makes a ``Vote`` of a reply. A node may be broken, or not be one at all. So nothing of a
reply is used before its type and its range have been checked: one node must have one vote,
whatever it sends, and no caller may see an error that is about a reply's form.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeGuard

from .policy import milliseconds
from .protocol import Answer, Command, LockKeys, Request, Vote, Wire, message
from .reasons import Reason, ReasonCode, because
from .slots import label_with, shown_label

# An enum's member costs five times a name.
YES: Final = Answer.YES
NO: Final = Answer.NO
EMPTIED: Final = because(ReasonCode.EMPTIED)
GONE: Final = because(ReasonCode.GONE)
RECORDED: Final = because(ReasonCode.RECORDED)

DIGITS: Final = 16  # of a grant number
REVOKED_TEXT: Final = 1000  # characters of a holder's label, and by whom and why it was revoked
LABEL: Final = 200  # characters of an owner label; another client may write more
MOST_NUMBER: Final = 2**53  # to which a node's counters are exact
LONGEST_LEFT: Final = 10**14  # milliseconds, 3,000 years; longer is told as that
OWNER: Final = re.compile(rb"(?:[0-9a-f]{16})?").fullmatch  # "": the name is reserved
TASK_ID: Final = re.compile(rb"[A-Za-z0-9_.-]{1,64}").fullmatch  # in a mark
RESERVED: Final = -3  # in the place of a pttl: the slot is reserved for a woken waiter
SOON: Final = 0.001  # seconds that a reservation lasts, at least
ROW: Final = (bytes, bytes, bytes, int, bytes, bytes, int)  # what a survey returns for a name
MEMORY: Final = (int, bytes, int, int)  # and of its memory
KINDS: Final = frozenset({b"lock", b"mark", b"done", b"once"})


# -- the parts of a reply ---------------------------------------------------------------------


def is_count(item: object, most: int) -> TypeGuard[int]:
    """Return True if this is a number from 0 to ``most``."""
    return isinstance(item, int) and 0 <= item <= most


def is_pttl(item: object) -> TypeGuard[int]:
    """Return True if this is what a node says of how long a key lasts."""
    return isinstance(item, int) and item >= -2  # noqa: PLR2004 - what Redis says without a key


def seconds_left(pttl: int) -> float | None:
    """Return the seconds until a key is gone; None: it never is."""
    return None if pttl == -1 else min(max(0, pttl), LONGEST_LEFT) / 1000


def as_text(found: bytes) -> str:
    """Return bytes that any client may have written, as text."""
    return found.decode("utf-8", "backslashreplace")


def is_bytes(item: object) -> TypeGuard[bytes]:
    """Return True if this is a text as nodes send it."""
    return isinstance(item, bytes)


def grant_number(item: object) -> int:
    """Return a grant number; 0 if this is none."""
    if isinstance(item, bytes) and len(item) <= DIGITS and item.isdigit():
        number = int(item)
        return number if number <= MOST_NUMBER else 0
    return 0


def items_of(request: Request, reply: list[Any], count: int) -> list[Any] | None:
    """Return what follows the outcome of a reply that is a YES with so many items; else None."""
    items = reply[2:]
    return items if reply[1] == request.done and len(items) == count else None


def wakeup_vote(node: str, item: object, which: int = 0) -> Vote | None:
    """Return a vote with what was found in a queue, as text, and in which of several."""
    if not is_bytes(item):
        return None
    return Vote(node, YES, result=item.decode("ascii", "replace"), which=which)


class SlotsLeft(NamedTuple):
    """What a node says of the slots of a limited lock.

    Attributes:
        left: the seconds until each is free there; 0: it is; None: it never is.
        reserved: the slots that are reserved for a woken waiter.
    """

    left: tuple[float | None, ...]
    reserved: frozenset[int] = frozenset()


def slots_left(item: object, count: int) -> SlotsLeft | None:
    """Return what a node says of so many slots; None: it makes no sense."""
    if not (isinstance(item, list) and len(item) == count):
        return None
    reserved = frozenset(i for i, each in enumerate(item) if each == RESERVED)
    lefts = [0 if i in reserved else each for i, each in enumerate(item)]
    if not all(map(is_pttl, lefts)):
        return None
    left = [SOON if i in reserved else seconds_left(each) for i, each in enumerate(lefts)]
    return SlotsLeft(tuple(left), reserved)


def _vote_of_gone(node: str, reply: list[Any]) -> Vote | None:
    """Return the vote of a node on which the key is missing or somebody else's."""
    return Vote(node, NO, reason=GONE) if reply[1:] == [b"GONE"] else None


def _vote_of_emptied(node: str, reply: list[Any]) -> Vote | None:
    """Return the vote of a node that lost its data and was not admitted since."""
    if reply[1:] != [b"EMPTY"]:
        return None
    return Vote(node, Answer.UNKNOWN, reason=EMPTIED, sent=False)


def _vote_of_count(node: str, request: Request, reply: list[Any]) -> Vote | None:
    """Return the vote in a reply that is a number of keys, or GONE."""
    if reply[1] != request.done:
        return _vote_of_gone(node, reply)
    items = items_of(request, reply, 1)
    return Vote(node, YES) if items and is_count(items[0], request.count) else None


def _with_reason(vote: Vote | None, more: list[Any]) -> Vote | None:
    """Return the vote with why the lease was revoked, if a reply tells that behind its items."""
    if vote is None or not more:
        return vote
    if len(more) > 1 or not is_bytes(more[0]):
        return None
    why = because(ReasonCode.REVOKED, text=shown_label(as_text(more[0]))[:REVOKED_TEXT])
    return vote._replace(reason=why)


@message
class NamesRequest(Request):
    """A request about the names of one lock."""

    target: LockKeys

    @property
    def count(self) -> int:
        return len(self.target.keys)

    def read(self, node: str, reply: list[Any]) -> Vote | None:
        return _vote_of_count(node, self, reply)


# -- taking -----------------------------------------------------------------------------------


@message
class Acquire(NamesRequest):
    """Grant all names to the nonce, or none.

    A YES has the ``fence``. A refusal has ``left``, ``holder``, ``owner``, ``which``; its result is
    when the work was done, in milliseconds since 1970, if it is by a record that tells; of a slot,
    ``slots_left``.

    Attributes:
        wish: the caller's wall clock, for the grant number.
        slack: the microseconds by which that may be ahead of the node's clock.
        old: the nonce to be adopted, or "".
        opener: the nonce that has woken the caller, of a lease that is over; or "".
        waits: the milliseconds for which the node believes that the caller waits if it is refused;
            0: it does not wait.
    """

    command = Command.GRANT
    done = b"GRANTED"
    usual = "$7\r\nGRANTED\r\n$16\r\n"  # and a number

    wish: int
    slack: int
    ttl: int
    label: str
    old: str = ""
    opener: str = ""
    waits: int = 0

    @property
    def slots(self) -> int:
        """Return of how many slots a refusal tells; 0: of none. Who adopts one wants no other."""
        return 0 if self.old or self.target.slot is None else self.target.slot.of

    def wire(self) -> Wire:
        target, label, slots = self.target, self.label, 0
        if target.slot:
            label, slots = label_with(label, target.slot), self.slots
        argv = (
            str(self.wish),
            str(self.slack),
            str(self.ttl),
            label,
            self.old,
            self.opener,
            str(self.waits),
            *target.fields,
            *target.entries,
        )
        if slots:
            argv += (str(slots),)
        return (target.fences, target.held, target.waits, *target.keys), argv

    def read(self, node: str, reply: list[Any]) -> Vote | None:
        outcome, items = reply[1], reply[2:]
        if outcome == self.done:
            number = grant_number(items[0]) if len(items) == 1 else 0
            return Vote(node, YES, number) if number else None
        if outcome in (b"HELD", b"DONE"):  # a node may have sent what has no hash
            reason = None if outcome == b"HELD" else RECORDED
            if not self.slots:
                return self._refused(node, items, reason)
            left = slots_left(items.pop() if items else None, self.slots)
            found = self._refused(node, items, reason)
            return found._replace(result=left) if found and left else None
        if outcome == b"ONCE" and items and (at := grant_number(items.pop())):
            found = self._refused(node, items, RECORDED)
            return found and found._replace(result=at)
        return _vote_of_gone(node, reply) or _vote_of_emptied(node, reply)

    def _refused(self, node: str, items: list[Any], reason: Reason | None) -> Vote | None:
        if len(items) != 4:  # noqa: PLR2004 - as unpacked below
            return None
        left, label, owner, which = items
        if not (
            is_pttl(left)
            and is_bytes(label)
            and is_bytes(owner)
            and OWNER(owner)
            and is_count(which, self.count - 1)
        ):
            return None
        return Vote(
            node,
            NO,
            left=seconds_left(left),
            holder=shown_label(as_text(label))[:LABEL],
            owner=owner.decode("ascii"),
            which=which,
            reason=reason,
        )


def number_at(data: bytes, pos: int) -> int:
    """Return the number that ends a reply to ``Acquire`` and begins at ``pos``; 0: it is none."""
    end = pos + DIGITS
    return grant_number(data[pos:end]) if data[end : end + 2] == b"\r\n" else 0


@message
class Raise(NamesRequest):
    """Raise the fence counters of the names to the token that the majority needs.

    Attributes:
        each: the number that each node gave with its grant.
    """

    command = Command.RAISE
    done = b"RAISED"

    token: int

    def wire(self) -> Wire:
        return (self.target.fences, *self.target.keys), (str(self.token), *self.target.fields)

    def read(self, node: str, reply: list[Any]) -> Vote | None:
        if reply[1] != self.done:
            return _vote_of_gone(node, reply)
        items = items_of(self, reply, 1)
        return Vote(node, YES) if items and grant_number(items[0]) else None


# -- holding ----------------------------------------------------------------------------------


class Extension(NamedTuple):
    """One lease of those that a request extends."""

    nonce: str
    target: LockKeys
    ttl: int


NOT_REVOKED: Final[Mapping[int, str]] = MappingProxyType({})


class Kept(NamedTuple):
    """What a node says of the leases that a request extends.

    Attributes:
        kept: for each lease 1 if it was extended, 0 if it is gone.
        free: the indices of the leases that are gone, and whose names are free there.
        revoked: the texts by whom and why leases were taken away, by their indices.
    """

    kept: Sequence[int]
    free: Sequence[int]
    revoked: Mapping[int, str] = NOT_REVOKED


@message
class Extend(Request):
    """Prolong many leases, each with all its keys or none; the result is ``Kept``.

    Attributes:
        leases: the leases to extend, at least one.
    """

    command = Command.EXTEND
    done = b"KEPT"

    leases: Sequence[Extension]

    def wire(self) -> Wire:
        keys = [self.leases[0].target.held]
        for lease in self.leases:
            keys += lease.target.keys
        argv: list[str] = []
        for nonce, target, ttl in self.leases:
            argv += [nonce, str(ttl), str(len(target.keys)), *target.entries]
        return tuple(keys), tuple(argv)

    @property
    def count(self) -> int:
        return len(self.leases)

    def usual_reply(self) -> bytes:
        ones = ":1\r\n" * len(self.leases)
        usual = f"$4\r\nKEPT\r\n*{len(self.leases)}\r\n{ones}*0\r\n"
        return f"*4\r\n$32\r\n{self.nonce}\r\n{usual}".encode()

    def usual_vote(self, node: str) -> Vote:
        return Vote(node, YES, result=Kept([1] * len(self.leases), []))

    def read(self, node: str, reply: list[Any]) -> Vote | None:
        if (items := items_of(self, reply, 2)) is None:
            items = items_of(self, reply, 3)
        if items is None:
            return None
        kept, free, *rest = items
        count, revoked = self.count, _revoked_in(rest[0], self.count) if rest else NOT_REVOKED
        # A node with five votes on a lease would be a majority: the ones are added up.
        if not (isinstance(kept, list) and len(kept) == count and all(map(is_outcome, kept))):
            return None
        if not (isinstance(free, list) and all(is_count(each, count - 1) for each in free)):
            return None
        if any(kept[each] for each in free) or len(set(free)) != len(free):
            return None
        if revoked is None or any(kept[each] for each in revoked):
            return None
        return Vote(node, YES, result=Kept(kept, free, revoked))


def _revoked_in(items: object, count: int) -> dict[int, str] | None:
    """Return from whom and why leases were revoked, by their indices; None: it makes no sense."""
    if not (isinstance(items, list) and len(items) % 2 == 0):
        return None
    which, texts = items[::2], items[1::2]
    if not (all(is_count(each, count - 1) for each in which) and all(map(is_bytes, texts))):
        return None
    shown = [shown_label(as_text(text))[:REVOKED_TEXT] for text in texts]
    return dict(zip(which, shown, strict=True))


def is_outcome(item: object) -> bool:
    """Return True if this is what a node may say of one lease: 1 kept, or 0 gone."""
    return is_count(item, 1)


@message
class Heal(NamesRequest):
    """Put a lease back on nodes where its names are free."""

    command = Command.HEAL
    done = b"HEALED"

    fence: int
    ttl: int
    label: str

    def wire(self) -> Wire:
        target = self.target
        return (target.fences, target.held, *target.keys), (
            str(self.fence),
            str(self.ttl),
            label_with(self.label, target.slot),
            *target.fields,
            *target.entries,
        )

    def read(self, node: str, reply: list[Any]) -> Vote | None:
        return _vote_of_count(node, self, reply) or _vote_of_emptied(node, reply)


# -- undoing ----------------------------------------------------------------------------------


@message
class Release(NamesRequest):
    """Free each key that has this nonce, and wake the next waiters; a vote has ``woken``.

    Attributes:
        reserve: the milliseconds for which a name that has a waiter is kept for it.
        wake: the indices of the names whose waiter is woken; None is all of them.
    """

    command = Command.RELEASE
    done = b"FREED"
    usual = "$5\r\nFREED\r\n:0\r\n"

    reserve: int = 0
    wake: Container[int] | None = None

    def wire(self) -> Wire:
        target = self.target
        return (target.held, target.waits, *target.keys, *target.queues), (
            str(self.reserve),
            self.flags,
            *target.entries,
        )

    @property
    def flags(self) -> str:
        """Return a digit for each name: 0 wake nobody, 1 wake."""
        wake, count = self.wake, len(self.target.keys)
        if wake is None:  # as nearly always
            return "1" * count
        return "".join(["1" if i in wake else "0" for i in range(count)])

    def read(self, node: str, reply: list[Any]) -> Vote | None:
        if len(reply) < 3 or not is_count(reply[2], self.count):  # noqa: PLR2004 - as unpacked below
            return None
        _, outcome, woken, *more = reply
        if outcome == self.done:
            return _with_reason(freed(node, woken), more)
        gone = outcome == b"GONE" and not more
        return Vote(node, NO, reason=GONE, woken=woken) if gone else None


@functools.lru_cache(maxsize=1024)  # one for many releases, as ``quorum.with_majority``
def freed(node: str, woken: int) -> Vote:
    """Return the vote of a node that released, with for how many names it found a waiter."""
    return Vote(node, YES, woken=woken)


@message
class Rest(NamesRequest):
    """Release the names, which stay taken for a while: for a lock with ``min_hold``."""

    command = Command.REST
    done = b"RESTING"

    rest: int

    def wire(self) -> Wire:
        return (self.target.held, *self.target.keys), (str(self.rest), *self.target.entries)

    def read(self, node: str, reply: list[Any]) -> Vote | None:
        return _with_reason(_vote_of_count(node, self, reply[:3]), reply[3:])

    def later(self, seconds: float) -> Request:
        return replace(self, rest=max(1, self.rest - milliseconds(seconds)))


@message
class Return(NamesRequest):
    """Give the keys of an adopter that got no majority back to ``old``, the giver's nonce."""

    command = Command.RETURN
    done = b"RETURNED"

    old: str

    def wire(self) -> Wire:
        return self.target.keys, (self.old,)


@message
class Revoke(NamesRequest):
    """Take a lock away from its holder; a vote has ``left``: until the name is free there.

    Attributes:
        owner: the digest of the holder that was seen.
        why: the text by whom and why, for people.
        now: True if the key is deleted at once, though its holder may believe in it until its
            deadline.
        least: the milliseconds for which the name stays taken at the least, without ``now``.
    """

    command = Command.REVOKE
    done = b"REVOKED"

    owner: str
    why: str
    now: bool = False
    least: int = 0

    def wire(self) -> Wire:
        target = self.target
        return (target.held, target.waits, *target.keys, *target.queues), (
            self.owner,
            self.why,
            "1" if self.now else "0",
            str(self.least),
            *target.entries,
        )

    def read(self, node: str, reply: list[Any]) -> Vote | None:
        if reply[1] != self.done:
            return _vote_of_gone(node, reply)
        items = items_of(self, reply, 1)
        return Vote(node, YES, left=seconds_left(items[0])) if items and is_pttl(items[0]) else None


@message
class Complete(NamesRequest):
    """Turn the names of a lease into records that its work is done, for ``life``.

    Of a lease that was revoked nothing is recorded: its names are freed.

    Attributes:
        at: when the work was done, in milliseconds since 1970; 0: the record does not tell.
        label: who did it; "": the holder of the lease.
        granted: the ttl of an attempt that puts back what another node has, and whose ``life``
            counts from the grant of each node; 0: it counts from now.
    """

    command = Command.COMPLETE
    done = b"RECORDED"

    life: int
    at: int = 0
    label: str = ""
    granted: int = 0

    def usual_reply(self) -> bytes:
        count = len(self.target.keys)
        return f"*3\r\n$32\r\n{self.nonce}\r\n$8\r\nRECORDED\r\n:{count}\r\n".encode()

    def wire(self) -> Wire:
        target, life = self.target, (str(self.life), str(self.at), self.label, str(self.granted))
        return (target.held, *target.keys), (*life, *target.entries)

    def read(self, node: str, reply: list[Any]) -> Vote | None:
        end = 2 if reply[1] == b"GONE" else len(reply)
        return _with_reason(_vote_of_count(node, self, reply[:end]), reply[end:])


# -- marking queued tasks ---------------------------------------------------------------------


@message
class Mark(Request):
    """Mark a queued task, unless another message of the same task waits, or one runs.

    A refusal has the other id as ``holder``, as ``owner`` a digest of the attempt that set the
    mark ("": that task runs), and as ``result`` the milliseconds for which the mark has been there.

    Attributes:
        index: the key of the index of marks.
        mark: the key of the mark.
        locks: the keys of locks in which a run of ``task`` counts as well.
    """

    command = Command.MARK
    done = b"MARKED"
    usual = "$6\r\nMARKED\r\n:1\r\n"

    index: str
    mark: str
    locks: Sequence[str]
    ttl: int
    task: str
    task_id: str

    def wire(self) -> Wire:
        return (self.index, self.mark, *self.locks), (str(self.ttl), self.task, self.task_id)

    def read(self, node: str, reply: list[Any]) -> Vote | None:
        outcome, items = reply[1], reply[2:]
        if outcome == self.done:
            return Vote(node, YES) if len(items) == 1 and is_count(items[0], 1) else None
        if outcome != b"TAKEN" or len(items) != 3:  # noqa: PLR2004 - as unpacked below
            return None
        other, owner, age = items
        if not (is_bytes(other) and is_bytes(owner) and TASK_ID(other) and OWNER(owner)):
            return None
        if not is_count(age, MOST_NUMBER):
            return None
        return Vote(node, NO, holder=other.decode(), owner=owner.decode(), result=age)


ANY_TASK: Final = "anybody's"  # no task id is written so


@message
class Unmark(Request):
    """Remove the mark of this nonce, or the completion record of a task.

    Attributes:
        mark: the key of the mark; or the key of a lock, of which only a record is removed.
        whose: a task id, to remove its mark whatever the nonce; ANY_TASK: to remove any mark.
    """

    command = Command.UNMARK
    done = b"UNMARKED"
    usual = "$8\r\nUNMARKED\r\n:1\r\n"

    index: str
    mark: str
    whose: str = ""

    def wire(self) -> Wire:
        return (self.index, self.mark), (self.whose,)

    def read(self, node: str, reply: list[Any]) -> Vote | None:
        return _vote_of_count(node, self, reply)


# -- waiting ----------------------------------------------------------------------------------


@message
class Look(Request):
    """Tell how long a name is still taken, and note that it has a waiter; a vote has ``left``.

    Attributes:
        target: the names; or a slot of a limited lock: it is about all of them, and the result is
            ``slots_left``.
        which: the index of the name.
        waits: the milliseconds for which the node believes that.
    """

    command = Command.LOOK
    done = b"LOOKED"

    target: LockKeys
    which: int
    waits: int

    @property
    def slots(self) -> int:
        """Return of how many slots it tells; 0: of none."""
        return 0 if self.target.slot is None else self.target.slot.of

    def wire(self) -> Wire:
        return (self.target.waits, self.target.keys[self.which]), (
            str(self.waits),
            self.target.entries[self.which],
            *((str(self.slots),) if self.slots else ()),
        )

    def read(self, node: str, reply: list[Any]) -> Vote | None:
        items = items_of(self, reply, 1)
        if self.slots:
            left = slots_left(items[0], self.slots) if items else None
            return Vote(node, YES, result=left) if left else None
        return Vote(node, YES, left=seconds_left(items[0])) if items and is_pttl(items[0]) else None


@message
class Claim(Request):
    """Take the wake-up that no waiter has taken from a queue; the result is its text, or ""."""

    command = Command.CLAIM
    done = b"CLAIMED"

    queue: str

    def wire(self) -> Wire:
        return (self.queue,), ()

    def read(self, node: str, reply: list[Any]) -> Vote | None:
        items = items_of(self, reply, 1)
        return wakeup_vote(node, items[0]) if items else None


# -- reading, for people ----------------------------------------------------------------------


class Page(NamedTuple):
    """A page of an index, as a node lists it.

    Attributes:
        rows: one for each name: the name, the kind of its value, a digest of the owner, the pttl,
            the grant number or b"", the label, and whether the name is waited for.
        after: the milliseconds at which the next page begins; 0: there is none.
    """

    rows: list[Any]
    after: int


class MemoryLimit(NamedTuple):
    """What a node does when its memory is full, and what else a report has of it.

    Attributes:
        limit: the bytes that the node may use; 0: without a limit.
        policy: the name of its policy for keys that do not fit.
        evicted: the number of keys that were evicted since it was started.
        waiting: the number of names that have waiters, as far as they were counted.
    """

    limit: int
    policy: bytes
    evicted: int
    waiting: int


@message
class Survey(Request):
    """Describe held locks, marks or records; the result is a list of ``Page``.

    Attributes:
        index, waits: the keys of the index of which a page is read, and of the index of waiters.
        prefix: the prefix of the keys that the names belong to.
        most: the number of names on a page, at most; 0: ``names`` are looked up instead.
        each: the milliseconds at which each node's page begins, for pages.
        patience: seconds; see ``Request.patience``.
        more: the keys of other indexes, of each of which a page is read as well.
    """

    command = Command.SURVEY
    done = b"FOUND"

    index: str
    waits: str
    prefix: str
    most: int = 0
    names: Sequence[str] = ()
    patience: float = 0.0
    more: Sequence[str] = ()

    def wire(self) -> Wire:
        argv = (self.prefix, str(self.most), *self.names)
        return (self.index, self.waits, *self.more), argv

    @property
    def count(self) -> int:
        return len(self.names) or self.most * (1 + len(self.more))

    def read(self, node: str, reply: list[Any]) -> Vote | None:
        if (items := items_of(self, reply, 2 + 2 * len(self.more))) is None:
            return None
        most, pages = len(self.names) or self.most, list(map(Page, items[::2], items[1::2]))
        for page in pages:
            rows, after = page.rows, page.after
            if (type(rows), type(after)) != (list, int) or not 0 <= after <= MOST_NUMBER:
                return None
            if len(rows) > most or not all(map(_is_row, rows)):
                return None
        return Vote(node, YES, result=pages)


@message
class Memory(Request):
    """Tell what the node does when its memory is full; the result is a ``MemoryLimit``.

    Attributes:
        fences, waits: the keys of the counters, and of the index of waiters.
        most: the number up to which names with waiters are counted.
    """

    command = Command.MEMORY
    done = b"MEMORY"

    fences: str
    waits: str
    most: int

    def wire(self) -> Wire:
        return (self.fences, self.waits), (str(self.most),)

    def read(self, node: str, reply: list[Any]) -> Vote | None:
        if emptied := _vote_of_emptied(node, reply):
            return emptied
        items = items_of(self, reply, 1)
        facts = items[0] if items else None
        if not isinstance(facts, list) or tuple(map(type, facts)) != MEMORY:
            return None
        found = MemoryLimit(*facts)
        numbers = found.limit, found.evicted, found.waiting
        if min(numbers) < 0 or max(numbers) > MOST_NUMBER or found.waiting > self.most:
            return None
        return Vote(node, YES, result=found)


def _is_row(row: object) -> bool:
    if not isinstance(row, list) or tuple(map(type, row)) != ROW:
        return False
    _, kind, owner, left, number, _, waited = row
    fits = kind in KINDS and left >= -2 and 0 <= waited <= 1  # noqa: PLR2004 - as ``is_pttl``
    return fits and OWNER(owner) is not None and (number == b"" or number.isdigit())


COMMANDS: Final[Sequence[type[Request]]] = (
    *(Acquire, Raise, Extend, Heal, Release, Rest, Return, Revoke, Complete),
    *(Mark, Unmark, Look, Claim, Survey, Memory),
)

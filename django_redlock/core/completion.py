"""Marks and completion records: a task's message is sent once, and its work is done once.

Marks
=====

A publisher marks a queued task, so that a second message for the same work is known before it is
sent. A mark is a key with an expiry, in which the publisher leaves the id of its task. A node sets
it unless another id has it, or a run of the same task with another id holds one of the locks. The
majority of the nodes decides:

    set        a majority has set it: the message is the only one
    duplicate  a majority names one and the same other id: that message waits or runs
    unmarked   neither

A publisher sends its message in every case but the second. So it must be sure that the message of
the other id is sent, too. It is, because the nodes name not only the id, but also which attempt set
the mark: one attempt of the other publisher was carried out by a majority, and such a publisher
sends, whether it has heard of that majority or lacks votes. It tries again only where its attempt
surely has no majority. Marks of two attempts must not be added up: each may be a minority's, and
taken back. A lock with that id, on any node, proves that the message was sent. Hence of several
publishers at once at least one sends, and what the others are told is the id of a sent message.

A mark is no lease: it guards nothing, has no token, and may last for longer than MAX_TTL. A node
that restarts empty has forgotten its marks, and nothing waits for them: one message more is sent.

Completion records
==================

A message queue delivers a message again that was not acknowledged in time. The copy must not run
if the work is done, and must run if the first run died. So a run holds two locks: the *run name* of
its message, and the key.

1. It takes the run name first, then the key: each an ordinary lock with a nonce of its own.
2. When the body ends, the key is released. The run name stays held, and is renewed until
   the result is stored and what follows has been sent.
3. Then the run name becomes the *completion record* in one step on each node, before the message
   is acknowledged: only where it is still the lease's, on all nodes, and all prompt ones are waited
   for. The record is no lease. It cannot be extended, released or woken, and ends by itself.
4. A copy asks all nodes for the run name. It meets a record in *any* reply: the work is done. It
   meets a holder: the first run lives, and the copy comes back later. Else it takes the name, and
   runs.

One record is enough, because a node has it from the holder alone, who wrote it while the lease was
good. A majority of the nodes is not enough to write to: one that restarts empty takes its record
with it, and the copy finds a majority without any. If one of the leases was lost meanwhile, another
run may work already, and this one's writes may have been refused: then nothing is recorded.

What no order covers: a crash after the work and before the record. Then the copy runs, too.

Work that is done once
======================

A lock's own name becomes a record in the same way when the work of its block succeeded, and tells
when. It stays for as long as the work is not to be done again, and so it must outlive nodes that
restart empty one after the other. Hence who meets such a record *puts it back* on the nodes that
have just granted the name to it. Three rules keep that from doing harm, and
``dev/models/once.py`` searches them:

* All nodes are heard that reply in time, also behind the first record: what is put back on no node
  is forgotten with the next restart.
* A node turns the caller's own key into the record, and no other. So nobody's lease is replaced.
* A record that is put back ends no later than the one that was met, or callers would hand it on
  for ever, a delay later each time. The caller takes off the time since it asked, and each node the
  time since its grant. So only nodes whose grant was heard get it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from .commands import ANY_TASK, Complete, Mark, Unmark
from .hold import ask_twice
from .names import shortened
from .policy import Policy, milliseconds
from .protocol import Grant, Sleep, Steps, Vote, Votes
from .quorum import NO, YES, all_heard, count, heard, reached, with_majority

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .protocol import LockKeys

SPLITS: Final = 3  # retries after a split
RUN_NAME: Final = "run:{task}:{number}"  # of the message, not of the task id
LATEST: Final = 253_402_128_000_000  # milliseconds: 9999-12-30, a date in every time zone
DIGEST: Final = re.compile(r"[0-9a-f]{64}").fullmatch  # in a label, in place of a long task name


# -- marks ------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """What became of an attempt to mark.

    Attributes:
        nonce: the nonce of the mark that may be on some nodes, to remove it by; "": there is none.
        certain: True if a majority has set the mark.
        duplicate_of: the task id that a majority names; "": there is none.
        votes: the votes on the last request.
    """

    nonce: str = ""
    certain: bool = False
    duplicate_of: str = ""
    votes: Sequence[Vote] = ()

    @property
    def marked_for(self) -> float | None:
        """Seconds since the youngest mark of the other id was set; None: it has none, and runs."""
        naming = [vote for vote in self.votes if vote.holder == self.duplicate_of and vote.holder]
        if not any(vote.owner for vote in naming):
            return None
        return min(vote.result if vote.owner else 0 for vote in naming) / 1000


def mark_key(policy: Policy, task: str, names: Sequence[str]) -> str:
    """Return the key of the mark for calls of a task that lock these names, in whatever order.

    The task is part of it: two tasks may lock one name, and neither is a duplicate of the other.
    """
    name, *others = sorted(set(names))
    if others:
        digest = hashlib.sha256(json.dumps([name, *others]).encode()).hexdigest()
        name = f"{name}+{len(others)}~{digest}"
    task = task.replace("%", "%25").replace(":", "%3A")  # no task is the beginning of another
    return f"{policy.prefix}mark:{shortened(f'{task}:{name}')}"


def of_mark(entry: str) -> tuple[str, str]:
    """Return the task and the name of an entry in the index of marks; see ``mark_key``."""
    task, _, name = entry.partition(":")
    return task.replace("%3A", ":").replace("%25", "%"), name


def set_mark(
    policy: Policy,
    key: str,
    locks: Sequence[str] = (),
    *,
    task: str,
    task_id: str,
    ttl: float,
    begun: Callable[[str], object] = bool,
) -> Steps[Outcome]:
    """Set the mark, and tell whether the message is a duplicate.

    A mark of the same id is replaced, and a run with the same id is no obstacle. Where publishers
    split the nodes, and all of them are heard, each takes its part back and tries again soon.

    Args:
        key: of the mark, from ``mark_key``.
        locks: keys of locks in which a run of ``task`` counts as well; none: runs do not count.
        task: as in the owner label of a run, ``…(task):task_id``.
        task_id: 1 to 64 of the characters ``A-Z a-z 0-9 _ . -``.
        ttl: seconds until the mark expires.
        begun: called with the nonce of each attempt before it is sent, for a publisher that is
            interrupted when the outcome is on its way to it.
    """
    votes: Sequence[Vote] = ()
    for tries in range(SPLITS + 1):
        nonce, touched = policy.nonce(), policy.everyone
        begun(nonce)
        try:
            votes = yield Mark(
                nonce,
                with_majority(marked_or_not, policy.majority),
                policy.marks,
                key,
                locks,
                ttl=max(1, milliseconds(ttl)),
                task=task,
                task_id=task_id,
                worth=is_refused,
            )
            touched = reached(votes)
            if count(votes).yes >= policy.majority:
                return Outcome(nonce, certain=True, votes=votes)
            other, naming = named(votes)
            is_duplicate = naming >= policy.majority
            if not is_duplicate and len(touched) >= policy.majority:
                return Outcome(nonce, votes=votes)
            if touched:
                yield unmark(policy, key, nonce, touched)
        except GeneratorExit:
            raise
        except BaseException:
            yield unmark(policy, key, nonce, touched)
            raise
        if is_duplicate:
            return Outcome(duplicate_of=other, votes=votes)
        if not _is_split(votes, policy.majority):
            break
        if tries < SPLITS:
            yield Sleep(policy.uniform(0.001, 0.01) * (tries + 1))
    return Outcome(votes=votes)


def unmark(
    policy: Policy,
    key: str,
    nonce: str,
    to: frozenset[int] | None = None,
    *,
    whose: str = "",
) -> Unmark:
    """Return the request that removes the mark of ``nonce``, as releases remove locks.

    Args:
        to: the nodes that may have it; None: all.
        whose: a task id, to remove its mark whatever the nonce; ANY_TASK: to remove any mark.
    """
    decided, lasts = with_majority(heard, policy.majority), policy.max_ttl
    return Unmark(nonce, decided, policy.marks, key, whose, to=to, lasts=lasts)


def remove(
    policy: Policy, key: str, nonce: str = "", *, task_id: str = "", hear_all: bool = False
) -> Steps[Sequence[Vote]]:
    """Remove the mark of a nonce or of a task id, or without both any mark; return the votes.

    Args:
        hear_all: whether to wait for all nodes, instead of a majority and a moment more.
    """
    whose = task_id or ("" if nonce else ANY_TASK)
    request = unmark(policy, key, nonce or policy.nonce(), whose=whose)
    if hear_all:
        request = replace(request, decided=all_heard, thorough=True)
    return (yield from ask_twice(request))


def marked_or_not(votes: Votes, majority: int) -> bool:
    """Tell whether the outcome is clear: set, a duplicate, or neither can be any more."""
    yes, no, rest = count(votes)
    most = max(yes, named(votes)[1]) if no else yes
    return most >= majority or most + rest < majority


def is_refused(votes: Votes) -> bool:
    """Tell whether some nodes may have set a mark that most refuse: one less to take back."""
    return None in votes and named(votes)[1] > 0


def named(votes: Votes) -> tuple[str, int]:
    """Return the id that most nodes name, and how many do; "" and 0 where no node names any.

    Of the marks of one id, those of one attempt count; a run counts with any of them.
    """
    refusals = [vote for vote in votes if vote is not None and vote.answer is NO]
    marks = Counter((vote.holder, vote.owner) for vote in refusals if vote.owner)
    runs = Counter(vote.holder for vote in refusals if not vote.owner)
    ids = dict(runs)
    for (other, _), naming in marks.items():
        ids[other] = max(ids.get(other, 0), naming + runs[other])
    return max(ids.items(), key=lambda each: each[1], default=("", 0))


def _is_split(votes: Sequence[Vote], majority: int) -> bool:
    """Tell whether publishers have split the nodes: a majority replied, and not one way."""
    yes, no, _ = count(votes)
    return yes + no >= majority


# -- completion records -----------------------------------------------------------------------


def is_run_name(name: str, task: str) -> bool:
    """Tell whether this is the run name of a message of the task, as a label names the task."""
    return name.startswith(f"run:{task}:") or (name.startswith("run:") and bool(DIGEST(task)))


def complete(policy: Policy, grant: Grant, *, life: float, at: int = 0) -> Steps[Sequence[Vote]]:
    """Turn the names of a grant into completion records; return the votes.

    A YES is a node that has the records now. The holder must have stopped relying on the lease.

    Args:
        life: seconds after which the nodes forget the records; not bounded by MAX_TTL, for they
            are no leases.
        at: when the work was done, in milliseconds since 1970; 0: the records do not tell.
    """
    request = Complete(
        grant.nonce,
        with_majority(recorded_or_not, policy.majority),
        grant.target,
        max(1, milliseconds(life)),
        at,
        to=grant.touched,
        lasts=policy.max_ttl,
    )
    return (yield from ask_twice(request))


def recorded_or_not(votes: Votes, majority: int) -> bool:
    """Tell whether the outcome is clear: a majority has the record, or none can have it any more.

    A majority of replies is not enough: a node that was emptied has nothing to turn into a record.
    """
    yes, _, rest = count(votes)
    return yes >= majority or yes + rest < majority


def done_at(votes: Sequence[Vote]) -> int:
    """Return when the work was done, in milliseconds since 1970; 0: no record tells."""
    return min(LATEST, max((vote.result for vote in _met(votes)), default=0))


def put_back(
    policy: Policy,
    target: LockKeys,
    nonce: str,
    votes: Sequence[Vote],
    *,
    ttl: float,
    elapsed: float,
) -> Complete | None:
    """Return what puts the record that an attempt has met on the nodes that granted the name.

    Args:
        nonce: of the attempt, and ``ttl`` what it asked for, in seconds.
        elapsed: seconds since before its first message.

    Returns:
        The request; None: no node granted the name, there is no such record, or its time is over.
    """
    granted = frozenset(i for i, vote in enumerate(votes) if vote.answer is YES)
    last = max(_met(votes), key=_left, default=None)
    if last is None or not granted or (life := milliseconds(_left(last) - elapsed)) <= 0:
        return None
    return Complete(
        nonce,
        with_majority(heard, policy.majority),
        target,
        life,
        last.result,
        last.holder,
        milliseconds(ttl),
        to=granted,
        lasts=policy.max_ttl,
    )


def _met(votes: Sequence[Vote]) -> list[Vote]:
    """Return the refusals by records that tell when the work was done."""
    return [vote for vote in votes if vote.answer is NO and vote.result is not None]


def _left(vote: Vote) -> float:
    return vote.left or 0.0  # a key without an expiry is none of ours

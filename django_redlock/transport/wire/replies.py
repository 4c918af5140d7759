"""Make a vote of a node's reply; ``scripts`` describes the replies.

A node may be broken, or not be one at all. So nothing of a reply is used before its type and
its range have been checked: one node must have one vote, whatever it sends, and no caller may
see an error that is about a reply's form.
"""

from __future__ import annotations

import functools
from typing import Any, Final, TypeGuard

from django_redlock.core.protocol import Answer, Command, Vote
from django_redlock.core.reasons import Reason, ReasonCode, because

from .listings import (
    LISTING,
    MOST_NUMBER,
    OWNER,
    TASK_ID,
    as_text,
    is_count,
    is_memory,
    is_pttl,
    seconds_left,
)

# An enum's member costs five times a name.
GRANT: Final = Command.GRANT
RELEASE: Final = Command.RELEASE
BLOCK: Final = Command.BLOCK
WITH_EPOCH: Final = frozenset({GRANT, Command.HEAL})  # whose last argument is the node's epoch
UNSCRIPTED: Final = {Command.UNBLOCK: int, Command.LOAD: bytes}  # the type of their reply
YES: Final = Answer.YES
EMPTIED: Final = because(ReasonCode.EMPTIED)
ANOTHER: Final = because(ReasonCode.OUT_OF_STEP)
SENSELESS: Final = because(ReasonCode.SENSELESS)
GONE: Final = because(ReasonCode.GONE)
RECORDED: Final = because(ReasonCode.RECORDED)
DONE: Final = {
    Command.GRANT: b"GRANTED",
    Command.RAISE: b"RAISED",
    Command.EXTEND: b"KEPT",
    Command.HEAL: b"HEALED",
    Command.RELEASE: b"FREED",
    Command.REST: b"RESTING",
    Command.RETURN: b"RETURNED",
    Command.MARK: b"MARKED",
    Command.UNMARK: b"UNMARKED",
    Command.COMPLETE: b"RECORDED",
    Command.LOOK: b"LOOKED",
    Command.CLAIM: b"CLAIMED",
    Command.SURVEY: b"FOUND",
    Command.INDEX: b"LISTED",
    Command.TASKS: b"TASKS",
    Command.MEMORY: b"MEMORY",
}
# What nearly every node says that is asked about one name, behind the nonce.
USUAL: Final = {
    Command.GRANT: "$7\r\nGRANTED\r\n$16\r\n",  # and a number
    Command.RELEASE: "$5\r\nFREED\r\n:0\r\n",
    Command.COMPLETE: "$8\r\nRECORDED\r\n:1\r\n",
    Command.MARK: "$6\r\nMARKED\r\n:1\r\n",
    Command.UNMARK: "$8\r\nUNMARKED\r\n:1\r\n",
}
CAN_BE_GONE: Final = frozenset(
    {
        *(GRANT, Command.HEAL, Command.RAISE),
        *(Command.REST, Command.RETURN, Command.COMPLETE, Command.UNMARK),
    }
)
DIGITS: Final = 16  # of that
LABEL: Final = 200  # characters of an owner label; another client may write more


def vote(node: str, command: Command, nonce: bytes, answer: object, asked: int = 1) -> Vote | None:
    """Return the vote in a node's reply to ``command``; None: it is no reply to this request.

    Args:
        asked: how many names, or leases, the request is about.
    """
    if command in UNSCRIPTED:
        return Vote(node, YES) if isinstance(answer, UNSCRIPTED[command]) else None
    if command is BLOCK and answer is None:
        return Vote(node, Answer.NO)
    if not isinstance(answer, list) or len(answer) < 2 or answer[0] != nonce:  # noqa: PLR2004
        return None
    if command is BLOCK:
        return _wakeup(node, answer[1]) if len(answer) == 2 else None  # noqa: PLR2004 - as above
    if answer[1] == DONE[command]:
        return _yes(node, command, answer, asked)
    return _no(node, command, answer, asked)


def usual_reply(command: Command, nonce: str) -> bytes:
    """Return the bytes of nearly every reply to a request; for a grant, how they begin."""
    return f"*3\r\n${len(nonce)}\r\n{nonce}\r\n{USUAL[command]}".encode()


def waking_reply(usual: bytes) -> bytes:
    """Return the reply to a release that woke one waiter, by that of one which woke nobody."""
    return usual[: -len(b"0\r\n")] + b"1\r\n"


def granted_number(data: bytes, beginning: bytes) -> int:
    """Return the number in a whole reply to a grant that begins so; 0: it is another reply."""
    end = len(beginning) + DIGITS
    if len(data) != end + 2 or data[end:] != b"\r\n" or not data.startswith(beginning):
        return 0
    return _number(data[end - DIGITS : end])


def why_none(nonce: bytes, answer: object) -> Reason:
    """Return why a reply is no vote."""
    echoed = isinstance(answer, list) and answer[:1] == [nonce]
    return SENSELESS if echoed else ANOTHER


def _yes(node: str, command: Command, answer: list[Any], asked: int) -> Vote | None:
    if command is Command.EXTEND:
        return _extended(node, answer[2:], asked)
    told = answer[2] if len(answer) == 3 else None  # noqa: PLR2004 - nonce, outcome, data
    if command is GRANT:
        number = _number(told)
        return Vote(node, YES, number) if number else None
    if command is RELEASE:
        return freed(node, told) if is_count(told, asked) else None
    return _rarer(node, command, answer, asked)


def _rarer(node: str, command: Command, answer: list[Any], asked: int) -> Vote | None:
    if command in LISTING:
        return LISTING[command](node, answer, asked)
    if len(answer) != 3:  # noqa: PLR2004 - as in ``_yes``
        return None
    told = answer[2]
    if command is Command.CLAIM:
        return _wakeup(node, told)
    if command is Command.LOOK:
        return Vote(node, YES, left=seconds_left(told)) if is_pttl(told) else None
    if command is Command.MEMORY:
        return Vote(node, YES, data=told) if is_memory(told) else None
    fits = _number(told) if command is Command.RAISE else is_count(told, asked)
    return Vote(node, YES) if fits else None


def _extended(node: str, told: list[Any], asked: int) -> Vote | None:
    """Return the vote of a node that kept some leases; others may be free there."""
    if len(told) != 2:  # noqa: PLR2004 - as unpacked below
        return None
    kept, free = told
    fits = _are_outcomes(kept, asked) and isinstance(free, list)
    if not (fits and all(is_count(each, asked - 1) and not kept[each] for each in free)):
        return None
    return Vote(node, YES, data=(kept, free)) if len(set(free)) == len(free) else None


@functools.lru_cache(maxsize=1024)  # one for many releases, as ``quorum.counting``
def freed(node: str, woken: int) -> Vote:
    """Return the vote of a node that released, with for how many names it found a waiter."""
    return Vote(node, YES, woken)


def _no(node: str, command: Command, answer: list[Any], asked: int) -> Vote | None:
    outcome = answer[1]
    if outcome == b"GONE":
        return _gone(node, command, answer[2:], asked)
    if command is Command.MARK:
        return _taken(node, answer[1:])
    if command not in WITH_EPOCH:
        return None
    if command is GRANT and outcome in (b"HELD", b"DONE"):  # a node may have sent what has no hash
        held = _held(node, answer[2:], asked)
        return held if held is None or outcome == b"HELD" else held._replace(reason=RECORDED)
    if outcome == b"EMPTY" and len(answer) == 2:  # noqa: PLR2004 - nothing follows
        return Vote(node, Answer.UNKNOWN, reason=EMPTIED, sent=False)
    return None


def _gone(node: str, command: Command, told: list[Any], asked: int) -> Vote | None:
    if command is RELEASE:
        fits = len(told) == 1 and is_count(told[0], asked)
    else:
        fits = not told and command in CAN_BE_GONE
    if not fits:
        return None
    woken = told[0] if told else 0  # only a release tells
    return Vote(node, Answer.NO, woken, reason=GONE)


def _taken(node: str, told: list[Any]) -> Vote | None:
    """Return the vote of a node that has another task's id."""
    if len(told) != 3 or told[0] != b"TAKEN":  # noqa: PLR2004 - as unpacked below
        return None
    _, other, owner = told
    fits = isinstance(other, bytes) and isinstance(owner, bytes) and TASK_ID(other) and OWNER(owner)
    if not fits:
        return None
    return Vote(node, Answer.NO, holder=other.decode("ascii"), owner=owner.decode("ascii"))


def _held(node: str, told: list[Any], asked: int) -> Vote | None:
    if len(told) != 4:  # noqa: PLR2004 - as unpacked below
        return None
    left, label, owner, which = told
    if not (
        is_pttl(left)
        and isinstance(label, bytes)
        and isinstance(owner, bytes)
        and OWNER(owner)
        and is_count(which, asked - 1)
    ):
        return None
    return Vote(
        node,
        Answer.NO,
        left=seconds_left(left),
        holder=as_text(label)[:LABEL],
        owner=owner.decode("ascii"),
        which=which,
    )


def _wakeup(node: str, told: object) -> Vote | None:
    """Return a vote with what was found in a queue."""
    if not isinstance(told, bytes):
        return None
    return Vote(node, YES, data=(told.decode("ascii", "replace"),))


def _number(told: object) -> int:
    """Return a grant number; 0 if it is none."""
    if isinstance(told, bytes) and len(told) <= DIGITS and told.isdigit():
        number = int(told)
        return number if number <= MOST_NUMBER else 0
    return 0


def _are_outcomes(told: object, asked: int) -> TypeGuard[list[int]]:
    """Tell whether this is 1 or 0 for each lease: sums of these are compared with a majority."""
    return isinstance(told, list) and len(told) == asked and all(is_count(each, 1) for each in told)

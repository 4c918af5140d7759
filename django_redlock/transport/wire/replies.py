"""What a node's answer is worth as a vote; the words stand in ``scripts``.

A node may be broken, or not be one at all. So nothing of an answer is used before its type and
its range have been looked at: one node must have one vote, whatever it says, and no caller may
see an error that is about an answer's shape.
"""

from __future__ import annotations

import functools
import re
from typing import Any, Final, TypeGuard

from django_redlock.core.protocol import Answer, Command, Request, Vote

# An enum's member costs five times a name.
GRANT: Final = Command.GRANT
RELEASE: Final = Command.RELEASE
STAND: Final = Command.STAND
UNSCRIPTED: Final = {Command.UNBLOCK: int, Command.LOAD: bytes}  # what they answer
YES: Final = Answer.YES
EMPTIED: Final = "lost its data; the restart guard counts from now"
ANOTHER: Final = "answered another question"
SENSELESS: Final = "sent an answer that makes no sense"
DONE: Final = {
    Command.GRANT: b"GRANTED",
    Command.RAISE: b"RAISED",
    Command.EXTEND: b"KEPT",
    Command.RELEASE: b"FREED",
    Command.REST: b"RESTING",
    Command.RETURN: b"RETURNED",
    Command.LOOK: b"LOOKED",
    Command.CLAIM: b"CLAIMED",
    Command.SURVEY: b"FOUND",
    Command.INDEX: b"LISTED",
    Command.MEMORY: b"MEMORY",
}
CAN_BE_GONE: Final = frozenset({GRANT, Command.RAISE, Command.REST, Command.RETURN})
MOST_NUMBER: Final = 2**53  # to which a node's counters are exact
DIGITS: Final = 16  # of that
LONGEST_LEFT: Final = 10**14  # milliseconds, 3,000 years; longer is told as that
LABEL: Final = 200  # characters of an owner label; whoever can write a key may write more
OWNER: Final = re.compile(rb"(?:[0-9a-f]{16})?").fullmatch  # "": the name is reserved
ROW: Final = 5  # items of what a survey tells of a name


def asked(ask: Request) -> int:
    """How many names a question is about, or tenancies: what its answer tells of, at most."""
    command, keys, args = ask.command, ask.keys, ask.args
    if command is GRANT:
        return len(keys) - 3
    if command is RELEASE:
        return (len(keys) - 2) // 2
    if command is Command.EXTEND:
        return _tenancies(args)
    if command is Command.SURVEY:
        return len(args) - 2 or int(args[1])
    if command is Command.INDEX:
        return int(args[0])
    return {Command.REST: len(keys) - 1, Command.RETURN: len(keys)}.get(command, 1)


def _tenancies(args: tuple[str | int, ...]) -> int:
    place = count = 0
    while place < len(args):
        place, count = place + 3 + int(args[place + 2]), count + 1
    return count


def vote(node: str, command: Command, nonce: bytes, answer: object, asked: int = 1) -> Vote | None:
    """What a node's answer to ``command`` is worth; None: it is none to this question.

    Args:
        asked: how many names, or tenancies, the question is about.
    """
    if command in UNSCRIPTED:
        return Vote(node, YES) if isinstance(answer, UNSCRIPTED[command]) else None
    if command is STAND and answer is None:
        return Vote(node, Answer.NO)
    if not isinstance(answer, list) or len(answer) < 2 or answer[0] != nonce:  # noqa: PLR2004
        return None
    if command is STAND:
        return _word(node, answer[1]) if len(answer) == 2 else None  # noqa: PLR2004 - the word
    if answer[1] == DONE[command]:
        return _yes(node, command, answer, asked)
    return _no(node, command, answer, asked)


def why_none(nonce: bytes, answer: object) -> str:
    """Why an answer is no vote, for people."""
    echoed = isinstance(answer, list) and answer[:1] == [nonce]
    return SENSELESS if echoed else ANOTHER


def _yes(node: str, command: Command, answer: list[Any], asked: int) -> Vote | None:
    told = answer[2] if len(answer) == 3 else None  # noqa: PLR2004 - nonce, word, what follows
    if command is GRANT:
        number = _number(told)
        return Vote(node, YES, number) if number else None
    if command is RELEASE:
        return _freed(node, told) if _is_count(told, asked) else None
    if command is Command.EXTEND:
        return Vote(node, YES, data=told) if _are_outcomes(told, asked) else None
    return _rarer(node, command, answer, asked)


def _rarer(node: str, command: Command, answer: list[Any], asked: int) -> Vote | None:
    if command in (Command.SURVEY, Command.INDEX):
        listed = _found if command is Command.SURVEY else _listed
        return listed(node, answer, asked)
    if len(answer) != 3:  # noqa: PLR2004 - as in ``_yes``
        return None
    told = answer[2]
    if command is Command.CLAIM:
        return _word(node, told)
    if command is Command.LOOK:
        return Vote(node, YES, left=seconds_left(told)) if _is_pttl(told) else None
    if command is Command.MEMORY:
        return Vote(node, YES, data=told) if _is_memory(told) else None
    fits = _number(told) if command is Command.RAISE else _is_count(told, asked)
    return Vote(node, YES) if fits else None


@functools.lru_cache(maxsize=1024)  # one for many releases, as ``protocol.counting``
def _freed(node: str, woken: int) -> Vote:
    return Vote(node, YES, woken)


def _no(node: str, command: Command, answer: list[Any], asked: int) -> Vote | None:
    word = answer[1]
    if word == b"GONE":
        return _gone(node, command, answer[2:], asked)
    if command is not GRANT:
        return None
    if word == b"HELD":
        return _held(node, answer[2:], asked)
    if word == b"EMPTY" and len(answer) == 2:  # noqa: PLR2004 - nothing follows
        return Vote(node, Answer.UNKNOWN, why=EMPTIED, sent=False)
    return None


def _gone(node: str, command: Command, told: list[Any], asked: int) -> Vote | None:
    if command is RELEASE:
        fits = len(told) == 1 and _is_count(told[0], asked)
    else:
        fits = not told and command in CAN_BE_GONE
    if not fits:
        return None
    woken = told[0] if told else 0  # only a release tells
    return Vote(node, Answer.NO, woken, why="the key is missing or somebody else's")


def _held(node: str, told: list[Any], asked: int) -> Vote | None:
    if len(told) != 4:  # noqa: PLR2004 - as unpacked below
        return None
    left, label, owner, which = told
    if not (
        _is_pttl(left)
        and isinstance(label, bytes)
        and isinstance(owner, bytes)
        and OWNER(owner)
        and _is_count(which, asked - 1)
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


def _found(node: str, answer: list[Any], asked: int) -> Vote | None:
    if len(answer) != 4:  # noqa: PLR2004 - as unpacked below
        return None
    _, _, rows, looked_at = answer
    if not (_is_count(looked_at, asked) and isinstance(rows, list) and len(rows) <= asked):
        return None
    return Vote(node, YES, looked_at, data=rows) if all(map(_is_row, rows)) else None


def _listed(node: str, answer: list[Any], asked: int) -> Vote | None:
    if len(answer) != 4:  # noqa: PLR2004 - as unpacked below
        return None
    _, _, names, after = answer
    if not (isinstance(names, list) and len(names) <= asked and _is_count(after, MOST_NUMBER)):
        return None
    return Vote(node, YES, after, data=names) if all(map(_is_bytes, names)) else None


def _is_memory(told: object) -> TypeGuard[list[Any]]:
    if not (isinstance(told, list) and len(told) == 3):  # noqa: PLR2004 - as unpacked below
        return False
    limit, policy, evicted = told
    return _is_count(limit, MOST_NUMBER) and _is_bytes(policy) and _is_count(evicted, MOST_NUMBER)


def _is_bytes(told: object) -> bool:
    return isinstance(told, bytes)


def _is_row(row: object) -> bool:
    if not (isinstance(row, list) and len(row) == ROW):
        return False
    name, owner, left, number, label = row
    return (
        isinstance(name, bytes)
        and isinstance(owner, bytes)
        and OWNER(owner) is not None
        and _is_pttl(left)
        and isinstance(number, bytes)
        and (number == b"" or number.isdigit())
        and isinstance(label, bytes)
    )


def _word(node: str, told: object) -> Vote | None:
    """A vote with what was found in a queue."""
    if not isinstance(told, bytes):
        return None
    return Vote(node, YES, data=(told.decode("ascii", "replace"),))


def _number(told: object) -> int:
    """A grant number; 0 if it is none."""
    if isinstance(told, bytes) and len(told) <= DIGITS and told.isdigit():
        number = int(told)
        return number if number <= MOST_NUMBER else 0
    return 0


def _is_count(told: object, most: int) -> TypeGuard[int]:
    return isinstance(told, int) and 0 <= told <= most


def _is_pttl(told: object) -> TypeGuard[int]:
    return isinstance(told, int) and told >= -2  # noqa: PLR2004 - what Redis says where no key is


def _are_outcomes(told: object, asked: int) -> TypeGuard[list[int]]:
    """Whether this is 1 or 0 for each tenancy: how many nodes have kept it is a sum of these."""
    return (
        isinstance(told, list) and len(told) == asked and all(_is_count(each, 1) for each in told)
    )


def seconds_left(pttl: int) -> float | None:
    """Seconds until a key is gone; None: it never is."""
    return None if pttl == -1 else min(max(0, pttl), LONGEST_LEFT) / 1000


def as_text(found: bytes) -> str:
    """Bytes that anybody may have written, as text."""
    return found.decode("utf-8", "backslashreplace")

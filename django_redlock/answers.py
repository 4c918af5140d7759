"""What a node's answer is worth as a vote; the words stand in ``scripts``."""

from __future__ import annotations

import functools
from typing import Any, Final

from .protocol import Answer, Command, Vote

# An enum's member costs five times a name.
GRANT: Final = Command.GRANT
RELEASE: Final = Command.RELEASE
STAND: Final = Command.STAND
UNSCRIPTED: Final = frozenset({Command.UNBLOCK, Command.LOAD})  # whatever they answer
YES: Final = Answer.YES
EMPTIED: Final = "lost its data; the restart guard counts from now"
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


def vote(node: str, command: Command, nonce: bytes, answer: object) -> Vote | None:
    """What a node's answer to ``command`` is worth; None: it is not an answer to this question."""
    if command in UNSCRIPTED:
        return Vote(node, YES)
    if command is STAND and answer is None:
        return Vote(node, Answer.NO)
    if not isinstance(answer, list) or len(answer) < 2 or answer[0] != nonce:  # noqa: PLR2004
        return None
    if command is STAND:
        return Vote(node, YES, data=(answer[1].decode("ascii", "replace"),))
    return _yes(node, command, answer) if answer[1] == DONE[command] else _no(node, command, answer)


def _yes(node: str, command: Command, answer: list[Any]) -> Vote:
    if command is GRANT:
        return Vote(node, YES, int(answer[2]))
    if command is RELEASE:
        return Vote(node, YES, answer[2]) if answer[2] else _freed(node)
    if command is Command.SURVEY or command is Command.INDEX:
        return Vote(node, YES, answer[3], data=answer[2])
    if command is Command.EXTEND or command is Command.MEMORY:
        return Vote(node, YES, data=answer[2])
    if command is Command.CLAIM:
        return Vote(node, YES, data=(answer[2].decode("ascii", "replace"),))
    return Vote(node, YES, left=_left(answer[2]) if command is Command.LOOK else None)


@functools.cache  # one for all releases, as ``protocol.counting``
def _freed(node: str) -> Vote:
    return Vote(node, YES)


def _no(node: str, command: Command, answer: list[Any]) -> Vote | None:
    if answer[1] == b"GONE":
        woken = sum(answer[2:])  # only a release tells
        return Vote(node, Answer.NO, woken, why="the key is missing or somebody else's")
    if answer[1] == b"HELD" and command is Command.GRANT:
        left, label, owner, which = answer[2:6]
        holder = label.decode("utf-8", "backslashreplace")
        return Vote(
            node, Answer.NO, left=_left(left), holder=holder, owner=owner.decode(), which=which
        )
    if answer[1] == b"EMPTY" and command is Command.GRANT:
        return Vote(node, Answer.LOST, why=EMPTIED, sent=False)
    return None


def _left(pttl: int) -> float | None:
    """Seconds until a key is gone; None: it never is."""
    return None if pttl == -1 else max(0, pttl) / 1000

"""What a node's answer is worth as a vote; the words stand in ``scripts``."""

from __future__ import annotations

from typing import Any, Final

from .protocol import Answer, Command, Vote

EMPTIED: Final = "lost its data; the restart guard counts from now"
DONE: Final = {
    Command.GRANT: b"GRANTED",
    Command.RAISE: b"RAISED",
    Command.EXTEND: b"KEPT",
    Command.RELEASE: b"FREED",
    Command.REST: b"RESTING",
    Command.LOOK: b"LOOKED",
    Command.CLAIM: b"CLAIMED",
    Command.SURVEY: b"FOUND",
}


def vote(node: str, command: Command, nonce: bytes, answer: object) -> Vote | None:
    """What a node's answer to ``command`` is worth; None: it is not an answer to this question."""
    if command is Command.UNBLOCK:
        return Vote(node, Answer.YES)
    if command is Command.STAND and answer is None:
        return Vote(node, Answer.NO)
    if not isinstance(answer, list) or len(answer) < 2 or answer[0] != nonce:  # noqa: PLR2004
        return None
    if command is Command.STAND:
        return Vote(node, Answer.YES, data=(answer[1].decode("ascii", "replace"),))
    return _yes(node, command, answer) if answer[1] == DONE[command] else _no(node, command, answer)


def _yes(node: str, command: Command, answer: list[Any]) -> Vote:
    if command is Command.GRANT:
        return Vote(node, Answer.YES, int(answer[2]))
    if command is Command.SURVEY:
        return Vote(node, Answer.YES, answer[3], data=answer[2])
    if command is Command.EXTEND:
        return Vote(node, Answer.YES, data=answer[2])
    if command is Command.CLAIM:
        return Vote(node, Answer.YES, data=(answer[2].decode("ascii", "replace"),))
    if command is Command.RELEASE:
        return Vote(node, Answer.YES, answer[2])
    return Vote(node, Answer.YES, left=_left(answer[2]) if command is Command.LOOK else None)


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

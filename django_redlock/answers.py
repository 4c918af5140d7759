"""What a node's answer is worth as a vote; the words stand in ``scripts``."""

from __future__ import annotations

from typing import Final

from .protocol import Answer, Command, Vote

EMPTIED: Final = "lost its data; the restart guard counts from now"
DONE: Final = {
    Command.GRANT: b"GRANTED",
    Command.RAISE: b"RAISED",
    Command.EXTEND: b"KEPT",
    Command.RELEASE: b"FREED",
    Command.REST: b"RESTING",
    Command.SURVEY: b"FOUND",
}


def vote(  # noqa: PLR0911 - one for each word
    node: str, command: Command, nonce: bytes, answer: object
) -> Vote | None:
    """What a node's answer to ``command`` is worth; None: it is not an answer to this question."""
    if not isinstance(answer, list) or len(answer) < 2 or answer[0] != nonce:  # noqa: PLR2004
        return None
    word = answer[1]
    if word == DONE[command]:
        if command is Command.GRANT:
            return Vote(node, Answer.YES, int(answer[2]))
        if command is Command.SURVEY:
            return Vote(node, Answer.YES, answer[3], data=answer[2])
        if command is Command.EXTEND:
            return Vote(node, Answer.YES, data=answer[2])
        return Vote(node, Answer.YES)
    if word == b"HELD" and command is Command.GRANT:
        left = answer[2] / 1000 if answer[2] >= 0 else None
        holder = answer[3].decode("utf-8", "backslashreplace")
        return Vote(node, Answer.NO, left=left, holder=holder)
    if word == b"GONE":
        return Vote(node, Answer.NO, why="the key is missing or somebody else's")
    if word == b"EMPTY" and command is Command.GRANT:
        return Vote(node, Answer.LOST, why=EMPTIED, sent=False)
    return None

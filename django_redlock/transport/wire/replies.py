"""Tell whose reply this is, and make a vote of it; ``scripts`` describes the replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from django_redlock.core.commands import wakeup_vote
from django_redlock.core.protocol import Answer, Command, Vote
from django_redlock.core.reasons import Reason, ReasonCode, because

if TYPE_CHECKING:
    from django_redlock.core.protocol import Request

ANOTHER: Final = because(ReasonCode.OUT_OF_STEP)
SENSELESS: Final = because(ReasonCode.SENSELESS)


def vote(request: Request, node: str, nonce: bytes, reply: object) -> Vote | None:
    """Return the vote in a node's reply to a script; None: it is no reply to this request."""
    if not isinstance(reply, list) or len(reply) < 2 or reply[0] != nonce:  # noqa: PLR2004
        return None
    return request.read(node, reply)


def plain_vote(command: Command, node: str, nonce: bytes, reply: object) -> Vote | None:
    """Return the vote in the reply to a command that is no script; None: it is no such reply."""
    if command is Command.BLOCK:
        if reply is None:
            return Vote(node, Answer.NO)
        if not isinstance(reply, list) or len(reply) != 2 or reply[0] != nonce:  # noqa: PLR2004
            return None
        return wakeup_vote(node, reply[1])
    kind = int if command is Command.UNBLOCK else bytes  # LOAD
    return Vote(node, Answer.YES) if isinstance(reply, kind) else None


def why_none(nonce: bytes, reply: object) -> Reason:
    """Return why a reply is no vote."""
    echoed = isinstance(reply, list) and reply[:1] == [nonce]
    return SENSELESS if echoed else ANOTHER

"""Read replies in the Redis protocol within a bound, and make votes of them.

hiredis parses them. Bytes that are no reply make it raise ``UNREADABLE``; a reply of more than
``most_bytes`` is not read to its end. Both close the connection, and the node gives no vote.

``scripts`` describes the replies; the class of each command reads them (``core.commands``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import hiredis

from django_redlock.core.commands import wakeup_vote
from django_redlock.core.protocol import Answer, Command, Vote
from django_redlock.core.reasons import Reason, ReasonCode, because

if TYPE_CHECKING:
    from django_redlock.core.protocol import Request


ANSWER: Final = 256 * 1024  # bytes that any reply may have …
ROOM: Final = 1024  # … and for each name in its request
# What hiredis raises: of bytes that are no reply, of too many items, of a map whose keys are lists.
UNREADABLE: Final = (hiredis.HiredisError, MemoryError, TypeError)

MORE: Final = object()  # what a parser has before a reply is whole; False is a reply, ``#f``

NOT_REDIS: Final = because(ReasonCode.NOT_THE_PROTOCOL)
TOO_LONG: Final = because(ReasonCode.TOO_LONG)
UNASKED: Final = because(ReasonCode.UNASKED)
ANOTHER: Final = because(ReasonCode.OUT_OF_STEP)
SENSELESS: Final = because(ReasonCode.SENSELESS)


def reader() -> hiredis.Reader:
    """Return a parser for one connection; an error reply is a ``hiredis.ReplyError``.

    It returns ``MORE`` where a reply has not come as a whole.
    """
    # The errors are those of decoding error replies; strings are bytes.
    return hiredis.Reader(errors="backslashreplace", notEnoughData=MORE)


def most_bytes(count: int) -> int:
    """Return how many bytes a reply may have that tells of so many names, leases or rows."""
    return ANSWER + ROOM * count


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
        queues = nonce.split(b"\0")
        if not isinstance(reply, list) or len(reply) != 2 or reply[0] not in queues:  # noqa: PLR2004
            return None
        return wakeup_vote(node, reply[1], queues.index(reply[0]))
    kind = int if command is Command.UNBLOCK else bytes  # LOAD
    return Vote(node, Answer.YES) if isinstance(reply, kind) else None


def why_none(nonce: bytes, reply: object) -> Reason:
    """Return why a reply is no vote."""
    echoed = isinstance(reply, list) and reply[:1] == [nonce]
    return SENSELESS if echoed else ANOTHER

"""Read replies in the Redis protocol (RESP 2) within bounds, and make votes of them.

hiredis parses them. But it allocates as many items as a header announces before the first has come
(``*4294967295`` is 32 GB), knows types that are not in RESP 2 and fails on some of them in its own
ways, and has no bounds. So it is given only what has been checked: whole items of RESP 2, of
bounded length. A node's bytes can cause one exception only, ``Malformed``; so a caller need not
catch more, and an exception of a signal handler is not caught with it.

``scripts`` describes the replies; the class of each command reads them (``core.commands``).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import hiredis

from django_redlock.core.commands import wakeup_vote
from django_redlock.core.protocol import Answer, Command, Vote
from django_redlock.core.reasons import Reason, ReasonCode, because

if TYPE_CHECKING:
    from django_redlock.core.protocol import Request


ITEM: Final = 256 * 1024  # bytes of one item
SIMPLE: Final = 16 * 1024  # bytes of a status or an error
ANSWER: Final = 256 * 1024  # bytes that any reply may have …
ROOM: Final = 1024  # … and for each name in its request

NOT_REDIS: Final = because(ReasonCode.NOT_THE_PROTOCOL)
TOO_LONG: Final = because(ReasonCode.TOO_LONG)
UNASKED: Final = because(ReasonCode.UNASKED)

END: Final = b"\r\n"


def _short_strings() -> str:
    r"""What matches strings of up to 99 bytes: ``3\r\nabc\r\n`` and so on."""
    ones = "|".join(rf"{n}\r\n.{{{n}}}" for n in range(10))
    tens = "|".join(
        f"{ten}(?:" + "|".join(rf"{n}\r\n.{{{ten}{n}}}" for n in range(10)) + ")"
        for ten in range(1, 10)
    )
    return rf"(?:{tens}|{ones})\r\n"


# As many whole items as there are; lists are headers here, their items follow. Whole replies to
# grants and releases come first, because they are the most frequent.
ITEMS: Final = re.compile(
    rf"""(?:
    \*3\r\n\$32\r\n.{{32}}\r\n\$(?:7\r\nGRANTED\r\n\$16\r\n.{{16}}|5\r\nFREED\r\n:[0-9])\r\n
    |\*[0-9]{{1,5}}\r\n
    |:-?[0-9]{{1,19}}\r\n
    |\${_short_strings()}
    |[+-][^\r\n]{{0,{SIMPLE}}}\r\n
    |[$*]-1\r\n
    )*+""".encode(),
    re.DOTALL | re.VERBOSE,
).match
LENGTH: Final = re.compile(rb"([$*])([0-9]+)\r\n").match
BEGUN: Final = re.compile(
    rb"(?:[$*:]-?[0-9]{0,19}|[+-][^\r\n]{0,%d})\r?\Z" % SIMPLE,
).match


class Malformed(Exception):  # noqa: N818 - as ``Refused``: why a connection is of no use
    """A node sent what cannot be a reply.

    Attributes:
        reason: why.
    """

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class Reader:
    """The parser of one connection.

    Attributes:
        gets: returns the next reply; False: it has not arrived as a whole. It returns an error
            reply as ``hiredis.ReplyError``, and raises ``hiredis.ProtocolError``.
    """

    __slots__ = ("_begun", "_feed", "gets")

    def __init__(self) -> None:
        reader = hiredis.Reader(errors="backslashreplace")  # of errors; strings are bytes
        self.gets = reader.gets
        self._feed = reader.feed
        self._begun = b""  # an item that has not arrived as a whole

    def feed(self, data: bytes) -> None:
        """Parse what has arrived.

        Raises:
            Malformed: it cannot be part of a reply. Nothing more can be read.
        """
        if self._begun:
            data, self._begun = self._begun + data, b""
        end = ITEMS(data).end()  # type: ignore[union-attr] # it matches nothing, too
        if end < len(data):
            end = _and_long_ones(data, end)
            self._begun, data = data[end:], data[:end]
        self._feed(data)


def _and_long_ones(data: bytes, pos: int) -> int:
    """Return where the last whole item ends; at ``pos`` begins one that is long, or not whole."""
    while pos < len(data):
        header = LENGTH(data, pos)
        if header is None:
            if BEGUN(data, pos) is None:
                raise Malformed(NOT_REDIS)
            return pos
        end = header.end() + int(header[2][:9])
        if header[1] == b"*" or end - header.end() > ITEM:
            raise Malformed(TOO_LONG)
        if end + len(END) > len(data):
            return pos
        if data[end : end + len(END)] != END:
            raise Malformed(NOT_REDIS)
        pos = ITEMS(data, end + len(END)).end()  # type: ignore[union-attr] # as in ``feed``
    return pos


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

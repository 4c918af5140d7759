"""Open a connection to a node, and find out once whether and from when the node may vote."""

from __future__ import annotations

import math
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from hiredis import ReplyError

from django_redlock.core.policy import boottime, microseconds, milliseconds
from django_redlock.core.reasons import ReasonCode

from . import admission, replies, scripts
from .connection import Connection
from .faults import Refused, complaint, not_redis

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from redis.connection import Connection as RedisConnection
    from redis.connection import UnixDomainSocketConnection

    from .address import Address


READ_SIZE: Final = 65536


class NodeReplies:
    """The replies of a node that is being connected, once redis-py has logged in."""

    def __init__(self, connection: RedisConnection | UnixDomainSocketConnection) -> None:
        self._socket: socket.socket = connection._sock  # type: ignore[assignment] # noqa: SLF001 - see ``Connection``
        self._reader = replies.reader()

    def answer(self) -> Any:
        """Return the next reply; also an error, as ``hiredis.ReplyError``.

        Raises:
            Refused: it is not the Redis protocol, or too long.
            OSError: the connection is lost, or nothing comes.
        """
        size = 0
        try:
            while (answer := self._reader.gets()) is replies.MORE:
                data = self._socket.recv(READ_SIZE)
                size += len(data)
                if not data:
                    raise ConnectionError("connection closed by the node")
                if size > replies.ANSWER:
                    raise Refused(replies.TOO_LONG)
                self._reader.feed(data)
        except replies.UNREADABLE as error:
            raise Refused(not_redis(error)) from None
        return answer


def open_connection(
    address: Address,
    *,
    index: int,
    fences: str,
    guard: float,
    skew: float,
    earlier: admission.ServerInfo | None,
    timeout: float,
    failover: bool = False,
    only_node_of: str = "",
    progress: Callable[[], object] = bool,
) -> Connection:
    """Connect, and find out whether and from when the node may vote.

    Args:
        index: index of the node in its group.
        fences: the key of the node's counters.
        guard: seconds for which a restarted or emptied node has no vote; 0: it has one at once.
        skew: seconds by which its clock may differ from ours, with a guard.
        earlier: what the node said at an earlier connection.
        timeout: seconds for each step.
        failover: whether a promoted replica may vote, when the guard is over.
        only_node_of: the alias whose single node it is, or "".
        progress: called after each reply of the node.

    Raises:
        Refused: the node may never vote or refused the login, or this is no node.
        RedisError, OSError: the node cannot be reached.
        ValueError: redis-py could not read a reply.
    """
    connection = address.connection(timeout)
    try:
        heard = log_in(connection)
        progress()
        start = time.monotonic()
        sent, asked = microseconds(), boottime()
        send(connection, ("TIME",), ("INFO", "server"), ("INFO", "replication"))
        clock = _clock(heard)
        round_trip = time.monotonic() - start
        look = admission.Look(clock, sent / 1e6, microseconds() / 1e6, asked, boottime())
        facts = admission.parse(_answer(heard, bytes) + b"\n" + _answer(heard, bytes))
        facts = admission.seen(facts, look, earlier, skew if guard else math.inf)
        progress()
        refusal = admission.objection(facts, failover=failover, only_node_of=only_node_of)
        if refusal:
            raise Refused(refusal)  # noqa: TRY301 - the connection must be closed below
        age = admission.age(facts, look.heard)
        question = Admission(fences, guard, age, facts, epoch=secrets.token_hex(8))
        load = [("SCRIPT LOAD", text) for text in scripts.TEXT.values()]
        # One of the two clocks is wrong: nothing may be written by it.
        again = [] if facts.off else [question.command]
        send(connection, *load, *again, ("CLIENT ID",))
        for command in scripts.TEXT:
            if _answer(heard, bytes) != scripts.DIGEST[command].encode():
                raise Refused(replies.ANOTHER)  # noqa: TRY301 - as above
        if again:
            guard_left, admitted = question.read(_answer(heard, list))
        else:
            guard_left, admitted = admission.LOOK_AGAIN, b""
        progress()
        client = _number(heard)
        return Connection(
            connection,
            address.label,
            facts,
            index=index,
            client=client,
            epoch=admitted and admitted + facts.history.encode(),
            round_trip=round_trip,
            guard_left=guard_left,
        )
    except BaseException:
        connection.disconnect()
        raise


def log_in(connection: RedisConnection | UnixDomainSocketConnection) -> NodeReplies:
    """Have redis-py connect and log in; return what reads further replies.

    Raises:
        RedisError, OSError, ValueError: see ``open_connection``.
    """
    connection.connect()
    return NodeReplies(connection)


class Admission:
    """Ask a node how long the restart guard keeps it from voting: by its age and by its mark.

    Args:
        fences: the key of the node's counters.
        guard: seconds of the restart guard.
        age: seconds that the node has surely been up.
        facts: what it says of itself.
        epoch: a random text, which becomes its mark; "": look, and write nothing.
    """

    def __init__(
        self, fences: str, guard: float, age: float, facts: admission.ServerInfo, *, epoch: str
    ) -> None:
        self._nonce = secrets.token_hex(16)
        self._longest = math.ceil(guard * 1000)  # the one time to round up
        self._looks = not epoch
        self._by_age = admission.guard_left(age, guard)
        arguments = (self._nonce, self._longest, milliseconds(age), epoch, facts.history)
        self.command: tuple[str | int, ...] = ("EVAL", scripts.ADMIT, 1, fences, *arguments)

    def read(self, answer: object) -> tuple[float, bytes]:
        """Return the seconds until the node may vote, and its epoch.

        They are infinite where who only looks is the first to notice the node: nobody has begun
        to count them.

        Raises:
            Refused: the answer makes no sense.
        """
        nonce = self._nonce.encode()
        if not isinstance(answer, list):
            raise Refused(replies.ANOTHER)
        if len(answer) == 4 and answer[:2] == [nonce, b"ADMITTED"]:  # noqa: PLR2004
            wait, epoch = answer[2:]
            if wait == -1 and self._looks:
                return math.inf, b""
            if (
                isinstance(wait, int)
                and 0 <= wait <= self._longest + 1
                and isinstance(epoch, bytes)
            ):
                return max(self._by_age, wait / 1000), epoch
        raise Refused(replies.why_none(nonce, answer))


def _clock(heard: NodeReplies) -> float:
    """Return the node's wall clock.

    A Sentinel has no TIME, and is known by its INFO, which was asked for at the same time.
    """
    answer = heard.answer()
    if not isinstance(answer, ReplyError):
        return admission.clock_of(answer)
    refusal = complaint(answer)
    if refusal.code is ReasonCode.ERROR:
        with suppress(OSError):  # it may have closed the connection after its error
            info = heard.answer()
            if isinstance(info, bytes):
                admission.parse(info)
    raise Refused(refusal)


def _number(heard: NodeReplies) -> int:
    """Return the node's number for this connection, for CLIENT UNBLOCK; 0 if forbidden."""
    answer = heard.answer()
    if isinstance(answer, ReplyError):
        return 0
    if isinstance(answer, int) and answer > 0:
        return answer
    raise Refused(replies.ANOTHER)


def send(
    connection: RedisConnection | UnixDomainSocketConnection, *commands: tuple[str | int, ...]
) -> None:
    """Send commands at once: their replies take one round trip."""
    connection.send_packed_command(connection.pack_commands(commands))


def _answer(heard: NodeReplies, kind: type) -> Any:
    answer = heard.answer()
    if isinstance(answer, ReplyError):
        raise Refused(complaint(answer))
    if not isinstance(answer, kind):
        raise Refused(replies.ANOTHER)
    return answer

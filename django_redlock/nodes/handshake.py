"""Open a connection to a node, and find out once whether and from when the node may vote."""

from __future__ import annotations

import math
import secrets
import socket
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import hiredis
from hiredis import ReplyError

from django_redlock.core.policy import boottime, microseconds, milliseconds
from django_redlock.core.reasons import ReasonCode

from . import admission, replies, scripts
from .background import Listening
from .connection import Connection
from .faults import Refused, complaint, stranger
from .replies import NOT_REDIS, TOO_LONG, UNASKED, Malformed, Reader

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.connection import Connection as RedisConnection
    from redis.connection import UnixDomainSocketConnection

    from .address import Address


MOST: Final = 256 * 1024  # bytes of all replies together; a thousand replicas fill half of it
STEPS: Final = 8  # timeouts of one step that all replies together may take
READ_SIZE: Final = 65536


class BoundedSocket:
    """Replaces the socket of a connection that is being opened.

    Attributes:
        socket: the real one.
    """

    def __init__(self, sock: socket.socket, timeout: float) -> None:
        self.socket = sock
        self._timeout = timeout
        self._until = time.monotonic() + STEPS * timeout
        self._left = MOST
        self._heard = False
        self._reader = Reader()
        self._answers: deque[Any] = deque()
        self._commands = hiredis.Reader()  # of what redis-py sends, to count it
        self._sent = self._replies = 0  # commands, and what came in reply

    def __getattr__(self, name: str) -> Any:
        return getattr(self.socket, name)

    def sendall(self, data: bytes, *flags: int) -> None:
        """Send as a socket does; each command may be answered once."""
        self._commands.feed(bytes(data))
        while self._commands.gets() is not False:
            self._sent += 1
        self.socket.sendall(data, *flags)

    def recv(self, size: int, *flags: int) -> bytes:
        """Receive as a socket does, and check what arrives.

        Raises:
            Refused: it is not the Redis protocol, or too much.
            TimeoutError: nothing came, or the handshake takes too long.
        """
        data = self._listen(size, *flags)
        self._left -= len(data)
        if self._left < 0:
            raise Refused(TOO_LONG)
        other = None if self._heard else stranger(data[:1])
        self._heard = True
        if other:
            raise Refused(other)
        try:
            self._reader.feed(data)
            while (answer := self._reader.gets()) is not False:
                self._answers.append(answer)
                self._replies += 1
        except hiredis.ProtocolError:
            raise Refused(NOT_REDIS) from None
        except Malformed as error:
            raise Refused(error.reason) from None
        return data

    def _listen(self, size: int, *flags: int) -> bytes:
        """Receive; do not count time for which this machine did not run."""
        listening = Listening(self._timeout)
        while True:
            start = time.monotonic()
            if start >= self._until:
                raise TimeoutError("handshake without end")
            part = listening.part(self._until - start)
            self.socket.settimeout(part)
            try:
                return self.socket.recv(size, *flags)
            except TimeoutError:
                self._until += listening.waited_for(part, start)
                if listening.seconds >= 0.99 * self._timeout:  # parts are no exact fractions
                    raise

    def recv_into(self, buffer: bytearray, size: int = 0, *flags: int) -> int:
        """Receive as a socket does; see ``recv``."""
        data = self.recv(size or len(buffer), *flags)
        buffer[: len(data)] = data
        return len(data)

    def end(self) -> None:
        """Remove the bounds: the handshake is over.

        Raises:
            Refused: the node sent more than was asked for.
        """
        if self._answers:
            raise Refused(UNASKED)
        self.socket.settimeout(self._timeout)

    def logged_in(self) -> None:
        """Forget the replies that redis-py has read; ``answer`` returns the next ones.

        Raises:
            Refused: the node sent more than redis-py asked for.
        """
        if 0 < self._sent < self._replies:  # without a command, the first reply tells
            raise Refused(UNASKED)
        self._answers.clear()

    def answer(self) -> Any:
        """Return the next reply; also an error, as ``hiredis.ReplyError``.

        Raises:
            Refused: see ``recv``.
            OSError: the connection is lost, or nothing comes.
        """
        while not self._answers:
            if not self.recv(READ_SIZE):
                raise ConnectionError("connection closed by the node")
        return self._answers.popleft()


def open_connection(
    address: Address,
    *,
    place: int,
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
        place: index of the node in its group.
        fences: the key of the node's counters.
        guard: seconds for which a restarted or emptied node has no vote; 0: it has one at once.
        skew: seconds by which its clock may differ from ours, with a guard.
        earlier: what the node said at an earlier connection.
        timeout: seconds for each step; for all replies together a few times that.
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
        heard = log_in(connection, timeout)
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
        asking = [] if facts.off else [question.command]
        send(connection, *load, *asking, ("CLIENT ID",))
        for command in scripts.TEXT:
            if _answer(heard, bytes) != scripts.DIGEST[command].encode():
                raise Refused(replies.ANOTHER)  # noqa: TRY301 - as above
        if asking:
            guard_left, admitted = question.read(_answer(heard, list))
        else:
            guard_left, admitted = admission.LOOK_AGAIN, b""
        progress()
        client = _number(heard)
        heard.end()
        connection._sock = heard.socket  # type: ignore[assignment] # noqa: SLF001 - see ``Connection``
        return Connection(
            connection,
            address.label,
            facts,
            place=place,
            client=client,
            epoch=admitted + facts.history.encode(),
            round_trip=round_trip,
            guard_left=guard_left,
        )
    except BaseException:
        connection.disconnect()
        raise


def log_in(
    connection: RedisConnection | UnixDomainSocketConnection, timeout: float
) -> BoundedSocket:
    """Have redis-py connect and log in over a bounded socket; return that, for further replies.

    Args:
        timeout: seconds for each reply; for all together a few times that.

    Raises:
        Refused, RedisError, OSError, ValueError: see ``open_connection``.
    """
    logging_in: Any = connection.redis_connect_func or type(connection).on_connect

    def bounded(connection: Any) -> None:
        connection._sock = BoundedSocket(connection._sock, timeout)  # noqa: SLF001 - see ``Connection``
        logging_in(connection)

    connection.redis_connect_func = bounded  # type: ignore[assignment] # it is passed one
    connection.connect()
    heard: BoundedSocket = connection._sock  # type: ignore[assignment] # noqa: SLF001 - as above
    heard.logged_in()
    return heard


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


def _clock(heard: BoundedSocket) -> float:
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


def _number(heard: BoundedSocket) -> int:
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


def _answer(heard: BoundedSocket, kind: type) -> Any:
    answer = heard.answer()
    if isinstance(answer, ReplyError):
        raise Refused(complaint(answer))
    if not isinstance(answer, kind):
        raise Refused(replies.ANOTHER)
    return answer

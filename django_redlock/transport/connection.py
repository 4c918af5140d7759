"""One connection to one node: commands go out, answers come back in the same order.

redis-py opens it (TLS, AUTH, SELECT) and closes it; in between the socket is ours, not
blocking, because an answer that nobody waits for any more must neither hold up the caller nor
cost the connection. What was sent and not yet answered stands in ``owed``: the next one who
reads, for whatever question, meets the old answers first and settles them.

An answer that does not echo its question's nonce means that the stream is out of step (an
exception from a signal handler can do that): it is no vote, and the channel is closed.
"""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

import hiredis

from django_redlock.concurrency.farewells import Farewell
from django_redlock.core.protocol import UNDO, Answer, Command, Vote

from . import admission
from .pending import PendingReply, nobody, packed
from .wire import replies as answers
from .wire import resp, scripts
from .wire.refusals import complaint
from .wire.tls import OneAtATime

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.connection import Connection as RedisConnection
    from redis.connection import UnixDomainSocketConnection

    from .pending import Asker


READ_SIZE: Final = 65536
READS: Final = 64  # of that size at a time; poll tells when there is more
ANSWER: Final = 256 * 1024  # bytes that any answer may have …
ROOM: Final = 1024  # … and for each name that was asked about
# Bytes that may be owed before a connection takes no more questions, and before it takes no more
# undoing either: that is kept, and sent later. One that owes nothing takes a question of any size.
BACKLOG: Final = 65536
UNDO_BACKLOG: Final = 2 * BACKLOG
LOOP_BACKLOG: Final = 256 * 1024 * 1024  # of all tasks of an event loop together
NO_EPOCH: Final = b"$0\r\n\r\n"  # an empty word, as the last of a grant: see Channel.send
GRANT: Final = Command.GRANT  # an enum's member costs five times a name
BUSY: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Connection:
    """An open connection to a node.

    Attributes:
        label, place: the node's, the latter in its group.
        facts: what the node said of itself when the connection was opened.
        client: the node's number for this connection; 0 if it would not tell.
        round_trip: seconds that took.
        opened: ``time.monotonic`` then.
        answered: ``time.monotonic`` of the last answer.
        votes_from: ``time.monotonic`` from which the node may vote.
        fault: why the channel is of no more use; "" while it is.
        spoiled: ``time.monotonic`` of an interruption that may have put it out of step, so that
            only an undo may still use it; else 0.
        looped: an event loop has it, and sends later what the socket does not take at once.
        undone: told who wanted something undone that the node has not done.
        unsent: bytes that are still to be sent; reading sends them, too.
    """

    def __init__(
        self,
        connection: RedisConnection | UnixDomainSocketConnection,
        label: str,
        facts: admission.ServerInfo,
        *,
        place: int,
        client: int,
        epoch: bytes,
        round_trip: float,
        guard_left: float,
    ) -> None:
        self._connection = connection  # keeps the socket open
        # Closes it when the channel is forgotten: in a cycle, as a loop that is closed without
        # shutting down leaves one, the connection's own __del__ may come after the socket's.
        Farewell(self, connection.disconnect)
        # redis-py has no public name for the socket in all its supported versions.
        self.socket: socket.socket = connection._sock  # type: ignore[assignment] # noqa: SLF001
        self.socket.settimeout(0)
        self.fileno = self.socket.fileno()
        self.label = label
        self.place = place
        self._epoch = b"$%d\r\n%b\r\n" % (len(epoch), epoch)
        self.facts = facts
        self.client = client
        self.round_trip = round_trip
        self.opened = self.answered = time.monotonic()
        self.guarded = guard_left > 0
        self.votes_from = self.opened + guard_left if guard_left > 0 else -math.inf
        self.owed: deque[PendingReply] = deque()
        self.fault = ""
        self.spoiled = 0.0
        self.looped = False
        self.undone: Callable[[Asker], object] | None = None
        self._tls = isinstance(self.socket, ssl.SSLSocket)
        self._using = threading.RLock() if self._tls else contextlib.nullcontext()
        self._stream = OneAtATime(self.socket, self._using) if self._tls else self.socket
        self._reader = resp.Reader()
        self._unsent: list[bytes] = []
        self.unsent = 0
        self._backlog = 0  # bytes of questions without an answer
        self._heard = -math.inf  # time.monotonic of the last answer, or of the first question
        self._unasked = False  # whether nothing of what is owed has been sent yet
        self._incomplete = 0
        self._loading: set[Command] = set()
        self._writing = threading.RLock()  # re-entrant: a signal handler may lock, too

    def silent_for(self, now: float) -> float:
        """Seconds for which an answer has been owed and none has come, since we asked for it."""
        if self._unasked:
            return 0.0
        try:
            since = self.owed[0].since
        except IndexError:
            return 0.0
        return now - max(since, self._heard)

    def put(self, owed: PendingReply) -> bool:
        """Note a question as asked, to be sent by ``flush``; False if there is no room for it."""
        packed, size = owed.packed, len(owed.packed)
        if owed.command is GRANT:
            packed = packed[: -len(NO_EPOCH)] + self._epoch
        with self._writing:
            if self.fault or not self._has_room(owed, size):
                return False
            self._backlog += size
            if not self.owed:
                self._unasked = True
            self.owed.append(owed)  # before sending: an answer must never find no question
            self._unsent.append(packed)
            self.unsent += len(packed)
        return True

    def _has_room(self, owed: PendingReply, size: int) -> bool:
        if not self._backlog:
            return True
        undoing = owed.command in UNDO
        room = UNDO_BACKLOG if undoing else BACKLOG
        if self._backlog + size <= (LOOP_BACKLOG if self.looped else room):
            return True
        return undoing and self.owes(owed.nonce)  # another connection would overtake the grant

    def owes(self, nonce: bytes) -> bool:
        """Whether the answer to a question with this nonce is outstanding."""
        return any(owed.nonce == nonce for owed in tuple(self.owed))

    def undoing_until(self) -> float:
        """``time.monotonic`` until which an answer to something that undoes is of interest."""
        undoing = [owed.asker for owed in tuple(self.owed) if owed.command in UNDO]
        return max((asker.until for asker in undoing if asker is not None), default=-math.inf)

    def flush(self) -> bool:
        """Send what the socket takes without waiting; whether that was all."""
        with self._writing:
            if self.fault or not self._unsent:
                return True
            data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
            try:
                sent = self._stream.send(data)
            except BUSY:
                sent = 0
            except OSError as error:
                if self.looped:  # reading tells as well, and in the loop's own thread
                    self._unsent, self.unsent = [], 0
                else:
                    self.close(f"connection lost: {error.strerror or error}")
                return True
            if sent and self._unasked:
                self._unasked, self._heard = False, time.monotonic()
            self._unsent = [data[sent:]] if sent < len(data) else []
            self.unsent = len(data) - sent
            return not self.unsent

    def disown(self, why: str) -> None:
        """Tell those who wait for an answer that they hear none; what still comes is settled."""
        with self._writing:
            owed, self.owed = self.owed, deque(each._replace(hear=nobody) for each in self.owed)
        for each in owed:
            each.hear(self.place, Vote(self.label, Answer.UNKNOWN, why=why))
            if each.asker is not None:
                each.asker.leave()

    def send(self, owed: PendingReply) -> bool:
        """Put a question on the wire without waiting; False if it cannot arrive whole."""
        with self._writing:
            if not self.put(owed):
                return False
            self.flush()
        return not self.fault

    def read(self) -> None:
        """Settle every answer that has arrived; never waits, and never reads for long."""
        if self.unsent and not self.looped:
            self.flush()
        try:
            for _ in range(READS):
                data = self._stream.recv(READ_SIZE)
                if not data:
                    self.close("connection closed by the node")
                self._take_in(data)
                if self.fault or (len(data) < READ_SIZE and not self._tls):
                    return  # TLS may hold back more, which poll would not tell
        except BUSY:
            return
        except hiredis.ProtocolError:
            self.close(resp.NOT_REDIS)
        except resp.Malformed as error:
            self.close(str(error))
        except OSError as error:
            self.close(f"connection lost: {error.strerror or error}")

    def _take_in(self, data: bytes) -> None:
        self._reader.feed(data)
        self._incomplete += len(data)
        now, gets = time.monotonic(), self._reader.gets
        while not self.fault and (answer := gets()) is not False:
            self._incomplete = 0
            self._heard = self.answered = now
            self._settle(answer)
        if self._incomplete > ANSWER:
            asked = _asked(self.owed[0]) if self.owed else 0
            if self._incomplete > ANSWER + ROOM * asked:
                self.close(resp.TOO_LONG)

    def _settle(self, answer: object) -> None:
        if not self.owed:
            self.close(resp.UNASKED)
            return
        owed = self.owed.popleft()
        self._backlog -= len(owed.packed)
        vote: Vote | None
        if isinstance(answer, hiredis.ReplyError):
            by_digest = owed.packed.split(b"\r\n", 3)[2] == b"EVALSHA"  # not in full already
            if str(answer).startswith("NOSCRIPT") and by_digest and self._ask_in_full(owed):
                return
            vote = Vote(self.label, Answer.UNKNOWN, why=complaint(answer))
        else:
            vote = answers.vote(self.label, owed.command, owed.nonce, answer, _asked(owed))
        if vote is None:
            self.close(answers.why_none(owed.nonce, answer))
            vote = Vote(self.label, Answer.UNKNOWN, why=self.fault)
        if vote.why is answers.EMPTIED:
            self.close(vote.why)
        if vote.answer is Answer.UNKNOWN:
            self._not_undone(owed)
        owed.hear(self.place, vote)

    def _ask_in_full(self, owed: PendingReply) -> bool:
        """Ask once more, with the script's text: the node has forgotten it (SCRIPT FLUSH).

        What undoes is asked again always. Anything else is not, when its asker has gone: a grant
        would come behind its undoing, or long after the lease is over. Then the node is given
        the script for the next one who asks.
        """
        text = scripts.TEXT[owed.command].encode()
        if owed.command not in UNDO and (owed.asker is None or owed.asker.gone):
            self._load(owed.command)
            return False
        words, _, _, _, _, rest = owed.packed.split(b"\r\n", 5)
        in_full = b"%b\r\n$4\r\nEVAL\r\n$%d\r\n%b\r\n%b" % (words, len(text), text, rest)
        asked = self.send(owed._replace(packed=in_full, since=time.monotonic()))
        return asked or bool(self.fault)  # closed: its asker was told

    def _load(self, command: Command) -> None:
        if command in self._loading:
            return
        self._loading.add(command)
        data = packed("SCRIPT", "LOAD", scripts.TEXT[command])
        loaded = partial(self._loaded, command)
        self.send(PendingReply(Command.LOAD, b"", loaded, time.monotonic(), data))

    def _loaded(self, command: Command, *_: object) -> None:
        self._loading.discard(command)

    def close(self, fault: str) -> None:
        """End the connection; whatever it still owes is lost."""
        self.fault = self.fault or fault
        while self.owed:
            owed = self.owed.popleft()
            self._not_undone(owed)
            owed.hear(self.place, Vote(self.label, Answer.UNKNOWN, why=self.fault))
        with self._using:
            if self.looped:  # the loop must forget the socket's number before it is closed
                with contextlib.suppress(OSError):
                    self.socket.shutdown(socket.SHUT_RDWR)
            else:
                self._connection.disconnect()

    def _not_undone(self, owed: PendingReply) -> None:
        if owed.command in UNDO and owed.asker is not None and self.undone is not None:
            self.undone(owed.asker)


def _asked(owed: PendingReply) -> int:
    """How many names, or tenancies, a question is about."""
    return 1 if owed.asker is None else owed.asker.asked

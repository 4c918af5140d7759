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
import weakref
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import hiredis

from . import admission, answers, scripts
from .complaints import complaint
from .protocol import UNDO, Answer, Ask, Command, Vote

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.connection import Connection, UnixDomainSocketConnection


READ_SIZE: Final = 65536
READS: Final = 64  # of that size at a time; poll tells when there is more
LONGEST: Final = 16 * 1024 * 1024  # bytes of one answer: no survey is as long
# Bytes that a silent node may be sent before it gets no more questions, and before it gets no
# more undoing either: what has been granted must still be undone, and takes fewer bytes.
BACKLOG: Final = 65536
UNDO_BACKLOG: Final = 2 * BACKLOG
LOOP_BACKLOG: Final = 256 * 1024 * 1024  # of all tasks of an event loop together
NO_EPOCH: Final = b"$0\r\n\r\n"  # an empty word, as the last of a grant: see Channel.send
GRANT: Final = Command.GRANT  # an enum's member costs five times a name
BUSY: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Owed(NamedTuple):
    """A question whose answer is outstanding, and who is told the vote, once.

    Attributes:
        hear: called with the node's place and the vote.
        since: ``time.monotonic`` when it was sent.
        packed: the question's bytes, as ``pack`` made them.
    """

    command: Command
    nonce: bytes
    hear: Callable[[int, Vote], object]
    since: float
    packed: bytes


class Channel:
    """An open connection to a node.

    Attributes:
        label, place: the node's, the latter in its group.
        facts: what the node said of itself when the connection was opened.
        client: the node's number for this connection; 0 if it would not tell.
        round_trip: seconds that took.
        opened: ``time.monotonic`` then.
        votes_from: ``time.monotonic`` from which the node may vote.
        fault: why the channel is of no more use; "" while it is.
        spoiled: an interruption may have put it out of step; only an undo may still use it.
        looped: an event loop has it, and sends later what the socket does not take at once.
        undone: told what was to be undone and not answered, when the channel is closed.
        unsent: bytes that are still to be sent.
    """

    def __init__(
        self,
        connection: Connection | UnixDomainSocketConnection,
        label: str,
        facts: admission.Facts,
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
        weakref.finalize(self, connection.disconnect).atexit = False
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
        self.opened = time.monotonic()
        self.guarded = guard_left > 0
        self.votes_from = self.opened + guard_left if guard_left > 0 else -math.inf
        self.owed: deque[Owed] = deque()
        self.fault = ""
        self.spoiled = False
        self.looped = False
        self.undone: Callable[[list[Owed]], object] | None = None
        self._tls = isinstance(self.socket, ssl.SSLSocket)
        self._reader = hiredis.Reader()
        self._unsent: list[bytes] = []
        self.unsent = 0
        self._backlog = 0  # bytes of questions without an answer
        self._heard = -math.inf  # time.monotonic of the last answer, or of the first question
        self._unasked = False  # whether nothing of what is owed has been sent yet
        self._incomplete = 0
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

    def put(self, owed: Owed) -> bool:
        """Note a question as asked, to be sent by ``flush``; False if there is no room for it."""
        packed, size = owed.packed, len(owed.packed)
        if owed.command is GRANT:
            packed = packed[: -len(NO_EPOCH)] + self._epoch
        room = LOOP_BACKLOG
        if not self.looped:
            room = UNDO_BACKLOG if owed.command in UNDO else BACKLOG
        with self._writing:
            if self.fault or self._backlog + size > room:
                return False
            self._backlog += size
            if not self.owed:
                self._unasked = True
            self.owed.append(owed)  # before sending: an answer must never find no question
            self._unsent.append(packed)
            self.unsent += len(packed)
        return True

    def flush(self) -> bool:
        """Send what the socket takes without waiting; whether that was all."""
        with self._writing:
            if self.fault or not self._unsent:
                return True
            data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
            try:
                sent = self.socket.send(data)
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
            each.hear(self.place, Vote(self.label, Answer.LOST, why=why))

    def send(self, owed: Owed) -> bool:
        """Put a question on the wire without waiting; False if it cannot have arrived whole."""
        with self._writing:
            if not self.put(owed):
                return False
            if not self.flush() and not self.looped:
                self.close("takes no more data")
        return not self.fault

    def read(self) -> None:
        """Settle every answer that has arrived; never waits, and never reads for long."""
        try:
            for _ in range(READS):
                data = self.socket.recv(READ_SIZE)
                if not data:
                    self.close("connection closed by the node")
                self._take_in(data)
                if self.fault or (len(data) < READ_SIZE and not self._tls):
                    return  # TLS may hold back more, which poll would not tell
        except BUSY:
            return
        except hiredis.ProtocolError:
            self.close("sent what is not the Redis protocol")
        except OSError as error:
            self.close(f"connection lost: {error.strerror or error}")

    def _take_in(self, data: bytes) -> None:
        self._reader.feed(data)
        self._incomplete += len(data)
        now = time.monotonic()
        while not self.fault and (answer := self._reader.gets()) is not False:
            self._incomplete = 0
            self._heard = now
            self._settle(answer)
        if self._incomplete > LONGEST:
            self.close("sent an answer without end")

    def _settle(self, answer: object) -> None:
        if not self.owed:
            self.close("sent an answer to nothing")
            return
        owed = self.owed.popleft()
        self._backlog -= len(owed.packed)
        vote: Vote | None
        if isinstance(answer, hiredis.ReplyError):
            if str(answer).startswith("NOSCRIPT") and self._ask_in_full(owed):
                return
            vote = Vote(self.label, Answer.LOST, why=complaint(answer))
        else:
            vote = answers.vote(self.label, owed.command, owed.nonce, answer)
        if vote is None:
            self.close("answered another question")
            vote = Vote(self.label, Answer.LOST, why=self.fault)
        if vote.why is answers.EMPTIED:
            self.close(vote.why)
        owed.hear(self.place, vote)

    def _ask_in_full(self, owed: Owed) -> bool:
        """Ask once more, with the script's text: the node has forgotten it (SCRIPT FLUSH).

        A grant that is being undone already is not: it would come behind its undoing.
        """
        if owed.command is GRANT and any(each.nonce == owed.nonce for each in self.owed):
            return False
        text = scripts.TEXT[owed.command].encode()
        words, _, _, _, _, rest = owed.packed.split(b"\r\n", 5)
        in_full = b"%b\r\n$4\r\nEVAL\r\n$%d\r\n%b\r\n%b" % (words, len(text), text, rest)
        asked = self.send(owed._replace(packed=in_full, since=time.monotonic()))
        return asked or bool(self.fault)  # closed: its asker was told

    def close(self, fault: str) -> None:
        """End the connection; whatever it still owes is lost."""
        self.fault = self.fault or fault
        undoing = [each for each in self.owed if each.command in UNDO and each.hear is not again]
        while self.owed:
            owed = self.owed.popleft()
            owed.hear(self.place, Vote(self.label, Answer.LOST, why=self.fault))
        if self.looped:  # the loop must forget the socket's number before it is closed
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
        else:
            self._connection.disconnect()
        if undoing and self.undone is not None:
            self.undone(undoing)


def again(place: int, vote: Vote) -> None:
    """Hear the vote on what was put once more; it is not put a third time."""


def nobody(place: int, vote: Vote) -> None:
    """Hear a vote that nobody waits for."""


def pack(ask: Ask, place: int) -> bytes:
    """The bytes of a question for the node at that place."""
    words = ["EVALSHA", scripts.DIGEST[ask.command], len(ask.keys), *ask.keys, ask.nonce, *ask.args]
    if ask.command is GRANT:
        words.append("")  # where each channel puts its node's epoch
    if ask.each is not None:
        words.append(ask.each[place])
    return packed(*words)


def packed(*words: str | int) -> bytes:
    """A command as it goes over the wire."""
    # Bytes only: hiredis (3.5) turns numbers into text by a call in which a signal handler may
    # raise, does not look, and crashes the process.
    encoded = tuple([word.encode() if isinstance(word, str) else b"%d" % word for word in words])
    whole: bytes = hiredis.pack_command(encoded)  # type: ignore[arg-type]
    return whole

"""One connection to one node: requests go out, replies come back in the same order.

redis-py opens it (TLS, AUTH, SELECT) and closes it; in between this module uses the socket, without
blocking, because a late reply must neither hold up a caller nor cost the connection. ``owed`` has
the requests without a reply: a caller that reads for a later one settles the earlier ones first.

A reply that does not echo its request's nonce means that the stream is out of step (an exception
from a signal handler can do that): it is no vote, and the connection is closed.

The first half of this module is the request on the wire: its bytes, its caller, and what is called
with the vote.
"""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import hiredis

from django_redlock.core.commands import EMPTIED
from django_redlock.core.protocol import UNDO, WITH_EPOCH, Answer, Command, Request, Vote
from django_redlock.interruption import SafeFinalizer, drain

from . import admission, faults, replies, scripts
from .faults import complaint

if TYPE_CHECKING:
    from asyncio import Future
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from redis.connection import Connection as RedisConnection
    from redis.connection import UnixDomainSocketConnection

    from django_redlock.core.reasons import Reason


NO_EPOCH: Final = b"$0\r\n\r\n"  # the empty last argument of a grant or heal: each connection's own


class Asker:
    """The caller of a request: whether votes still count, and how to send the request again.

    Attributes:
        ask: the request.
        packed: its bytes for every node; b"" where they differ.
        start: ``time.monotonic`` when it was sent.
        over: whether the caller has heard enough, or was interrupted.

    Args:
        waiting: tells whether the caller waits, who may be cancelled; None where it cannot be.
    """

    __slots__ = ("_waiting", "ask", "over", "packed", "start")

    def __init__(
        self,
        ask: Request,
        start: float,
        waiting: Future[Any] | None = None,
        *,
        packed: bytes | None = None,
    ) -> None:
        self.ask = ask
        if packed is None:
            packed = b"" if ask.each is not None else pack(ask, 0)
        self.packed = packed
        self.start = start
        self.over = False
        self._waiting = waiting

    def leave(self) -> None:
        """Note that no vote counts any more."""
        self.over, self._waiting = True, None  # a task's future would keep its loop

    @property
    def gone(self) -> bool:
        """Tell whether no vote counts any more."""
        return self.over or (self._waiting is not None and self._waiting.done())

    @property
    def until(self) -> float:
        """Return the ``time.monotonic`` from which the keys that this undo deletes have expired."""
        return self.start + self.ask.lasts

    def again(self, hear: Callable[[int, Vote], object], now: float) -> PendingReply:
        """Return an undo to be sent (again) now; a name that it leaves taken is free no later."""
        ask = self.ask.later(now - self.start)
        return PendingReply(ask.command, ask.nonce.encode(), hear, now, pack(ask, 0), self)


class Owed(Protocol):
    """What a connection keeps of a request until the reply comes; see ``PendingReply``."""

    @property
    def command(self) -> Command:
        """The script."""

    @property
    def nonce(self) -> bytes:
        """What the reply echoes."""

    @property
    def hear(self) -> Callable[[int, Vote], object]:
        """What is called with the node's place and the vote."""

    @property
    def since(self) -> float:
        """The ``time.monotonic`` when it was sent."""

    @property
    def packed(self) -> bytes:
        """Its bytes."""

    @property
    def asker(self) -> Asker | None:
        """The caller."""

    @property
    def said(self) -> object:
        """The earlier reply of another node; one that equals it is the same vote. (): none."""

    def hear_again(self, place: int) -> None:
        """Note that the node at this place replied what is in ``said``."""

    def vote_in(self, label: str, answer: object) -> Vote | None:
        """Return the vote in a reply of the node with this label; None: it is to something else."""

    def alone(self) -> PendingReply:
        """Return the request as a tuple, to be sent once more or to be heard by another."""


class PendingReply(NamedTuple):
    """A request that has no reply yet.

    Attributes:
        hear: called once, with the node's place and the vote.
        since: ``time.monotonic`` when it was sent.
        packed: the request's bytes, as ``pack`` made them.
        asker: the caller; None if the request is not one of the algorithm.
        said: nothing: each reply is looked at.
    """

    command: Command
    nonce: bytes
    hear: Callable[[int, Vote], object]
    since: float
    packed: bytes
    asker: Asker | None = None
    said: tuple[()] = ()

    def vote_in(self, label: str, answer: object) -> Vote | None:
        """Return the vote in a reply of the node with this label; None: it is to something else."""
        if self.asker is None:
            return replies.plain_vote(self.command, label, self.nonce, answer)
        return replies.vote(self.asker.ask, label, self.nonce, answer)

    def hear_again(self, place: int) -> None:
        """Never called: no reply equals ``said``."""

    @property
    def asked(self) -> int:
        """Return how many names, or leases, the request is about."""
        return 1 if self.asker is None else self.asker.ask.count

    def alone(self) -> PendingReply:
        """Return the request itself."""
        return self


def undoing_until(owed: Iterable[Owed]) -> float:
    """Return the ``time.monotonic`` until which the reply to an undo is of interest."""
    undoing = [each.asker for each in tuple(owed) if each.command in UNDO]
    return max((asker.until for asker in undoing if asker is not None), default=-math.inf)


def nobody(place: int, vote: Vote) -> None:
    """Ignore a vote."""


def pack(ask: Request, place: int) -> bytes:
    """Return the bytes of a request for the node at that place."""
    keys, argv = ask.wire()
    parts = ("EVALSHA", scripts.DIGEST[ask.command], str(len(keys)), *keys, ask.nonce, *argv)
    if ask.command in WITH_EPOCH:
        parts += ("",)  # where each connection puts its node's epoch
    if ask.each is not None:
        parts += (str(ask.each[place]),)
    # Texts only: hiredis (3.5) turns numbers into text by a call in which a signal handler may
    # raise, does not look, and crashes the process.
    whole: bytes = hiredis.pack_command(parts)  # type: ignore[arg-type]
    return whole


def packed(*parts: str | int) -> bytes:
    """Return a command as it goes over the wire."""
    whole: bytes = hiredis.pack_command(tuple(map(str, parts)))  # type: ignore[arg-type] # see pack
    return whole


def parts(every: Iterable[Owed]) -> list[bytes]:
    """Return the bytes of requests in the pieces between which each node's epoch belongs."""
    pieces: list[bytes] = []
    piece: list[bytes] = []
    for owed in every:
        if owed.command in WITH_EPOCH:
            piece.append(owed.packed[: -len(NO_EPOCH)])
            pieces.append(b"".join(piece))
            piece.clear()
        else:
            piece.append(owed.packed)
    pieces.append(b"".join(piece))
    return pieces


def by_digest(owed: Owed) -> bool:
    """Tell whether the request names its script by the digest, not by the text."""
    return owed.packed.split(b"\r\n", 3)[2] == b"EVALSHA"


def in_full(owed: Owed) -> PendingReply:
    """Return the request with the text of its script in place of the digest, to be sent now."""
    text = scripts.TEXT[owed.command].encode()
    count, _, _, _, _, rest = owed.packed.split(b"\r\n", 5)
    whole = b"%b\r\n$4\r\nEVAL\r\n$%d\r\n%b\r\n%b" % (count, len(text), text, rest)
    return owed.alone()._replace(packed=whole, since=time.monotonic())


def load(command: Command, hear: Callable[[int, Vote], object]) -> PendingReply:
    """Return the request that gives a node the script of ``command``, to be sent now."""
    data = packed("SCRIPT", "LOAD", scripts.TEXT[command])
    return PendingReply(Command.LOAD, b"", hear, time.monotonic(), data)


class OneAtATime:
    """Read and write a socket from any thread, one call at a time.

    OpenSSL allows no two calls on one connection at the same time: the connection looks closed
    afterwards, or worse. No other lock is taken inside this one.
    """

    def __init__(self, wrapped: socket.socket, lock: AbstractContextManager[object]) -> None:
        self._socket = wrapped
        self._lock = lock

    def recv(self, size: int) -> bytes:
        """Read what is there, without waiting for more."""
        with self._lock:
            return self._socket.recv(size)

    def send(self, data: bytes) -> int:
        """Write what the socket takes; return how many bytes."""
        with self._lock:
            return self._socket.send(data)


READ_SIZE: Final = 65536
READS: Final = 64  # of that size at a time; poll tells when there is more
# Bytes of requests without a reply, beyond which a connection takes no more, and beyond which it
# takes no undo either: that is kept, and sent later. Without any it takes a request of any size.
BACKLOG: Final = 65536
UNDO_BACKLOG: Final = 2 * BACKLOG
LOOP_BACKLOG: Final = 256 * 1024 * 1024  # of all tasks of an event loop together
UNSEEN: Final = 4  # node timeouts: a request and its undo take two of them, and then look
BUSY: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Connection:
    """An open connection to a node.

    Attributes:
        label, place, epoch: of the node: ``place`` is its index in the group, ``epoch`` packed.
        facts: what the node said of itself when the connection was opened.
        client: the node's number for this connection; 0 if it would not tell.
        opened, round_trip: ``time.monotonic`` then, and the seconds of one command.
        answered: ``time.monotonic`` of the last reply.
        heard, excused: ``time.monotonic`` from which silence counts, and of the request whose
            lateness was excused; see ``silence``.
        votes_from: ``time.monotonic`` from which the node may vote.
        owed: the requests without a reply, in the order in which they were sent.
        fault: why the connection cannot be used any more; None while it can.
        spoiled: ``time.monotonic`` of an interruption that may have put it out of step, so that
            only an undo may still use it; else 0.
        looped: whether an event loop has it, and sends later what the socket does not take at once.
        in_set: whether a ``ConnectionSet`` has it, which alone writes to it.
        undone: called with the asker of each undo that the node has not carried out.
        unsent: bytes that are still to be sent; reading sends them, too.
        backlog: bytes of requests without a reply.
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
        # In a cycle, as a loop that is closed without shutting down leaves one, the __del__ of
        # redis-py's connection may come after that of its socket.
        SafeFinalizer(self, connection.disconnect)
        # redis-py has no public name for the socket in all its supported versions.
        self.socket: socket.socket = connection._sock  # type: ignore[assignment] # noqa: SLF001
        self.socket.settimeout(0)
        self.fileno = self.socket.fileno()
        self.label, self.place = label, place
        self.epoch = b"$%d\r\n%b\r\n" % (len(epoch), epoch)
        self.facts, self.client, self.round_trip = facts, client, round_trip
        self.opened = self.answered = time.monotonic()
        self.heard, self.excused = -math.inf, math.nan
        self.guarded = guard_left > 0
        self.votes_from = self.opened + guard_left if guard_left > 0 else -math.inf
        self.owed: deque[Owed] = deque()
        self.fault: Reason | None = None
        self.spoiled, self.looped, self.in_set, self._sending = 0.0, False, False, False
        self.undone: Callable[[Asker], object] | None = None
        self.tls = isinstance(self.socket, ssl.SSLSocket)
        self._using = threading.RLock() if self.tls else contextlib.nullcontext()
        self._stream = OneAtATime(self.socket, self._using) if self.tls else self.socket
        self._reader = replies.Reader()
        self._unsent: list[bytes] = []
        self.unsent = self.backlog = self._incomplete = 0
        self._unasked = False  # whether nothing of what is in owed has been sent yet
        self._loading: set[Command] = set()
        self._writing = threading.RLock()  # re-entrant: a signal handler may lock, too

    def silent_for(self, now: float) -> float:
        """Return the seconds for which the node has owed a reply and sent none."""
        if self._unasked:
            return 0.0
        try:
            since = self.owed[0].since
        except IndexError:
            return 0.0
        return now - max(since, self.heard)

    def put(self, owed: Owed) -> bool:
        """Queue a request, to be sent by ``flush``; return False if there is no room for it."""
        packed, size = owed.packed, len(owed.packed)
        if owed.command in WITH_EPOCH:
            packed = packed[: -len(NO_EPOCH)] + self.epoch
        with self._writing:
            return self._note((owed,), packed, size)

    def send_all(self, owed: Sequence[Owed], parts: Sequence[bytes], size: int) -> bool:
        """Send these requests without waiting, or none of them; see ``pending.parts``."""
        with self._writing:
            if not self._note(owed, self.epoch.join(parts), size):
                return False
            self.flush()
        return True

    def _note(self, owed: Sequence[Owed], packed: bytes, size: int) -> bool:
        if self.fault or self.in_set or self._sending or not has_room(self, owed[0], size):
            return False
        more, more_bytes = (packed,), len(packed)
        # No call from here on: a signal handler may write, too, and all must leave in this order.
        self._unasked = self._unasked or not self.owed
        self.owed += owed
        self._unsent += more
        self.unsent, self.backlog = self.unsent + more_bytes, self.backlog + size
        return True

    def owes(self, nonce: bytes) -> bool:
        """Tell whether a request with this nonce has no reply yet."""
        return any(owed.nonce == nonce for owed in tuple(self.owed))

    def join_set(self) -> bool:
        """Let a ``ConnectionSet`` alone write; return False where something is still to be done."""
        with self._writing:
            busy = self.owed or self.unsent or self.fault or self.spoiled
            self.in_set = not (busy or self.guarded or self.tls)
        return self.in_set

    def note(self, owed: Owed) -> None:
        """Note a request that a ``ConnectionSet`` has sent, or was sending."""
        with self._writing:
            self.owed.append(owed)
            self.backlog, self.heard = self.backlog + len(owed.packed), self.answered

    def flush(self) -> bool:
        """Send what the socket takes without waiting; return whether that was all."""
        with self._writing:
            if self._sending or self.fault or not self._unsent:
                return not self._sending  # a signal handler's call, in the middle of another one
            self._sending = True
            try:
                return self._send_unsent()
            finally:
                self._sending = False

    def _send_unsent(self) -> bool:
        data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
        try:
            sent = self._stream.send(data)
        except BUSY:
            sent = 0
        except OSError as error:
            self._unsent, self.unsent = [], 0
            if not self.looped:  # else reading tells as well, and in the loop's own thread
                self.close(faults.lost(error))
            return True
        if sent and self._unasked:
            self._unasked, self.heard = False, time.monotonic()
        self._unsent, self.unsent = [data[sent:]] if sent < len(data) else [], len(data) - sent
        return not self.unsent

    def disown(self, why: Reason) -> None:
        """Give an unknown vote to each request without a reply; a late reply is not heard."""
        with self._writing:
            unheard = deque[Owed](each.alone()._replace(hear=nobody) for each in self.owed)
            owed, self.owed = self.owed, unheard
        for each in owed:
            each.hear(self.place, Vote(self.label, Answer.UNKNOWN, reason=why))
            if each.asker is not None:
                each.asker.leave()

    def send(self, owed: Owed) -> bool:
        """Send a request without waiting; return False if it cannot arrive whole."""
        with self._writing:
            taken = self.put(owed)
            self.flush()
        return taken and not self.fault

    def read(self) -> None:
        """Settle every reply that has arrived; never wait, and never read for long."""
        if self.unsent and not self.looped:
            self.flush()
        try:
            for _ in range(READS):
                data = self._stream.recv(READ_SIZE)
                self.take_in(data)
                if self.fault or (len(data) < READ_SIZE and not self.tls):
                    return  # TLS may hold back more, which poll would not tell
        except BUSY:
            return
        except OSError as error:
            self.close(faults.lost(error))

    def take_in(self, data: bytes) -> None:
        """Settle the replies in what was read; nothing is the end of the connection."""
        if not data:
            self.close(faults.ENDED_BY_NODE)
        try:
            self._reader.feed(data)
            self._incomplete += len(data)
            now, gets = time.monotonic(), self._reader.gets
            while not self.fault and (answer := gets()) is not False:
                self._incomplete = 0
                self.heard = self.answered = now
                if self.owed and answer == self.owed[0].said:  # as nearly always, of tasks
                    usual = self.owed.popleft()
                    self.backlog -= len(usual.packed)
                    usual.hear_again(self.place)
                else:
                    self._settle(answer)
        except hiredis.ProtocolError:
            self.close(replies.NOT_REDIS)
        except replies.Malformed as error:
            self.close(error.reason)
        if self._incomplete > replies.ANSWER:
            asked = self.owed[0].alone().asked if self.owed else 0
            if self._incomplete > replies.ANSWER + replies.ROOM * asked:
                self.close(replies.TOO_LONG)

    def _settle(self, answer: object) -> None:
        if not self.owed:
            self.close(replies.UNASKED)
            return
        owed = self.owed.popleft()
        self.backlog -= len(owed.packed)
        if not isinstance(answer, hiredis.ReplyError):
            vote = owed.vote_in(self.label, answer)
        elif str(answer).startswith("NOSCRIPT") and by_digest(owed) and self._send_in_full(owed):
            return
        else:
            vote = Vote(self.label, Answer.UNKNOWN, reason=complaint(answer))
        if vote is None:
            self.close(replies.why_none(owed.nonce, answer))
            vote = Vote(self.label, Answer.UNKNOWN, reason=self.fault)
        if vote.reason is EMPTIED:
            self.close(EMPTIED)
        if vote.answer is Answer.UNKNOWN:
            self._not_undone(owed)
        owed.hear(self.place, vote)

    def _send_in_full(self, owed: Owed) -> bool:
        """Send a request again, with the text of the script that the node forgot (SCRIPT FLUSH)."""
        # Not where nobody waits: a grant would come behind its undo. But an undo, always.
        if owed.command in UNDO or not (owed.asker is None or owed.asker.gone):
            return self.send(in_full(owed)) or bool(self.fault)  # closed: its caller was told
        if (command := owed.command) not in self._loading:
            self._loading.add(command)
            self.send(load(command, lambda *_: self._loading.discard(command)))
        return False

    def close(self, fault: Reason) -> None:
        """Close the connection; each request without a reply gets an unknown vote."""
        self.fault = self.fault or fault
        for owed in drain(self.owed.popleft):
            self._not_undone(owed)
            owed.hear(self.place, Vote(self.label, Answer.UNKNOWN, reason=self.fault))
        with self._using:
            if self.looped:  # the loop must forget the socket's number before it is closed
                with contextlib.suppress(OSError):
                    self.socket.shutdown(socket.SHUT_RDWR)
            else:
                self._connection.disconnect()

    def _not_undone(self, owed: Owed) -> None:
        if owed.command in UNDO and owed.asker is not None and self.undone is not None:
            self.undone(owed.asker)


def has_room(connection: Connection, owed: Owed, size: int) -> bool:
    """Tell whether a connection takes a request of so many bytes."""
    if not connection.backlog:
        return True
    undoing = owed.command in UNDO
    room = UNDO_BACKLOG if undoing else BACKLOG
    if connection.backlog + size <= (LOOP_BACKLOG if connection.looped else room):
        return True
    return undoing and connection.owes(owed.nonce)  # another connection would overtake the grant


def silence(connection: Connection, now: float, timeout: float) -> float:
    """Return the seconds for which the node has owed a reply; at most ``timeout``: it may be asked.

    A reply that is overdue by far, when somebody looks for the first time, says little about the
    node: if this process did not run (a virtual machine is moved, a container is frozen), the nodes
    beside it did not either, and need a moment to answer. So such a silence is counted anew, once
    for each request. A node that is really hung is silent again one node timeout later.

    Args:
        timeout: NODE_TIMEOUT, in seconds.
    """
    owed = connection.owed
    if not owed:  # as nearly always
        return 0.0
    silent = connection.silent_for(now)
    if silent > UNSEEN * timeout and connection.excused != owed[0].since:
        connection.excused, connection.heard = owed[0].since, now
        return 0.0
    return silent


def close_as_silent(connection: Connection) -> None:
    """Close the connection because a reply is overdue."""
    connection.close(faults.no_answer(connection.silent_for(time.monotonic())))

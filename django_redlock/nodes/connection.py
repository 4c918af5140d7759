"""One connection to one node: requests go out, replies come back in the same order.

redis-py opens it (TLS, AUTH, SELECT) and closes it; in between this module uses the socket, without
blocking, because a late reply must neither hold up a caller nor cost the connection. ``owed`` has
the requests without a reply: a caller that reads for a later one settles the earlier ones first.

A reply that does not echo its request's nonce means that the stream is out of step (an interruption
can do that): it is no vote, and the connection is closed.

The first half of this module is the request on the wire: its bytes, and who hears the vote.
"""

from __future__ import annotations

import contextlib
import math
import socket
import ssl
import time
from collections import deque
from typing import TYPE_CHECKING, Final

import hiredis

from django_redlock.core.commands import EMPTIED
from django_redlock.core.protocol import (
    CHANGING,
    UNDO,
    WITH_EPOCH,
    Answer,
    Command,
    Request,
    Vote,
)
from django_redlock.core.reasons import ReasonCode
from django_redlock.interruption import drain, when_forgotten

from . import admission, faults, replies, scripts
from .faults import complaint, turns_away

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from redis.connection import Connection as RedisConnection
    from redis.connection import UnixDomainSocketConnection

    from django_redlock.core.reasons import Reason


NO_EPOCH: Final = b"$0\r\n\r\n"  # an empty last argument, for which each connection has its epoch


class OnWire:
    """A request that was written to a node, or is about to be, and what its reply is for.

    ``Connection.owed`` keeps them in the order of the replies. ``exchange.Exchange`` is the request
    of one caller to several nodes.

    Attributes:
        command: the script, or the command that is none.
        nonce: bytes that the reply echoes.
        since: ``time.monotonic`` when the request was sent.
        packed: bytes of the request.
        usual: bytes of the reply that needs no parser; b"" as long as none is known.
        count: number of names, or leases, of which the reply may tell.
        until: of an undo, the ``time.monotonic`` from which the keys that it deletes have expired.
        gone: whether nobody waits for the vote.
    """

    command: Command
    nonce: bytes
    since: float
    packed: bytes
    usual = b""
    count = 1
    until = -math.inf
    gone = False

    def learn(self, data: bytes, pos: int) -> bytes:  # noqa: ARG002 - for a grant
        """Return the usual reply, if the one that begins there is the first that shows it."""
        return b""

    def hear(self, index: int, vote: Vote) -> None:
        """Take the vote of the node at this index."""

    def hear_usual(self, index: int) -> None:
        """Take the usual reply of the node at this index."""

    def cut(self, index: int, vote: Vote) -> None:
        """Take the vote of a node whose reply nobody hears: the connection has ended."""
        self.hear(index, vote)

    def strike(self, index: int) -> None:
        """Note that the node at this index has replied, to what nobody waits for any more."""

    def keep(self, index: int) -> None:
        """Have the node's next connection carry the undo that this one has not carried out."""

    def vote_in(self, label: str, reply: object) -> Vote | None:
        """Return the vote in a reply of the node with this label; None: it is to something else."""
        raise NotImplementedError


class PlainCommand(OnWire):
    """A command that is no script of the algorithm.

    Args:
        hear: called once, with the node's index and the vote.
    """

    def __init__(
        self, command: Command, nonce: bytes, packed: bytes, hear: Callable[[int, Vote], object]
    ) -> None:
        self.command, self.nonce, self.packed = command, nonce, packed
        self.since = time.monotonic()
        self.hear = hear  # type: ignore[method-assign,assignment] # it has no other behaviour

    def vote_in(self, label: str, reply: object) -> Vote | None:
        return replies.plain_vote(self.command, label, self.nonce, reply)


class SentAgain(OnWire):
    """A request that is sent to one node by other bytes, or later, than to the others.

    Args:
        mute: whether nobody is to hear the vote.
    """

    def __init__(self, first: OnWire, packed: bytes, since: float, *, mute: bool = False) -> None:
        self.command, self.nonce = first.command, first.nonce
        self.count, self.packed, self.since = first.count, packed, since
        self._first, self._mute = first, mute

    @property
    def until(self) -> float:  # type: ignore[override] # the first one may be undone meanwhile
        return self._first.until

    @property
    def gone(self) -> bool:  # type: ignore[override] # as long as the first one is
        return self._mute or self._first.gone

    def hear(self, index: int, vote: Vote) -> None:
        if not self._mute:
            self._first.hear(index, vote)
        else:
            self._first.strike(index)

    def cut(self, index: int, vote: Vote) -> None:
        if not self._mute:
            self._first.cut(index, vote)

    def strike(self, index: int) -> None:
        self._first.strike(index)

    def keep(self, index: int) -> None:
        self._first.keep(index)

    def vote_in(self, label: str, reply: object) -> Vote | None:
        return self._first.vote_in(label, reply)


def undoing_until(owed: Iterable[OnWire]) -> float:
    """Return the ``time.monotonic`` until which the reply to an undo is of interest."""
    return max([each.until for each in tuple(owed)], default=-math.inf)


def nobody(index: int, vote: Vote) -> None:
    """Ignore a vote."""


def pack(ask: Request, index: int) -> bytes:
    """Return the bytes of a request for the node at that index."""
    keys, argv = ask.wire()
    parts = ("EVALSHA", scripts.DIGEST[ask.command], str(len(keys)), *keys, ask.nonce, *argv)
    if ask.command in WITH_EPOCH:
        parts += ("",)  # where each connection puts its node's epoch
    if ask.each is not None:
        parts += (str(ask.each[index]),)
    # Texts only: hiredis (3.5) turns numbers into text by a call that an interruption may end, does
    # not look, and crashes the process.
    whole: bytes = hiredis.pack_command(parts)  # type: ignore[arg-type]
    return whole


def packed(*parts: str | int) -> bytes:
    """Return a command as it goes over the wire."""
    whole: bytes = hiredis.pack_command(tuple(map(str, parts)))  # type: ignore[arg-type] # see pack
    return whole


def parts(every: Iterable[OnWire]) -> list[bytes]:
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


def by_digest(owed: OnWire) -> bool:
    """Tell whether the request names its script by the digest, not by the text."""
    return owed.packed.split(b"\r\n", 3)[2] == b"EVALSHA"


def in_full(owed: OnWire) -> SentAgain:
    """Return the request with the text of its script in place of the digest, to be sent now."""
    text = scripts.TEXT[owed.command].encode()
    count, _, _, _, _, rest = owed.packed.split(b"\r\n", 5)
    whole = b"%b\r\n$4\r\nEVAL\r\n$%d\r\n%b\r\n%b" % (count, len(text), text, rest)
    return SentAgain(owed, whole, time.monotonic())


def load(command: Command, hear: Callable[[int, Vote], object]) -> PlainCommand:
    """Return the request that gives a node the script of ``command``."""
    data = packed("SCRIPT", "LOAD", scripts.TEXT[command])
    return PlainCommand(Command.LOAD, b"", data, hear)


READ_SIZE: Final = 65536
READS: Final = 64  # of that size at a time; poll tells when there is more
# Bytes of requests without a reply, beyond which a connection takes no more, and beyond which it
# takes no undo either: that is kept, and sent later. Without any it takes a request of any size.
BACKLOG: Final = 65536
UNDO_BACKLOG: Final = 2 * BACKLOG
LOOP_BACKLOG: Final = 256 * 1024 * 1024  # of all tasks of an event loop together
UNSEEN: Final = 4  # node timeouts: a request and its undo take two of them, and then look
LOADS_LONG: Final = 1.0  # seconds of LOADING, after which a connection is one to a wrong server
BUSY: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Connection:
    """An open connection to a node.

    Attributes:
        label, index: the node's ``host:port/db``, and its index in the group.
        epoch: packed argument that a grant must find there: the node's epoch and its history; ""
            of a node that may not vote yet, which no grant finds.
        facts: the node's account of itself when the connection was opened.
        client: the node's number for this connection; 0 if the node does not tell it.
        opened, round_trip: ``time.monotonic`` at the opening, and the seconds of one command.
        answered: ``time.monotonic`` of the last reply.
        heard, excused: ``time.monotonic`` from which silence counts, and of the request whose
            lateness was excused; see ``silence``.
        votes_from: ``time.monotonic`` from which the node may vote.
        owed: the requests without a reply, in the order in which they were sent.
        fault: why the connection cannot be used any more; None while it can.
        turned_away: whether the server said that it is not the one which is wanted, and ``Node``
            has not counted that as a failure yet.
        looped: whether an event loop has the connection, and sends later what the socket does not
            take at once.
        unsent: number of bytes that are still to be sent; reading sends them, too.
        backlog: number of bytes of the requests without a reply.
        incomplete: number of bytes of a reply that has not come as a whole.
    """

    def __init__(
        self,
        connection: RedisConnection | UnixDomainSocketConnection,
        label: str,
        facts: admission.ServerInfo,
        *,
        index: int,
        client: int,
        epoch: bytes,
        round_trip: float,
        guard_left: float,
    ) -> None:
        self._connection = connection  # keeps the socket open
        # In a cycle, as a loop that is closed without shutting down leaves one, the __del__ of
        # redis-py's connection may come after that of its socket.
        when_forgotten(self, connection.disconnect)
        # redis-py has no public name for the socket in all its supported versions.
        self.socket: socket.socket = connection._sock  # type: ignore[assignment] # noqa: SLF001
        self.socket.settimeout(0)
        self.fileno = self.socket.fileno()
        self.label, self.index = label, index
        self.epoch = b"$%d\r\n%b\r\n" % (len(epoch), epoch)
        self.facts, self.client, self.round_trip = facts, client, round_trip
        self.opened = self.answered = time.monotonic()
        self.heard, self.excused = -math.inf, math.nan
        self.guarded = guard_left > 0
        self.votes_from = self.opened + guard_left if guard_left > 0 else -math.inf
        self.owed: deque[OnWire] = deque()
        self.fault: Reason | None = None
        self.looped = self.turned_away = False
        self._loads_since = math.inf  # ``time.monotonic`` of the first LOADING
        self.tls = isinstance(self.socket, ssl.SSLSocket)
        self._reader = replies.reader()
        self._unsent: list[bytes] = []
        self.unsent = self.backlog = self.incomplete = 0
        self._unasked = False  # whether nothing of what is in owed has been sent yet
        self._loading: set[Command] = set()

    def silent_for(self, now: float) -> float:
        """Return the seconds for which the node has owed a reply and sent none."""
        if self._unasked and self.looped:  # it leaves at the end of the loop's tick
            return 0.0
        try:
            since = self.owed[0].since
        except IndexError:
            return 0.0
        return now - max(since, self.heard)

    def put(self, owed: OnWire) -> bool:
        """Queue a request, to be sent by ``flush``; return False if there is no room for it."""
        packed, size = owed.packed, len(owed.packed)
        if owed.command in WITH_EPOCH:
            packed = packed[: -len(NO_EPOCH)] + self.epoch
        return self._note((owed,), packed, size)

    def send_all(self, owed: Sequence[OnWire], pieces: Sequence[bytes], size: int) -> bool:
        """Send these requests without waiting, or none of them; see ``parts``."""
        if not self._note(owed, self.epoch.join(pieces), size):
            return False
        self.flush()
        return True

    def _note(self, owed: Sequence[OnWire], packed: bytes, size: int) -> bool:
        if self.fault:
            return False
        if self.backlog and not has_room(self, owed[0], size):
            return False
        self._unasked = self._unasked or not self.owed
        self.owed += owed
        self._unsent.append(packed)
        self.unsent, self.backlog = self.unsent + len(packed), self.backlog + size
        return True

    def owes(self, nonce: bytes) -> bool:
        """Tell whether a request with this nonce has no reply yet."""
        return any(owed.nonce == nonce for owed in tuple(self.owed))

    def flush(self) -> bool:
        """Send what the socket takes without waiting; return whether that was all."""
        if self.fault or not self._unsent:
            return True
        data = self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent)
        try:
            sent = self.socket.send(data)
            if sent and self._unasked:
                self._unasked, self.heard = False, time.monotonic()
            self._unsent = [data[sent:]] if sent < len(data) else []
            self.unsent = len(data) - sent
        except BUSY:
            self._unsent = [data]
        except OSError as error:
            self._unsent, self.unsent = [], 0
            if not self.looped:  # else reading tells as well, and in the loop's own thread
                self.close(faults.lost(error))
        except BaseException:  # how much has left is not known
            self._unsent, self.unsent = [], 0
            self.close(faults.INTERRUPTED)
            raise
        return not self.unsent

    def disown(self, why: Reason) -> None:
        """Give an unknown vote to each request without a reply; a late reply is not heard."""
        unheard = deque[OnWire](SentAgain(o, o.packed, o.since, mute=True) for o in self.owed)
        owed, self.owed = self.owed, unheard
        for each in owed:
            each.cut(self.index, Vote(self.label, Answer.UNKNOWN, reason=why))

    def send(self, owed: OnWire) -> bool:
        """Send a request without waiting; return False if it cannot arrive whole."""
        taken = self.put(owed)
        self.flush()
        return taken and not self.fault

    def read(self) -> None:
        """Settle every reply that has arrived; never wait, and never read for long."""
        if self.unsent and not self.looped:
            self.flush()
        try:
            for _ in range(READS):
                data = self.socket.recv(READ_SIZE)
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
        owed, pos, now = self.owed, 0, time.monotonic()
        while owed and not self.incomplete:
            # Nearly every reply is the usual one; comparing bytes costs less than parsing them.
            first = owed[0]
            usual = first.usual or first.learn(data, pos)
            if not usual or not data.startswith(usual, pos):
                break
            self.heard = self.answered = now
            pos += len(usual)
            self.backlog -= len(owed.popleft().packed)
            first.hear_usual(self.index)
        if pos < len(data):
            self._parse(data[pos:])

    def _parse(self, data: bytes) -> None:
        """Settle the replies in what was read, whatever they are."""
        self._reader.feed(data)
        self.incomplete += len(data)
        gets = self._reader.gets
        while not self.fault:
            try:
                answer = gets()
            except replies.UNREADABLE:
                self.close(replies.NOT_REDIS)
                return
            if answer is replies.MORE:
                break
            self.incomplete = 0
            self.heard = self.answered = time.monotonic()
            self._settle(answer)
        if self.incomplete > replies.ANSWER:
            asked = self.owed[0].count if self.owed else 0
            if self.incomplete > replies.most_bytes(asked):
                self.close(replies.TOO_LONG)

    def _settle(self, answer: object) -> None:
        if not self.owed:
            self.close(replies.UNASKED)
            return
        owed, away = self.owed.popleft(), False
        self.backlog -= len(owed.packed)
        if not isinstance(answer, hiredis.ReplyError):
            vote = owed.vote_in(self.label, answer)
        elif str(answer).startswith("NOSCRIPT") and by_digest(owed) and self._send_in_full(owed):
            return
        else:
            vote = Vote(self.label, Answer.UNKNOWN, reason=complaint(answer))
            away = owed.command in CHANGING and self._is_elsewhere(answer, vote.code)
        if vote is None:
            self.close(replies.why_none(owed.nonce, answer))
            vote = Vote(self.label, Answer.UNKNOWN, reason=self.fault)
        if vote.reason is EMPTIED:
            self.close(EMPTIED)
        if owed.command in UNDO and vote.answer is Answer.UNKNOWN:
            owed.keep(self.index)
        if away and vote.reason:  # the next connection looks the address up again
            self.fault, self.turned_away = vote.reason, True
            self.close(vote.reason)
        owed.hear(self.index, vote)

    def _is_elsewhere(self, error: hiredis.ReplyError, code: str) -> bool:
        """Return whether the server that is wanted must be looked for at the address again."""
        if code != ReasonCode.LOADING:
            return turns_away(error)
        now = time.monotonic()
        self._loads_since = min(self._loads_since, now)
        return now - self._loads_since >= LOADS_LONG

    def _send_in_full(self, owed: OnWire) -> bool:
        """Send a request again, with the text of the script that the node forgot (SCRIPT FLUSH)."""
        # Not where nobody waits: a grant would come behind its undo. But an undo, always.
        if owed.command in UNDO or not owed.gone:
            return self.send(in_full(owed)) or bool(self.fault)  # closed: its caller was told
        if (command := owed.command) not in self._loading:
            self._loading.add(command)
            self.send(load(command, lambda *_: self._loading.discard(command)))
        return False

    def close(self, fault: Reason) -> None:
        """Close the connection; each request without a reply gets an unknown vote."""
        self.fault = self.fault or fault
        for owed in drain(self.owed.popleft):
            if owed.command in UNDO:
                owed.keep(self.index)
            owed.cut(self.index, Vote(self.label, Answer.UNKNOWN, reason=self.fault))
        if self.looped:  # the loop must forget the socket's number before it is closed
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
        else:
            self._connection.disconnect()


def has_room(connection: Connection, owed: OnWire, size: int) -> bool:
    """Tell whether a connection that owes replies takes a request of so many bytes."""
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

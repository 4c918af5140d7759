"""A node that is well until it is asked a certain thing, and then answers it in an odd way."""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import NamedTuple, Self

import hiredis

GREETING = "GREETING"  # what is said before anything was asked
QUESTIONS = "EVALSHA", "BLPOP", "CLIENT UNBLOCK"
STEPS = (
    GREETING,
    "AUTH",
    "SELECT",
    "CLIENT SETINFO",
    "TIME",
    "INFO SERVER",
    "INFO REPLICATION",
    "SCRIPT LOAD",
    "EVAL",
    "CLIENT ID",
)


def bulk(text: bytes) -> bytes:
    """A string of the protocol."""
    return b"$%d\r\n%b\r\n" % (len(text), text)


INFO = {
    b"server": b"redis_version:7.2.0\r\nrun_id:%b\r\nuptime_in_seconds:100000\r\n",
    b"replication": b"role:master\r\nsecond_repl_offset:-1\r\n",
}
G, H = bulk(b"GRANTED"), bulk(b"HELD")
NONE = b"$-1\r\n"
NO_ITEMS = b"*0\r\n"
FAR = b":9223372036854775807\r\n"
# One row of a survey, but for its last item.
HELD_ROW = b"*1\r\n*7\r\n" + bulk(b"name") + bulk(b"lock") + bulk(b"0" * 16) + b":5\r\n"
HELD_ROW += bulk(b"5") + bulk(b"me")

# What is answered to whatever was asked.
RAW: dict[str, bytes] = {
    "html": b"\x00\xff<html>\r\n",
    "a web server": b"HTTP/1.1 400 Bad Request\r\nServer: x\r\n\r\n",
    "an empty line": b"\r\n",
    "no string": b"$-1\r\n",
    "a number": b":5\r\n",
    "a status": b"+OK\r\n",
    "a string of less than nothing": b"$-5\r\n",
    "fifty lists in lists": b"*1\r\n" * 50 + b":1\r\n",
    "no number": b":five\r\n",
    "true": b"#t\r\n",
    "false": b"#f\r\n",  # what hiredis returns of it, it also returns of half a reply
    "a map": b"%1\r\n+a\r\n+b\r\n",
    "a map by a list": b"%1\r\n*1\r\n:1\r\n:2\r\n",
    "somebody else's": b"*3\r\n" + bulk(b"0" * 32) + G + bulk(b"5"),
}
ERRORS: dict[str, bytes] = {
    "an error": b"-ERR boom\r\n",
    "an error that is no text": b"-ERR \xff\xfe\x00boom\r\n",
    "an error without a word": b"-\r\n",
    "a redirection": b"-MOVED 5 1.2.3.4:5\r\n",
    "a redirection to nowhere": b"-MOVED\r\n",
    "a forgotten script, again and again": b"-NOSCRIPT No matching script.\r\n",
}
# What follows the nonce in an answer to whatever script was called.
ECHOED: dict[str, tuple[bytes, ...]] = {
    "nothing": (),
    "an error inside": (b"-ERR x\r\n",),
    "granted without a number": (G,),
    "granted nan": (G, bulk(b"nan")),
    "granted no text": (G, bulk(b"\xff\xfe")),
    "granted a list": (G, b"*0\r\n"),
    "granted none": (G, NONE),
    "granted an error": (G, b"-ERR x\r\n"),
    "granted 0": (G, bulk(b"0")),
    "granted -5": (G, bulk(b"-5")),
    "granted more than is counted to": (G, bulk(b"9223372036854775808")),
    "granted 5,000 digits": (G, bulk(b"9" * 5000)),
    "granted and more": (G, bulk(b"5"), b":1\r\n"),
    "held by nobody": (H,),
    "held by other types": (H, bulk(b"a"), b":1\r\n", b":1\r\n", b":1\r\n"),
    "held by none": (H, NONE, NONE, NONE, NONE),
    "held: the name 77": (H, b":100\r\n", bulk(b"l"), bulk(b"0" * 16), b":77\r\n"),
    "held: the name -9": (H, b":100\r\n", bulk(b"l"), bulk(b"0" * 16), b":-9\r\n"),
    "held by no text": (H, b":100\r\n", bulk(b"l"), bulk(b"\xff"), b":0\r\n"),
    "held for less than nothing": (H, b":-100\r\n", bulk(b"l"), bulk(b"0" * 16), b":0\r\n"),
    "held: a label of 2 MB": (H, b":1\r\n", bulk(b"l" * 2_000_000), bulk(b"0" * 16), b":0\r\n"),
    "gone for another type": (bulk(b"GONE"), NO_ITEMS),
    "gone for two reasons": (bulk(b"GONE"), bulk(b"x"), bulk(b"y")),
    "resting for a number": (bulk(b"RESTING"), b":1\r\n", b":1\r\n"),
    "resting for two reasons": (bulk(b"RESTING"), b":1\r\n", bulk(b"x"), bulk(b"y")),
    "gone for 99 who wait": (bulk(b"GONE"), b":99\r\n"),
    "empty and more": (bulk(b"EMPTY"), b":1\r\n"),
    "kept, not what is free": (bulk(b"KEPT"), b"*1\r\n:1\r\n"),
    "kept as a number": (bulk(b"KEPT"), b":1\r\n", NO_ITEMS),
    "kept none": (bulk(b"KEPT"), NO_ITEMS, NO_ITEMS),
    "kept three of one": (bulk(b"KEPT"), b"*3\r\n:1\r\n:1\r\n:1\r\n", NO_ITEMS),
    "kept as a word": (bulk(b"KEPT"), b"*1\r\n+a\r\n", NO_ITEMS),
    "kept five times": (bulk(b"KEPT"), b"*1\r\n:5\r\n", NO_ITEMS),
    "free as a number": (bulk(b"KEPT"), b"*1\r\n:0\r\n", b":0\r\n"),
    "free and kept": (bulk(b"KEPT"), b"*1\r\n:1\r\n", b"*1\r\n:0\r\n"),
    "free twice": (bulk(b"KEPT"), b"*1\r\n:0\r\n", b"*2\r\n:0\r\n:0\r\n"),
    "another is free": (bulk(b"KEPT"), b"*1\r\n:0\r\n", b"*1\r\n:1\r\n"),
    "free below none": (bulk(b"KEPT"), b"*1\r\n:0\r\n", b"*1\r\n:-1\r\n"),
    "a word is free": (bulk(b"KEPT"), b"*1\r\n:0\r\n", b"*1\r\n+a\r\n"),
    "healed a word": (bulk(b"HEALED"), bulk(b"x")),
    "healed 99 names": (bulk(b"HEALED"), b":99\r\n"),
    "freed without a number": (bulk(b"FREED"),),
    "freed a word": (bulk(b"FREED"), bulk(b"x")),
    "freed for 99 who wait": (bulk(b"FREED"), FAR),
    "looked at none": (bulk(b"LOOKED"), NONE),
    "looked at another type": (bulk(b"LOOKED"), bulk(b"x")),
    "claimed a number": (bulk(b"CLAIMED"), b":5\r\n"),
    "claimed none": (bulk(b"CLAIMED"), NONE),
    "resting for less than nothing": (bulk(b"RESTING"), b":-1\r\n"),
    "returned a word": (bulk(b"RETURNED"), bulk(b"x")),
    "raised a word": (bulk(b"RAISED"), bulk(b"x")),
    "found nothing to speak of": (bulk(b"FOUND"),),
    "found a word": (bulk(b"FOUND"), bulk(b"x"), b":1\r\n"),
    "found a word as a row": (bulk(b"FOUND"), b"*1\r\n" + bulk(b"x"), b":1\r\n"),
    "found a row of six": (bulk(b"FOUND"), b"*1\r\n*6\r\n" + NONE * 6, b":1\r\n"),
    "found a row of none": (bulk(b"FOUND"), b"*1\r\n*7\r\n" + NONE * 7, b":1\r\n"),
    "found a lock that 2 wait for": (bulk(b"FOUND"), HELD_ROW + b":2\r\n", b":1\r\n"),
    "found a page before the first": (bulk(b"FOUND"), b"*0\r\n", b":-1\r\n"),
}


def _endless(beginning: bytes, more: bytes, ended: threading.Event) -> Iterator[bytes]:
    yield beginning
    while not ended.is_set():
        yield more


# What goes on without end, or ends early.
STREAMS: dict[str, Callable[[bytes, threading.Event], Iterable[bytes | None]]] = {
    "the end": lambda nonce, ended: [None],
    "half of an answer and the end": lambda nonce, ended: [b"*3\r\n" + bulk(nonce), None],
    "half of an answer": lambda nonce, ended: [b"*3\r\n$32\r\nabc"],
    "nothing at all": lambda nonce, ended: [],
    "a string without end": lambda nonce, ended: _endless(b"$2000000000\r\n", b"x" * 65536, ended),
    "strings without end": lambda nonce, ended: _endless(b"*90000\r\n", bulk(b"x" * 999), ended),
}


class Oddity(NamedTuple):
    """An odd answer.

    Attributes:
        name: in words.
        say: what is sent, given the nonce of the question; None is the end of the connection.
        ends: whether the client must end the connection, and can tell so at once.
    """

    name: str
    say: Callable[[bytes, threading.Event], Iterable[bytes | None]]
    ends: bool


def _raw(data: bytes) -> Callable[[bytes, threading.Event], Iterable[bytes]]:
    return lambda nonce, ended: [data]


def _echoed(items: tuple[bytes, ...]) -> Callable[[bytes, threading.Event], Iterable[bytes]]:
    data = b"".join(items)
    return lambda nonce, ended: [b"*%d\r\n%b%b" % (1 + len(items), bulk(nonce), data)]


QUIET = "nothing at all", "half of an answer"
UNECHOED: tuple[Oddity, ...] = (
    *(Oddity(name, _raw(data), ends=True) for name, data in RAW.items()),
    *(Oddity(name, _raw(data), ends=False) for name, data in ERRORS.items()),
    *(Oddity(name, say, ends=name not in QUIET) for name, say in STREAMS.items()),
)
ODDITIES: tuple[Oddity, ...] = (
    *UNECHOED,
    *(Oddity(name, _echoed(items), ends=True) for name, items in ECHOED.items()),
)


def nonce_of(words: list[bytes]) -> bytes:
    """What the answer to a command must echo."""
    if words[0] in (b"EVALSHA", b"EVAL"):
        return words[3 + int(words[2])]
    return words[1] if words[0] == b"BLPOP" else b""


class OddNode:
    """A node on 127.0.0.1 whose ``step`` is odd; "" is every question after the handshake.

    Attributes:
        said: how often it said the odd thing.
        open: how many connections it has.
    """

    def __init__(self, oddity: Oddity, step: str = "") -> None:
        self.oddity = oddity
        self.step = step
        self.said = self.open = 0
        self._run_id = hashlib.sha1(str(id(self)).encode(), usedforsecurity=False).hexdigest()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._connections: list[socket.socket] = []

    @property
    def url(self) -> str:
        """Its address, with a login and a database."""
        return f"redis://:{self._run_id}@127.0.0.1:{self._listener.getsockname()[1]}/1"

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        for each in (self._listener, *self._connections):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(30)
        self._listener.close()

    def speak(self, data: bytes) -> None:
        """Send this over all connections, unasked."""
        for each in self._connections:
            each.sendall(data)

    def reset(self) -> None:
        """End all connections, as a machine does that knows nothing of them."""
        for each in self._connections:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            each.shutdown(socket.SHUT_RD)  # wakes the thread that serves it, which closes it

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            if self._ended.is_set():  # whoever ends it may not have seen this one
                connection.close()
                return
            with self._lock:
                self.open += 1
            self._threads.append(threading.Thread(target=self._serve, args=[connection]))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError, hiredis.ProtocolError):
            # As every node does: else Nagle and late acknowledgements cost 40 ms an answer.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # So that a client that writes for ever notices that nobody reads.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 1, 0))
            if self.step == GREETING:
                self._say(connection, b"")
            reader, known = hiredis.Reader(), False
            while data := connection.recv(65536):
                reader.feed(data)
                while (words := reader.gets()) is not False:
                    known = known or self._run_id.encode() in words
                    if not known:  # a client of a node that had this port before
                        raise ConnectionError
                    if self._is_odd(words):
                        self._say(connection, nonce_of(words))
                    else:
                        connection.sendall(self._answer(words))
        with self._lock:
            self.open -= 1

    def _is_odd(self, words: list[bytes]) -> bool:
        name = words[0].decode().upper()
        full = f"{name} {words[1].decode(errors='replace').upper()}" if len(words) > 1 else name
        if self.step:
            return self.step in (name, full)
        # A node that has forgotten a script has forgotten its text, too.
        again = name == "EVAL" and b"ADMITTED" not in words[1]
        return again or name in QUESTIONS or full in QUESTIONS

    def _say(self, connection: socket.socket, nonce: bytes) -> None:
        with self._lock:
            self.said += 1
        for data in self.oddity.say(nonce, self._ended):
            if data is None:
                raise ConnectionError
            connection.sendall(data)

    def _answer(self, words: list[bytes]) -> bytes:
        name = words[0].upper()
        if name == b"INFO":
            info = INFO.get(words[1], b"")
            return bulk(info % self._run_id.encode() if b"%b" in info else info)
        if name == b"TIME":
            seconds, nanoseconds = divmod(time.time_ns(), 10**9)
            return b"*2\r\n" + bulk(b"%d" % seconds) + bulk(b"%d" % (nanoseconds // 1000))
        if name == b"SCRIPT":
            return bulk(hashlib.sha1(words[2], usedforsecurity=False).hexdigest().encode())
        if name == b"EVAL" and b"ADMITTED" in words[1]:
            return b"*4\r\n" + bulk(words[4]) + bulk(b"ADMITTED") + b":0\r\n" + bulk(b"epoch")
        if name == b"CLIENT":
            return b":5\r\n" if words[1].upper() == b"ID" else b"+OK\r\n"
        return b"+OK\r\n"

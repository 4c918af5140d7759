"""Virtual time, and nodes that reply as a schedule says, for a process of its own.

``install`` comes before the package is imported. From then on ``time.monotonic`` stands still, and
goes on where a caller waits: in ``select.poll().poll``, and in the selector of an event loop. There
the world delivers what is due next, one moment after the other. So the outcome is the schedule's,
whatever the load, and a timeout costs no time.

Background threads of the package run where the schedule lets them, one at a time; a thread that
connects has ended when its start returns. The nodes listen on Unix sockets: what one end has
written, the other end can read at once.
"""

from __future__ import annotations

import _thread
import asyncio
import hashlib
import heapq
import itertools
import math
import select
import selectors
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

import hiredis

from tests.nodes.odd_node import INFO, bulk

HANGS = 60.0  # seconds of real time
_real_start, _real_poll, _real_sleep = _thread.start_new_thread, select.poll, time.sleep


class Interruption(BaseException):
    """What a signal handler raises in a caller."""


class Parked(NamedTuple):
    """A background thread that sleeps or polls.

    Attributes:
        wake: when it goes on.
        order: of its start.
        ready: tells whether it goes on earlier.
        resume: set when it goes on.
    """

    wake: float
    order: int
    ready: Callable[[], object]
    resume: threading.Event


class World:
    """The time, the caller that waits, and the background threads.

    Attributes:
        now: the virtual ``time.monotonic``.
        interrupt_at: when the caller is interrupted, if it waits then.
        nodes: what replies, or None.
    """

    def __init__(self) -> None:
        self.now = 1000.0
        self.interrupt_at = math.inf
        self.nodes: Nodes | None = None
        self.own = threading.local()
        self._changed = threading.Condition()
        self._running = 0
        self._parked: list[Parked] = []
        self._order = itertools.count()

    def wait(self, ready: Callable[[], Any], seconds: float | None) -> Any:
        """Return what ``ready`` returns as soon as that is something; let time pass meanwhile."""
        end = math.inf if seconds is None else self.now + max(seconds, 1e-6)
        while True:
            self._pump()
            if found := ready():
                return found
            when = min(self._due(), self.interrupt_at)
            if when > end:
                self.now = end
                return ready()
            assert when < math.inf, "nobody will ever wake the caller"
            self.now = max(self.now, when)
            if self.interrupt_at <= self.now:
                self.interrupt_at = math.inf
                raise Interruption
            self._deliver()

    def background(self, seconds: float) -> None:
        """Let so much time pass, in which the background threads run."""
        end = self.now + seconds
        while True:
            self._pump()
            due = min(
                ((self.now if each.ready() else each.wake, each.order) for each in self._parked),
                default=(math.inf, 0),
            )
            if min(due[0], self._due()) > end:
                break
            self.now = max(self.now, min(due[0], self._due()))
            if due[0] > self.now:
                self._deliver()
            else:
                self._resume(due[1])
        self.now = end

    def _resume(self, order: int) -> None:
        with self._changed:
            (one,) = [each for each in self._parked if each.order == order]
            self._parked.remove(one)
            self._running += 1
        one.resume.set()

    def park(self, wake: float, ready: Callable[[], object] = bool) -> None:
        """Have this background thread go on at that time, or when it is ready."""
        me = Parked(wake, self.own.order, ready, threading.Event())
        with self._changed:
            self._parked.append(me)
            self._running -= 1
            self._changed.notify_all()
        me.resume.wait()

    def start(self, function: Callable[..., object], args: tuple[Any, ...]) -> int:
        """Start a thread of the package; the first argument is the kind of its jobs."""
        done, order = threading.Event(), next(self._order)
        connects = args[0] == "open"
        with self._changed:
            self._running += not connects

        def run() -> None:
            self.own.order = order if not connects else None
            if not connects:
                self.park(self.now)
            function(*args)
            done.set()
            with self._changed:
                self._running -= not connects
                self._changed.notify_all()

        ident = _real_start(run, ())
        assert not connects or done.wait(HANGS)
        return ident

    @property
    def role(self) -> str:
        """What this thread is: the caller, one that connects, or one of the background."""
        order = getattr(self.own, "order", "")
        return "caller" if order == "" else "connects" if order is None else "background"

    def _pump(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._running == 0, HANGS)
        if self.nodes is not None:
            self.nodes.pump()

    def _due(self) -> float:
        return self.nodes.due() if self.nodes is not None else math.inf

    def _deliver(self) -> None:
        assert self.nodes is not None
        self.nodes.deliver()


WORLD = World()


class Poll:
    """``select.poll`` in virtual time."""

    def __init__(self) -> None:
        self._poll = _real_poll()
        self.register, self.unregister = self._poll.register, self._poll.unregister
        self.modify = self._poll.modify

    def poll(self, timeout: float | None = None) -> list[tuple[int, int]]:
        """Wait for one of the sockets."""
        role = WORLD.role
        if timeout == 0 or role == "connects":
            return self._poll.poll(timeout)
        seconds = None if timeout is None or timeout < 0 else timeout / 1000
        if role == "background":
            WORLD.park(math.inf if seconds is None else WORLD.now + seconds, self._ready)
            return self._ready()
        found: list[tuple[int, int]] = WORLD.wait(self._ready, seconds)
        return found

    def _ready(self) -> list[tuple[int, int]]:
        return self._poll.poll(0)


class Selector(selectors.EpollSelector):
    """The selector of an event loop, in virtual time."""

    def select(self, timeout: float | None = None) -> Any:
        """Wait for one of the sockets."""
        ready = super().select
        if timeout is not None and timeout <= 0:
            return ready(0)
        return WORLD.wait(lambda: ready(0), timeout)


def new_loop() -> asyncio.AbstractEventLoop:
    """An event loop in virtual time."""
    return asyncio.SelectorEventLoop(Selector())


def _sleep(seconds: float) -> None:
    if WORLD.role == "background":
        WORLD.park(WORLD.now + seconds)
    else:
        _real_sleep(seconds)


def install() -> None:
    """Replace the time of this process."""
    time.monotonic = lambda: WORLD.now
    time.sleep = _sleep  # type: ignore[assignment] # seconds are numbers here
    select.poll = Poll  # type: ignore[assignment,misc] # it is a function
    _thread.start_new_thread = WORLD.start  # type: ignore[assignment] # of which one form is used
    from django_redlock.nodes.background import WorkerThreads

    WorkerThreads.pause = lambda self, seconds: _sleep(seconds)  # type: ignore[method-assign]


# -- nodes -----------------------------------------------------------------------------------------


class Fate(NamedTuple):
    """What becomes of a request.

    Attributes:
        delay: seconds until the node carries it out.
        done: whether it does.
        reply: the bytes it sends then; None closes the connection.
        rest: what it sends ``pause`` seconds later.
    """

    delay: float
    done: bool
    reply: bytes | None
    pause: float = 0.0
    rest: bytes | None = b""


class Received(NamedTuple):
    """A request that a node has received; ``again``: how often it had come before."""

    node: int
    command: str
    nonce: str
    again: int
    words: tuple[bytes, ...]


TAKES: Final = frozenset({"grant", "mark", "heal"})
TELLS: Final = frozenset({"look", "extend", "raise"})


class Nodes:
    """Nodes that reply as a schedule says.

    Args:
        folder: for their sockets.
        commands: by the digest of the script.
        fate: tells what becomes of a request.

    Attributes:
        received: all requests.
        has: the nonces that each node has. A request that takes back what came before it takes it
            back only if it was carried out before: behind it on its connection, or in time.
    """

    def __init__(
        self,
        count: int,
        folder: str,
        commands: dict[str, str],
        fate: Callable[[Received], Fate],
    ) -> None:
        self.commands, self.fate = commands, fate
        self.received: list[Received] = []
        self.has: list[set[str]] = [set() for _ in range(count)]
        self.seen: Counter[tuple[int, str, str]] = Counter()
        self._due: list[tuple[float, int, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._lock = threading.RLock()
        self._epoll = select.epoll()
        self._ends: dict[int, End] = {}
        self._listeners: dict[int, tuple[int, socket.socket]] = {}
        self.urls = [f"unix://{folder}/{node}" for node in range(count)]
        for node in range(count):
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(f"{folder}/{node}")
            listener.listen(100)
            self._listeners[listener.fileno()] = node, listener
            self._epoll.register(listener.fileno(), select.EPOLLIN)
        self._closed = False
        self._greeter = threading.Thread(target=self._greet)
        self._greeter.start()

    def _greet(self) -> None:
        """Answer handshakes while everybody else waits for that."""
        while not self._closed:
            self._epoll.poll(0.02)
            self.pump()

    def pump(self) -> None:
        """Take in what was written."""
        with self._lock:
            while not self._closed and (ready := self._epoll.poll(0)):
                for fileno, _ in ready:
                    if fileno in self._listeners:
                        node, listener = self._listeners[fileno]
                        end = End(self, node, listener.accept()[0])
                        self._ends[end.socket.fileno()] = end
                        self._epoll.register(end.socket.fileno(), select.EPOLLIN)
                    elif not self._ends[fileno].take_in():
                        self._epoll.unregister(fileno)
                        self._ends.pop(fileno).socket.close()

    def at(self, when: float, node: int, action: Callable[[], object]) -> None:
        """Do this at that time; at the same time one node after the other."""
        with self._lock:
            heapq.heappush(self._due, (when, node, next(self._order), action))

    def due(self) -> float:
        """When something is to be done next."""
        return self._due[0][0] if self._due else math.inf

    def deliver(self) -> None:
        """Do what is due."""
        with self._lock:
            while self._due and self._due[0][0] <= WORLD.now:
                heapq.heappop(self._due)[-1]()

    def close(self) -> None:
        """End all connections."""
        self._closed = True
        self._greeter.join(HANGS)
        for _, listener in self._listeners.values():
            listener.close()
        for end in self._ends.values():
            end.socket.close()
        self._epoll.close()


class End:
    """A node's end of a connection; it carries out one request after the other."""

    def __init__(self, nodes: Nodes, node: int, own: socket.socket) -> None:
        self._nodes, self._node, self.socket = nodes, node, own
        self._reader = hiredis.Reader()
        self._queue: list[tuple[Received, Fate]] = []
        self._open = True

    def take_in(self) -> bool:
        """Read what was written; return whether there may be more."""
        try:
            data = self.socket.recv(1 << 20, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        self._reader.feed(data)
        while (words := self._reader.gets()) is not False:
            name = words[0].upper()
            if name == b"EVALSHA" or (name == b"EVAL" and b"ADMITTED" not in words[1]):
                self._ask(name, words)
            else:
                self._send(self._welcome(name, words))
        return bool(data)

    def _welcome(self, name: bytes, words: Sequence[bytes]) -> bytes:
        if name == b"INFO":
            info = INFO[words[1]]
            return bulk(info % (b"%040x" % self._node) if b"%b" in info else info)
        if name == b"TIME":
            return b"*2\r\n" + bulk(b"%d" % time.time()) + bulk(b"0")
        if name == b"SCRIPT":
            return bulk(hashlib.sha1(words[2], usedforsecurity=False).hexdigest().encode())
        if name == b"EVAL":
            return b"*4\r\n" + bulk(words[4]) + bulk(b"ADMITTED") + b":0\r\n" + bulk(b"epoch")
        return b":5\r\n" if words[:2] == [b"CLIENT", b"ID"] else b"+OK\r\n"

    def _ask(self, name: bytes, words: list[bytes]) -> None:
        digest = words[1].decode()
        if name == b"EVAL":
            digest = hashlib.sha1(words[1], usedforsecurity=False).hexdigest()
        command, nonce = self._nodes.commands[digest], words[3 + int(words[2])].decode()
        key = self._node, command, nonce
        request = Received(*key, self._nodes.seen[key], (name, *words[2:]))
        self._nodes.seen[key] += 1
        self._nodes.received.append(request)
        self._queue.append((request, self._nodes.fate(request)))
        if len(self._queue) == 1:
            self._begin()

    def _begin(self) -> None:
        self._nodes.at(WORLD.now + self._queue[0][1].delay, self._node, self._carry_out)

    def _carry_out(self) -> None:
        request, fate = self._queue[0]
        if fate.done and request.command in TAKES:
            self._nodes.has[self._node].add(request.nonce)
        elif fate.done and request.command not in TELLS:
            self._nodes.has[self._node].discard(request.nonce)
        self._send(fate.reply)
        if fate.pause:
            self._nodes.at(WORLD.now + fate.pause, self._node, self._end)
        else:
            self._end()

    def _end(self) -> None:
        self._send(self._queue.pop(0)[1].rest)
        if self._queue:
            self._begin()

    def _send(self, data: bytes | None) -> None:
        if data is None:
            self._open = False
            with suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)
        elif self._open:
            with suppress(OSError):
                self.socket.sendall(data)

"""Kill nodes and bring them back while the site is open: by the clock, and for visitors.

Both command the same nodes. So nothing happens by the clock for REST seconds after a visitor has
pressed a button, or LEFT seconds if a node is down or hangs then. After that all nodes are brought
back, and the clock begins anew.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import cycle
from multiprocessing.connection import Listener
from pathlib import Path
from typing import NamedTuple

from django_redlock.testing import EmbeddedNodes

from .endings import tell

REST = 20.0  # seconds
LEFT = 180.0  # seconds; enough to order, and to read what the pages say


def kill(nodes: EmbeddedNodes) -> str:
    for index, node in enumerate(nodes):
        if node.is_running and not node.is_paused:
            nodes.kill(index)
            return f"Node {index + 1} was killed (SIGKILL)."
    return "No node is left that could be killed."


def hang(nodes: EmbeddedNodes) -> str:
    for index, node in enumerate(nodes):
        if node.is_running and not node.is_paused:
            nodes.pause(index)
            return f"Node {index + 1} hangs (SIGSTOP): it keeps its connections, and is silent."
    return "No node is left that could hang."


def bring_back(nodes: EmbeddedNodes) -> str:
    for index, node in enumerate(nodes):
        if not node.is_running:
            nodes.restart(index)
            return f"Node {index + 1} is back, empty: it waits before it votes."
        if node.is_paused:
            nodes.resume(index)
            return f"Node {index + 1} hung, and goes on."
    return "All nodes run."


class Trouble(NamedTuple):
    """What happens by the clock: after how many seconds, and what the demo then does, in words."""

    after: float
    words: str
    act: Callable[[EmbeddedNodes], str]


TROUBLES = (
    Trouble(15, "kills a node", kill),
    Trouble(15, "brings it back", bring_back),
    Trouble(20, "lets one hang", hang),
    Trouble(10, "lets it go on", bring_back),
)
BUTTONS = {"kill": kill, "hang": hang, "bring-back": bring_back}


class Timetable:
    """The troubles by the clock, and those that visitors make."""

    def __init__(self, nodes: EmbeddedNodes) -> None:
        self._nodes = nodes
        self._commands = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._visited = False
        self._troubles = cycle(TROUBLES)
        self._next = next(self._troubles)
        self._due = time.monotonic() + self._next.after

    def look(self) -> None:
        """Let happen what is due."""
        with self._commands:
            if time.monotonic() < self._due:
                return
            if self._visited:
                while self._ailing():
                    tell(bring_back(self._nodes))
                self._begin()
                return
            tell(self._next.act(self._nodes))
            self._next = next(self._troubles)
            self._due = time.monotonic() + self._next.after

    def answer(self, wanted: str) -> str:
        """Do what a visitor's button wants, and return what to tell; or tell what comes next."""
        with self._commands:
            if wanted in BUTTONS:
                reply = BUTTONS[wanted](self._nodes)
                self._visited = True
                self._due = time.monotonic() + (LEFT if self._ailing() else REST)
                tell(f"A visitor presses a button. {reply}")
                return reply
            left = f"{max(1, math.ceil(self._due - time.monotonic()))} s"
            if self._visited:
                return (
                    f"A button was pressed: the demo itself lets no node fail for {left}. Then it "
                    "brings all nodes back, and goes on."
                )
            return (
                f"The demo lets nodes fail by itself, too. Next it {self._next.words}, in {left}."
            )

    def _ailing(self) -> bool:
        return any(node.is_paused or not node.is_running for node in self._nodes)


@contextmanager
def served(path: Path, answer: Callable[[str], str]) -> Iterator[None]:
    """Answer the site's processes on a Unix socket, in a thread."""

    def listen() -> None:
        with suppress(OSError):  # the block is over
            while True:
                with listener.accept() as asker, suppress(OSError, EOFError):
                    asker.send(answer(asker.recv()))

    with Listener(str(path)) as listener:
        threading.Thread(target=listen, daemon=True).start()
        yield

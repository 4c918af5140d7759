"""A connection that is being opened in the background."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from django_redlock.interruption import Latch

if TYPE_CHECKING:
    from collections.abc import Callable

    from .connection import Connection


class ConnectAttempt:
    """An attempt to connect to a node.

    Attributes:
        done: set when the attempt has ended.
        connection: the connection, if the attempt succeeded.
        awaited: whether the caller still waits for it.
        wanted: ``time.monotonic`` when the caller asked for it.
        heard: ``time.monotonic`` when the node last gave a sign, or else when it was first asked
            for one; None while the thread that connects has not begun.
        then: called by the thread that connects when it is done.
    """

    def __init__(self, then: Callable[[ConnectAttempt], object] | None) -> None:
        self.done = Latch()
        self.connection: Connection | None = None
        self.awaited = True
        self.wanted = time.monotonic()
        self.heard: float | None = None
        self.then = then

    def progress(self) -> None:
        """Note that the node has given a sign, or is asked for the first one now."""
        self.heard = time.monotonic()

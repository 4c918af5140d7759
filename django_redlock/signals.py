"""Django signals: what happens to locks, told to receivers.

    from django_redlock.signals import lease_lost

    @receiver(lease_lost)
    def page_somebody(sender, name, lease, **kwargs): ...

All are sent robustly, with the class ``Lock`` as the sender and the same arguments: ``alias``,
``name``, ``fence``, ``seconds``, ``lease``, ``error``. A signal listens to the core's events only
while it has a receiver: without one it costs nothing.

Where an event loop runs, Django can call no async receiver and return. So those are connected
to a signal of their own, which a task sends.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable
from typing import Any, Final

from asgiref.sync import iscoroutinefunction
from django.dispatch import Signal

from . import events
from .concurrency.forking import reset_in_child
from .concurrency.loops import running_loop
from .events import Event, EventKind
from .locks.lock import Lock

_tasks: Final[set[asyncio.Task[object]]] = set()  # a loop alone would let them be collected


class LockSignal(Signal):
    """A signal about locks; receivers connect to it as to any other."""

    def __init__(self, *kinds: EventKind) -> None:
        super().__init__()
        self._kinds = kinds
        self._awaited = Signal()  # what async receivers are connected to
        reset_in_child(self)

    def reset(self) -> None:
        """Make the locks of Django anew, as a forked child must."""
        self.lock, self._awaited.lock = threading.Lock(), threading.Lock()

    def connect(
        self,
        receiver: Callable[..., Any],
        sender: object | None = None,
        weak: bool = True,  # noqa: FBT001, FBT002 - Django's signature
        dispatch_uid: Hashable | None = None,
    ) -> None:
        """Connect a receiver; it may be a coroutine function."""
        if iscoroutinefunction(receiver):
            self._awaited.connect(receiver, sender, weak, dispatch_uid)
        else:
            super().connect(receiver, sender, weak, dispatch_uid)
        events.subscribe(self._deliver, self._kinds)

    def disconnect(
        self,
        receiver: Callable[..., Any] | None = None,
        sender: object | None = None,
        dispatch_uid: str | None = None,
    ) -> bool:
        """Disconnect a receiver; whether it was connected."""
        found = [
            super().disconnect(receiver, sender, dispatch_uid),
            self._awaited.disconnect(receiver, sender, dispatch_uid),
        ]
        if not self.has_listeners(Lock):
            events.unsubscribe(self._deliver, self._kinds)
        return any(found)

    def has_listeners(self, sender: Any = None) -> bool:
        """Whether a receiver is connected for this sender."""
        return super().has_listeners(sender) or self._awaited.has_listeners(sender)

    def _deliver(self, event: Event) -> None:
        told = {
            "alias": event.alias,
            "name": event.name,
            "fence": event.fence,
            "seconds": event.seconds,
            "lease": event.lease,
            "error": event.error,
        }
        self.send_robust(Lock, **told)
        if not self._awaited.has_listeners(Lock):
            return
        if running_loop() is None:
            self._awaited.send_robust(Lock, **told)
        else:
            task = asyncio.ensure_future(self._awaited.asend_robust(Lock, **told))
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)


lock_acquired: Final = LockSignal(EventKind.ACQUIRED)
lock_refused: Final = LockSignal(EventKind.REFUSED, EventKind.UNAVAILABLE)
lock_released: Final = LockSignal(EventKind.RELEASED)
lease_extended: Final = LockSignal(EventKind.EXTENDED)
lease_lost: Final = LockSignal(EventKind.LOST)

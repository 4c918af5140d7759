"""Django signals about what happens to locks, and to the messages of locked tasks.

    from django_redlock.signals import lease_lost

    @receiver(lease_lost)
    def page_somebody(sender, name, lease, **kwargs): ...

All are sent robustly. Those of locks have the class ``Lock`` as the sender, and the arguments
``alias``, ``name``, ``template``, ``fence``, ``seconds``, ``lease``, ``error``. Those of tasks have
the task's name as the sender, and the arguments ``alias``, ``name``, ``template``, ``task``,
``task_id``, ``other_id``, ``seconds``, ``error``. A signal listens to ``events`` only while it has
a receiver: without one it costs nothing.

In a running event loop, Django cannot call an async receiver and return. So async receivers are
connected to a signal of their own, which a task sends.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

from asgiref.sync import iscoroutinefunction
from django.dispatch import Signal

from django_redlock.core.errors import LeaseLost
from django_redlock.core.reasons import ReasonCode
from django_redlock.nodes.background import reset_in_child, running_loop

from . import events
from .events import Event, EventKind, TaskEvent, TaskOutcome
from .locks.lock import Lock

_tasks: Final[set[asyncio.Task[object]]] = set()  # a loop alone would let them be collected


class RobustSignal(Signal):
    """A signal of this package; receivers connect to it as to any other.

    Args:
        kinds: of the events that it tells its receivers.
        told: returns the sender and the arguments for an event.
        sender: returns the sender to wait for, given the one that ``connect`` was called with.
        only: of these events it tells those for which this is true.
    """

    def __init__(
        self,
        kinds: Sequence[EventKind] | Sequence[TaskOutcome],
        told: Callable[[Any], tuple[object, dict[str, object]]],
        sender: Callable[[Any], object] = lambda given: given,
        only: Callable[[Any], bool] = bool,
    ) -> None:
        super().__init__()
        self._kinds, self._told, self._sender, self._only = kinds, told, sender, only
        self._awaited = Signal()  # of the async receivers
        reset_in_child(self)

    def reset(self) -> None:
        """Make Django's thread locks anew, as a forked child must."""
        self.lock, self._awaited.lock = threading.Lock(), threading.Lock()

    def connect(
        self,
        receiver: Callable[..., Any],
        sender: object | None = None,
        weak: bool = True,  # noqa: FBT001, FBT002 - Django's signature
        dispatch_uid: Hashable | None = None,
    ) -> None:
        """Connect a receiver; it may be a coroutine function."""
        sender = None if sender is None else self._sender(sender)
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
        """Disconnect a receiver; return True if it was connected."""
        sender = None if sender is None else self._sender(sender)
        found = [
            super().disconnect(receiver, sender, dispatch_uid),
            self._awaited.disconnect(receiver, sender, dispatch_uid),
        ]
        if not (self.receivers or self._awaited.receivers):
            events.unsubscribe(self._deliver, self._kinds)
        return any(found)

    def has_listeners(self, sender: Any = None) -> bool:
        """Return True if a receiver is connected for this sender."""
        sender = None if sender is None else self._sender(sender)
        return super().has_listeners(sender) or self._awaited.has_listeners(sender)

    def _deliver(self, event: Any) -> None:
        if not self._only(event):
            return
        sender, told = self._told(event)
        self.send_robust(sender, **told)
        if not self._awaited.has_listeners(sender):
            return
        if running_loop() is None:
            self._awaited.send_robust(sender, **told)
        else:
            task = asyncio.ensure_future(self._awaited.asend_robust(sender, **told))
            _tasks.add(task)
            task.add_done_callback(_tasks.discard)


# -- of locks -----------------------------------------------------------------------------------


def _told_of_lock(event: Event) -> tuple[object, dict[str, object]]:
    fields = ("alias", "name", "template", "fence", "seconds", "lease", "error")
    return Lock, {field: getattr(event, field) for field in fields}


lock_acquired: Final = RobustSignal([EventKind.ACQUIRED], _told_of_lock)
lock_refused: Final = RobustSignal([EventKind.REFUSED, EventKind.UNAVAILABLE], _told_of_lock)
lock_released: Final = RobustSignal([EventKind.RELEASED], _told_of_lock)
lease_extended: Final = RobustSignal([EventKind.EXTENDED], _told_of_lock)
lease_lost: Final = RobustSignal([EventKind.LOST], _told_of_lock)


def _was_revoked(event: Event) -> bool:
    return isinstance(event.error, LeaseLost) and event.error.code == ReasonCode.REVOKED


lock_revoked: Final = RobustSignal([EventKind.LOST], _told_of_lock, only=_was_revoked)


# -- of tasks -----------------------------------------------------------------------------------

_names: Final[dict[str, str]] = {}  # Django compares senders by identity


def _name(task: Any) -> str:
    """Return the name of a task, or a name itself: of equal names always the same object.

    Raises:
        TypeError: it is neither a task nor a name.
    """
    name = task if isinstance(task, str) else getattr(task, "name", None)
    if not isinstance(name, str):
        msg = f"sender must be a task or the name of one, not {type(task).__name__}"
        raise TypeError(msg)
    return _names.setdefault(name, name)


def _told_of_task(event: TaskEvent) -> tuple[object, dict[str, object]]:
    told = event._asdict()
    del told["outcome"]
    return _name(event.task), told


task_skipped: Final = RobustSignal([TaskOutcome.SKIPPED], _told_of_task, _name)
task_deferred: Final = RobustSignal([TaskOutcome.DEFERRED], _told_of_task, _name)
task_duplicate: Final = RobustSignal([TaskOutcome.DUPLICATE], _told_of_task, _name)
task_finished_before: Final = RobustSignal([TaskOutcome.FINISHED_BEFORE], _told_of_task, _name)

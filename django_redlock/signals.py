"""Django signals about what happens to locks, and to the messages of locked tasks.

    from django_redlock.signals import lease_lost

    @receiver(lease_lost)
    def page_somebody(sender, name, lease, **kwargs): ...

All are sent robustly. Those of locks have the class ``Lock`` as the sender, and the arguments
``alias``, ``name``, ``template``, ``fence``, ``seconds``, ``lease``, ``error``. Those of tasks have
the task's name as the sender, and the arguments ``alias``, ``name``, ``template``, ``task``,
``task_id``, ``other_id``, ``seconds``, ``error``. A signal listens to ``events`` only while it has
a receiver: without one it costs nothing.

Receivers are plain functions: they are called in the thread or task of the event.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

from asgiref.sync import iscoroutinefunction
from django.dispatch import Signal

from django_redlock.core.errors import LeaseLost
from django_redlock.core.reasons import ReasonCode
from django_redlock.nodes.background import reset_in_child

from . import events
from .events import Event, EventKind, TaskEvent, TaskOutcome
from .locks.lock import Lock


class RobustSignal(Signal):
    """A signal of this package; receivers connect to it as to any other.

    Args:
        kinds: the kinds of events that it sends.
        arguments: returns the sender and the arguments for an event.
        sender: returns the sender to wait for, given the one that ``connect`` was called with.
        only: returns whether this event is sent.
    """

    def __init__(
        self,
        kinds: Sequence[EventKind] | Sequence[TaskOutcome],
        arguments: Callable[[Any], tuple[object, dict[str, object]]],
        sender: Callable[[Any], object] = lambda given: given,
        only: Callable[[Any], bool] = bool,
    ) -> None:
        super().__init__()
        self._kinds, self._arguments, self._sender, self._only = kinds, arguments, sender, only
        reset_in_child(self)

    def reset(self) -> None:
        """Make Django's thread lock anew, as a forked child must."""
        self.lock = threading.Lock()

    def connect(
        self,
        receiver: Callable[..., Any],
        sender: object | None = None,
        weak: bool = True,  # noqa: FBT001, FBT002 - Django's signature
        dispatch_uid: Hashable | None = None,
    ) -> None:
        """Connect a receiver.

        Raises:
            TypeError: it is a coroutine function, or the sender is none.
        """
        if iscoroutinefunction(receiver):
            raise TypeError(
                "a receiver of this signal must be a plain function, since it is called where "
                "perhaps no event loop runs: let it wake a task by loop.call_soon_threadsafe"
            )
        sender = None if sender is None else self._sender(sender)
        super().connect(receiver, sender, weak, dispatch_uid)
        events.subscribe(self._send, self._kinds)

    def disconnect(
        self,
        receiver: Callable[..., Any] | None = None,
        sender: object | None = None,
        dispatch_uid: str | None = None,
    ) -> bool:
        """Disconnect a receiver; return True if it was connected."""
        sender = None if sender is None else self._sender(sender)
        found = super().disconnect(receiver, sender, dispatch_uid)
        if not self.receivers:
            events.unsubscribe(self._send, self._kinds)
        return found

    def has_listeners(self, sender: Any = None) -> bool:
        """Return True if a receiver is connected for this sender."""
        return super().has_listeners(None if sender is None else self._sender(sender))

    def _send(self, event: Any) -> None:
        if self._only(event):
            sender, arguments = self._arguments(event)
            self.send_robust(sender, **arguments)


# -- of locks -----------------------------------------------------------------------------------


def _of_lock(event: Event) -> tuple[object, dict[str, object]]:
    fields = ("alias", "name", "template", "fence", "seconds", "lease", "error")
    return Lock, {field: getattr(event, field) for field in fields}


lock_acquired: Final = RobustSignal([EventKind.ACQUIRED], _of_lock)
lock_refused: Final = RobustSignal([EventKind.REFUSED, EventKind.UNAVAILABLE], _of_lock)
lock_released: Final = RobustSignal([EventKind.RELEASED], _of_lock)
lease_extended: Final = RobustSignal([EventKind.EXTENDED], _of_lock)
lease_lost: Final = RobustSignal([EventKind.LOST], _of_lock)


def _was_revoked(event: Event) -> bool:
    return isinstance(event.error, LeaseLost) and event.error.code == ReasonCode.REVOKED


lock_revoked: Final = RobustSignal([EventKind.LOST], _of_lock, only=_was_revoked)


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


def _of_task(event: TaskEvent) -> tuple[object, dict[str, object]]:
    arguments = event._asdict()
    del arguments["outcome"]
    return _name(event.task), arguments


task_skipped: Final = RobustSignal([TaskOutcome.SKIPPED], _of_task, _name)
task_deferred: Final = RobustSignal([TaskOutcome.DEFERRED], _of_task, _name)
task_duplicate: Final = RobustSignal([TaskOutcome.DUPLICATE], _of_task, _name)
task_finished_before: Final = RobustSignal([TaskOutcome.FINISHED_BEFORE], _of_task, _name)

"""Check the options of ``locked_task`` that concern messages; the lock checks its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from django_redlock.core.policy import check_seconds

OnDuplicate: TypeAlias = "str | Callable[[Any], Any]"

WHILE_RUNNING: Final = "while_running"
UNTIL_STARTED: Final = "until_started"
UNTIL_FINISHED: Final = "until_finished"
MODES: Final = (WHILE_RUNNING, UNTIL_STARTED, UNTIL_FINISHED)
ON_CONFLICT: Final = ("skip", "retry", "raise")
ON_UNAVAILABLE: Final = ("retry", "run", "raise")
ON_DUPLICATE: Final = ("existing", "raise", "drop")
QUEUE_TTL: Final = 3600.0  # seconds


@dataclass(frozen=True, slots=True)
class Options:
    """What to do with messages.

    Attributes:
        mode: how long no second message for a key is sent.
        on_conflict: what to do with a message whose key is held.
        on_unavailable: what to do with a message when no majority of the nodes can be asked.
        on_duplicate: what to do at publish, in place of sending a duplicate.
        queue_ttl: seconds that a message may wait in the queue before its mark expires.
        using: the database whose transaction a message waits for.
    """

    mode: str
    on_conflict: str
    on_unavailable: str
    on_duplicate: OnDuplicate
    queue_ttl: float
    using: str | None

    @property
    def marks(self) -> bool:
        """Return whether queued messages have marks."""
        return self.mode != WHILE_RUNNING


def check(
    *,
    mode: str,
    on_conflict: str,
    on_unavailable: str,
    on_duplicate: OnDuplicate | None,
    queue_ttl: float | None,
    using: Any,
) -> Options:
    """Return the options, if they make sense together.

    Raises:
        TypeError: ``queue_ttl`` is no number, or ``using`` no text.
        ValueError: an option does not exist, or makes no sense with the others.
    """
    if mode not in MODES:
        msg = f"mode={mode!r} does not exist; there is: {', '.join(map(repr, MODES))}"
        raise ValueError(msg)
    _choice("on_conflict", on_conflict, ON_CONFLICT)
    _choice("on_unavailable", on_unavailable, ON_UNAVAILABLE)
    if on_duplicate is not None and not callable(on_duplicate):
        _choice("on_duplicate", on_duplicate, ON_DUPLICATE, more=", and no function")
    of_marks = {"on_duplicate": on_duplicate, "queue_ttl": queue_ttl, "using": using}
    idle = [name for name, value in of_marks.items() if value is not None]
    if mode == WHILE_RUNNING and idle:
        msg = (
            f"{idle[0]} has no effect with mode='while_running', where each message is sent: "
            f"choose mode='until_started' or 'until_finished', or leave {idle[0]} out"
        )
        raise ValueError(msg)
    if mode == UNTIL_STARTED and on_conflict == "skip":
        msg = (
            "mode='until_started' lets one message wait while another runs, and "
            "on_conflict='skip' would drop it at its start, with what has changed since the other "
            "began: write on_conflict='retry', or mode='until_finished'"
        )
        raise ValueError(msg)
    if using is not None and not isinstance(using, str):
        msg = f"using must be the name of a database, as in DATABASES, not {using!r}"
        raise TypeError(msg)
    queue_ttl = QUEUE_TTL if queue_ttl is None else check_seconds("queue_ttl", queue_ttl)
    on_duplicate = "existing" if on_duplicate is None else on_duplicate
    return Options(mode, on_conflict, on_unavailable, on_duplicate, queue_ttl, using)


def _choice(name: str, value: object, choices: tuple[str, ...], more: str = "") -> None:
    if value not in choices:
        msg = f"{name}={value!r} is none of {', '.join(map(repr, choices))}{more}"
        raise ValueError(msg)

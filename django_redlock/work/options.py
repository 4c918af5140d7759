"""The options of ``locked_task``, as users see them; ``plan`` has their defaults."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias, TypedDict, get_args

Mode: TypeAlias = Literal["while_running", "until_started", "until_finished"]
OnConflict: TypeAlias = Literal["skip", "retry", "raise"]
OnUnavailable: TypeAlias = Literal["retry", "run", "raise"]
OnDuplicate: TypeAlias = Literal["existing", "raise", "drop"] | Callable[[Any], Any]
WHILE_RUNNING: Final = "while_running"
UNTIL_STARTED: Final = "until_started"
UNTIL_FINISHED: Final = "until_finished"
CHOICES: Final = {
    "mode": get_args(Mode),
    "on_conflict": get_args(OnConflict),
    "on_unavailable": get_args(OnUnavailable),
    "on_duplicate": ("existing", "raise", "drop"),
}


class TaskOptions(TypedDict, total=False):
    """The options of ``locked_task``, of Celery's tasks and of Django's alike.

    Args:
        ttl: seconds after which the nodes forget a worker that died. None: the alias's TTL.
        wait: seconds for which a run waits for the lock, occupying its worker. None: 0.
        renew: whether a watchdog renews the lease while the body runs. None: the alias's RENEW.
        on_conflict: what to do with a message whose key is held: "skip" ends it as a success
            whose result is a ``Skipped``; "retry" sends it again for later; "raise" fails it with
            ``LockTaken``. With mode="until_started" it is "retry" or "raise". None: "retry" with a
            ``limit``, else "skip".
        alias: the alias whose nodes decide. None: "default".
        min_hold: seconds for which the key stays taken at least.
        max_hold: seconds after which the lease is no longer renewed. None: MAX_HOLD.
        mode: "while_running": every message is sent, and of those with one key one runs at a
            time; "until_started": besides, no second message is sent while one waits;
            "until_finished": nor while one runs.
        on_unavailable: what to do with a message when no majority of the nodes can be asked at
            its start: "retry" sends it again for later; "run" runs the body without the lock;
            "raise" fails it with ``NodesUnavailable``.
        on_duplicate: what to do in place of sending a second message: "existing" returns the
            result of the first one; "raise" raises ``DuplicateTask``; "drop" returns None; a
            function is called with that result, and says what is returned. None: "existing".
        queue_ttl: seconds, from its ETA or ``run_after``, after which a message that neither ran
            nor expired no longer keeps others from being sent. None: 3600.
        using: the database; inside a transaction of it a message with a mark is sent after the
            COMMIT. None: "default".
        once: how long the work of a key is not done again after its body has succeeded, a timedelta
            or seconds; see ``Lock.once``. A message in that time ends as a success whose result is
            a ``Skipped``, whatever ``on_conflict`` says. None: for each message.
        limit: how many messages of one key run at a time, 1 to 128; a key is held when so many do,
            and by "retry" the next message comes back after 2.5 to 5 s. Not with
            mode="until_finished", ``once`` or several keys. None: one.
    """

    ttl: float | None
    wait: float | None
    renew: bool | None
    on_conflict: OnConflict | None
    alias: str | None
    min_hold: float
    max_hold: float | None
    mode: Mode
    on_unavailable: OnUnavailable
    on_duplicate: OnDuplicate | None
    queue_ttl: float | None
    using: str | None
    once: timedelta | float | None
    limit: int | None


OPTIONS: Final = ("key", *TaskOptions.__annotations__)

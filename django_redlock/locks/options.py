"""The options of a lock."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, TypeAlias

from django_redlock.core.acquire import WaitsFor
from django_redlock.core.policy import check_seconds
from django_redlock.core.slots import MOST
from django_redlock.leases.lease import Lease

from .advice import unknown_keywords
from .callables import check_call

OnLost: TypeAlias = Callable[[Lease], object] | Literal["raise", "cancel"] | None


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a lock; None is the alias's default. See ``LockTemplate.__call__``.

    Six are for this package, not for users: ``label``, the owner label of at most 200 bytes;
    ``quiet``: the caller logs that no majority can be asked; ``waits_for``, ``thorough`` and
    ``puts_back``, see ``core.acquire.acquire``; and ``foreign``: called with a lease that is not
    the running code's (another holder's in a test, or that of a run name), and is not told to
    listeners.
    """

    ttl: float | None = None
    wait: float | None = None
    renew: bool | None = None
    max_hold: float | None = None
    min_hold: float | None = None
    on_lost: OnLost = None
    durable: bool | None = None
    limit: int | None = None
    label: str | None = None
    quiet: bool | None = None
    waits_for: WaitsFor = None
    thorough: bool | None = None
    puts_back: bool | None = None
    foreign: Callable[[Lease], object] | None = None

    def __post_init__(self) -> None:
        if self.ttl is not None:
            check_seconds("ttl", self.ttl)
        if self.wait is not None:
            check_seconds("wait", self.wait, zero=True, endless=True)
        if self.max_hold is not None:
            check_seconds("max_hold", self.max_hold, endless=True)
        if self.min_hold is not None:
            check_seconds("min_hold", self.min_hold, zero=True)
        if self.limit is not None:
            check_limit(self.limit)
        for name in ("renew", "durable"):
            if getattr(self, name) not in (None, True, False):
                msg = f"{name} must be True or False"
                raise TypeError(msg)
        _check_on_lost(self.on_lost)

    def called_with(self, *values: Any) -> Options:
        """Return a copy as ``updated`` does, remembered for the next call with the same values.

        With a callable ``on_lost`` nothing is remembered: it may keep alive what it refers to.

        Args:
            values: of the options for users, all of them, in the order of ``KNOWN``.

        Raises:
            TypeError, ValueError: a value makes no sense.
        """
        if values.count(None) == len(values):
            return self
        if not (callable(self.on_lost) or callable(values[ON_LOST])):
            with suppress(TypeError):  # of a value without a hash, or one that makes no sense
                return _remembered(self, *values)
        return _updated(self, *values)

    def updated(self, **changes: Any) -> Options:
        """Return a copy with these changes; None changes nothing.

        Raises:
            TypeError, ValueError: there is no such option, or its value makes no sense.
        """
        if unknown := [key for key in changes if key not in KNOWN]:
            raise unknown_keywords("a lock", unknown, FOR_USERS)
        given = {key: value for key, value in changes.items() if value is not None}
        return replace(self, **given) if given else self


def _check_on_lost(on_lost: object) -> None:
    """Check what is done about a lost lease.

    Raises:
        TypeError: it is no such thing.
    """
    if not callable(on_lost):
        if on_lost not in (None, "raise", "cancel"):
            msg = "on_lost must be 'raise', 'cancel' or something to call with the lease"
            raise TypeError(msg)
        return
    if any(map(inspect.iscoroutinefunction, (on_lost, type(on_lost).__call__))):
        msg = (
            "on_lost must be a plain function: it may be called where no event loop runs; "
            "let it wake a task by loop.call_soon_threadsafe"
        )
        raise TypeError(msg)
    check_call("on_lost", on_lost, "lease")


def check_limit(limit: object) -> None:
    """Check how many may hold a lock at a time.

    Raises:
        TypeError, ValueError: it is no such number.
    """
    if isinstance(limit, bool) or not isinstance(limit, int):
        msg = f"limit must be an int, how many may hold the lock at a time, not {limit!r}"
        raise TypeError(msg)
    if not 1 <= limit <= MOST:
        msg = f"limit must be from 1 to {MOST}, not {limit}: so many may hold the lock at a time"
        raise ValueError(msg)


def _updated(options: Options, *values: Any) -> Options:
    return options.updated(**dict(zip(KNOWN, values, strict=False)))


_remembered: Final = functools.lru_cache(maxsize=256, typed=True)(_updated)
KNOWN: Final = tuple(option.name for option in fields(Options))
FOR_USERS: Final = KNOWN[:-6]  # see ``Options``
ON_LOST: Final = KNOWN.index("on_lost")

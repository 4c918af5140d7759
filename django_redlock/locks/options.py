"""The options of a lock, and the error about a keyword that there is not."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, TypeAlias

from django_redlock.core.acquire import WaitsFor
from django_redlock.core.policy import check_seconds
from django_redlock.core.reasons import DOCS
from django_redlock.core.slots import MOST
from django_redlock.leases.lease import Lease

OnLost: TypeAlias = Callable[[Lease], object] | Literal["raise", "cancel"] | None
MIGRATE: Final = f"What other clients' keywords become: {DOCS}how-to/migrate.html#keywords"


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
        if not (self.on_lost in (None, "raise", "cancel") or callable(self.on_lost)):
            msg = "on_lost must be 'raise', 'cancel' or something to call with the lease"
            raise TypeError(msg)
        if callable(self.on_lost) and any(
            map(inspect.iscoroutinefunction, (self.on_lost, type(self.on_lost).__call__))
        ):
            msg = (
                "on_lost must be a plain function: it may be called where no event loop runs; "
                "let it wake a task by loop.call_soon_threadsafe"
            )
            raise TypeError(msg)

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


def unknown_keywords(what: str, unknown: Iterable[str], known: Iterable[str]) -> TypeError:
    """Return the error of a call with keywords that there are not.

    Args:
        what: the callable, as the user writes it.
        unknown: the keywords that were given.
        known: the keywords that it takes.
    """
    names, taken = ", ".join(map(repr, unknown)), ", ".join(known)
    return TypeError(f"{what} has no keyword {names}; it takes {taken}. {MIGRATE}")

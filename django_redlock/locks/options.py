"""The options of a lock, and what to write in place of what locks of other clients take and can do.

``lock.acquire()`` and ``lock.release()`` is how redis-py, ``threading`` and others are used. Here a
Lock is a description that many may use at once; what belongs to a holder is in its lease.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, TypeAlias, TypeVar

from django_redlock.core.acquire import WaitsFor
from django_redlock.core.names import did_you_mean
from django_redlock.core.policy import check_seconds
from django_redlock.core.reasons import DOCS
from django_redlock.leases.lease import Lease

OnLost: TypeAlias = Callable[[Lease], object] | Literal["raise"] | None
MIGRATE: Final = f"What other clients' keywords become: {DOCS}how-to/migrate.html#keywords"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a lock; None is the alias's default. See ``LockTemplate.__call__``.

    Five are for this package, not for users: ``label``, the owner label of at most 200 bytes;
    ``quiet``: the caller logs that no majority can be asked; ``waits_for`` and ``thorough``, see
    ``core.acquire.acquire``; and ``foreign``: called with a lease that is not the running code's
    (another holder's in a test, or that of a run name), and is not told to listeners.
    """

    ttl: float | None = None
    wait: float | None = None
    renew: bool | None = None
    max_hold: float | None = None
    min_hold: float | None = None
    on_lost: OnLost = None
    durable: bool | None = None
    label: str | None = None
    quiet: bool | None = None
    waits_for: WaitsFor = None
    thorough: bool | None = None
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
        for name in ("renew", "durable"):
            if getattr(self, name) not in (None, True, False):
                msg = f"{name} must be True or False"
                raise TypeError(msg)
        if not (self.on_lost in (None, "raise") or callable(self.on_lost)):
            msg = "on_lost must be 'raise' or something to call with the lease"
            raise TypeError(msg)
        if callable(self.on_lost) and any(
            map(inspect.iscoroutinefunction, (self.on_lost, type(self.on_lost).__call__))
        ):
            msg = (
                "on_lost must be a plain function: it may be called where no event loop runs; "
                "let it wake a task, or connect an async receiver to the signal lease_lost"
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
        unknown = [key for key in changes if key not in KNOWN]
        if unknown:
            refuse_keywords("a lock", unknown, FOR_USERS)
        given = {key: value for key, value in changes.items() if value is not None}
        return replace(self, **given) if given else self


def _updated(options: Options, *values: Any) -> Options:
    return options.updated(**dict(zip(KNOWN, values, strict=False)))


_remembered: Final = functools.lru_cache(maxsize=256, typed=True)(_updated)
KNOWN: Final = tuple(option.name for option in fields(Options))
FOR_USERS: Final = KNOWN[:-5]  # see ``Options``
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


# -- what other clients have --------------------------------------------------------------------

F = TypeVar("F", bound=Callable[..., Any])
INSTEAD: Final = {
    "release": "keep the lease that acquire() returns, and call its release()",
    "arelease": "keep the lease that aacquire() returns, and call its arelease()",
    "extend": "keep the lease that acquire() returns, and call its extend()",
    "aextend": "keep the lease that aacquire() returns, and call its aextend()",
    "reacquire": "keep the lease that acquire() returns, and call its extend()",
    "owned": "keep the lease that acquire() returns, and call its ensure()",
    "locked": "ask state().held; to take it if it is free, use try_acquire()",
}

TTL: Final = (
    "write ttl=, in seconds, after which the name of a holder that died is free; a holder that "
    "lives is renewed"
)
WAIT: Final = "write wait=, in seconds, to wait while the name is held; 0 does not wait"
BLOCKING: Final = (
    "write wait=, in seconds, to wait while the name is held; without it no call waits, and "
    "try_acquire() returns None where the name is held"
)
WOKEN: Final = "leave it out: the release wakes the next waiter; how long to wait is wait="
NODES: Final = "name the nodes in the setting REDLOCK, and its alias by using('…') or alias="
LEFT_OUT: Final = "leave it out"
KEY: Final = "write a name with fields of the arguments, as in 'report:{report_id}'"
# Keywords of redis-py, django-redis, python-redis-lock, redlock-py, pottery, sherlock, aioredlock,
# threading, filelock, celery-once and celery-singleton.
KEYWORDS: Final = {
    "timeout": f"{TTL}; or {WAIT}",
    **dict.fromkeys(("expire", "expires", "expiry", "lock_expiry", "lock_timeout", "ex"), TTL),
    **dict.fromkeys(("auto_release_time", "lease_time", "lease"), TTL),
    "px": f"{TTL} (px counts milliseconds)",
    **dict.fromkeys(("blocking", "block", "nowait", "context_manager_blocking"), BLOCKING),
    **dict.fromkeys(("blocking_timeout", "context_manager_timeout", "wait_time"), WAIT),
    **dict.fromkeys(("sleep", "retry_delay", "retry_interval", "poll_interval"), WOKEN),
    **dict.fromkeys(("retry_delay_min", "retry_delay_max"), WOKEN),
    **dict.fromkeys(("retry_count", "retry_times", "retries"), f"{WAIT}, in place of a number"),
    "auto_renewal": "write renew=: a lease is renewed while it is held, unless that is False",
    "num_extensions": "write max_hold=, in seconds, after which a lease is no longer renewed",
    "thread_local": f"{LEFT_OUT}: a lease belongs to the code that has it, in whatever thread",
    **dict.fromkeys(("id", "token", "lock_identifier"), f"{LEFT_OUT}: each lease has its own"),
    **dict.fromkeys(("signal_expire", "strict", "nx", "raise_on_redis_errors"), LEFT_OUT),
    "raise_on_release_error": f"{LEFT_OUT}: to hear of a lost lease, write on_lost='raise'",
    **dict.fromkeys(("namespace", "prefix"), "set KEY_PREFIX in REDLOCK, or write it in the name"),
    "version": "write it in the name",
    **dict.fromkeys(("client", "redis", "redis_client", "connection", "masters"), NODES),
    **dict.fromkeys(("connection_list", "redis_connections", "connection_details"), NODES),
    **dict.fromkeys(("key", "resource", "lock_name"), "write the name first, without a keyword"),
    **dict.fromkeys(("keys", "unique_on"), KEY),
    "graceful": "write on_conflict='skip', which is the default, or 'raise'",
    "raise_on_duplicate": "write on_duplicate='raise', with mode='until_finished'",
    "unlock_before_run": "write mode='until_started'",
    "once": KEY,
    "alias": "write redlock.using('payments')(name)",
}


def without_unknown(function: F) -> F:
    """Leave ``**unknown`` out of a signature: no such argument is taken, only refused."""
    signature = inspect.signature(function)
    shown = [each for each in signature.parameters.values() if each.name != "unknown"]
    function.__signature__ = signature.replace(parameters=shown)  # type: ignore[attr-defined]
    return function


def refuse_keywords(what: str, given: Iterable[str], known: Iterable[str]) -> NoReturn:
    """Refuse a keyword that there is not, and say what to write in its place.

    Args:
        what: has options.
        given: keywords, one or more.
        known: the options that there are.

    Raises:
        TypeError: always.
    """
    keyword, known = next(iter(given)), tuple(known)
    if keyword == "timeout" and "ttl" not in known:  # of acquire, where other clients wait by it
        instead = f": {WAIT}"
    elif keyword in KEYWORDS:
        instead = f": {KEYWORDS[keyword]}"
    else:
        instead = did_you_mean(keyword, known)
    options = ", ".join(known)
    raise TypeError(f"{what} has no option {keyword!r}{instead}; the options are: {options}")


class FromOtherClients:
    """Says what to write in place of a method that other clients' locks have."""

    if not TYPE_CHECKING:  # a type checker knows that they are missing

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            text = f"{kind!r} object has no attribute {name!r}"
            if name in INSTEAD:
                text = f"{text}; {INSTEAD[name]}"
            raise AttributeError(text, name=name, obj=self)

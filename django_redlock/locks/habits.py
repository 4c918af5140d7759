"""What locks of other clients can do and are given, and what to write in its place.

``lock.acquire()`` and ``lock.release()`` is how redis-py, ``threading`` and others are used. Here a
Lock is a description that many may use at once; what belongs to a holder is in its lease.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from django_redlock.core.names import did_you_mean

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

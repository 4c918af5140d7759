"""What to write in place of what is not there: tables of words, and the errors made of them.

Nobody knows an interface by heart, and other clients have other words. An error about a keyword, an
attribute or a call that there is not says what to write.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final, TypeVar

from django_redlock.core.names import did_you_mean, looks_unfilled
from django_redlock.core.reasons import DOCS

F = TypeVar("F", bound=Callable[..., Any])
logger = logging.getLogger("django_redlock")
MIGRATE: Final = f"What other clients' keywords become: {DOCS}how-to/migrate.html#keywords"
# Of other packages and of other people: what they mean here, where the callable takes it.
KEYWORDS: Final = {
    "timeout": ("ttl", "wait", "node_timeout"),
    **dict.fromkeys(("expire", "expires", "expiry", "lease", "lock_expiry"), ("ttl",)),
    **dict.fromkeys(("blocking", "blocking_timeout", "retry", "sleep"), ("wait",)),
    **dict.fromkeys(("slots", "max", "k", "n", "size", "concurrency"), ("limit",)),
    **dict.fromkeys(("hold", "lock_at_least_for"), ("min_hold", "max_hold")),
    "auto_renewal": ("renew",),
    "on_loss": ("on_lost",),
}
# Of other callables of ours: no misspelling.
OURS: Final = ("ttl", "wait", "renew", "max_hold", "min_hold", "on_lost", "durable", "limit")
# Of a lock, what is no keyword.
OF_LOCKS: Final = {
    **dict.fromkeys(("alias", "using", "connection"), "redlock.using('alias')(name)"),
    **dict.fromkeys(("once", "keep", "per"), "redlock(name).once(keep=…)"),
    "leader": "redlock(name).leader(on_elected=…)",
    "atomic": "redlock(name).atomic()",
    **dict.fromkeys(("key", "name", "names"), "the name as the first argument, as in redlock('a')"),
}
# Attributes of a ``Lock`` or an ``OnceLock``.
OF_LEASE: Final = "a lock holds nothing: 'with lock as lease:' or 'lease = lock.acquire()', and "
ATTRIBUTES: Final = {
    **dict.fromkeys(("locked", "is_locked", "held", "owned"), "write lock.state().held"),
    **dict.fromkeys(
        ("release", "arelease", "fence", "extend", "remaining", "ensure", "slot", "lost"),
        OF_LEASE + "then lease.{}",
    ),
    **dict.fromkeys(
        ("acquire", "aacquire", "try_acquire", "atry_acquire"),
        "it takes its lock in a block only: 'with … as run:', and then 'if run.fresh:'",
    ),
}


def unknown_keywords(what: str, unknown: Iterable[str], known: Iterable[str]) -> TypeError:
    """Return the error of a call with keywords that there are not.

    Args:
        what: the callable, as the user writes it.
        unknown: the keywords that were given.
        known: the keywords that it takes.
    """
    given, taken = list(unknown), list(known)
    hint = _hint(given[0], what, taken)
    names = ", ".join(map(repr, given))
    return TypeError(f"{what} has no keyword {names}{hint}; it takes {', '.join(taken)}. {MIGRATE}")


def _hint(given: str, what: str, taken: list[str]) -> str:
    if what == "a lock" and given in OF_LOCKS:
        return f": write {OF_LOCKS[given]}"
    meant = [f"{each}=" for each in KEYWORDS.get(given, ()) if each in taken]
    if meant:
        return f": write {' or '.join(meant)}"
    return "" if given in OURS or not given.isidentifier() else did_you_mean(given, taken)


def unknown_setting(key: object, known: Collection[str]) -> str:
    """Return what to write in place of a key that ``REDLOCK`` does not have; "": none is near."""
    word = str(key).lower()
    meant = KEYWORDS.get(word, () if word.upper() in known else (word,))
    if word in OF_LOCKS:
        return f": write {OF_LOCKS[word]}"
    if settings := [repr(each.upper()) for each in meant if each.upper() in known]:
        return f": write {' or '.join(settings)}"
    if options := [f"redlock(name, {each}=…)" for each in meant if each in OURS]:
        return f": write {' or '.join(options)}"
    return did_you_mean(str(key), known)


def unknown_attribute(owner: object, name: str) -> AttributeError:
    """Return the error of an attribute that there is not."""
    kind = type(owner).__name__
    advice = f": {ATTRIBUTES[name].format(name)}" if name in ATTRIBUTES else ""
    msg = f"{kind!r} object has no attribute {name!r}{advice}"
    return AttributeError(msg, name=name, obj=owner)


def advised(advice: str) -> Callable[[F], F]:
    """Say what to write where the arguments of a call do not fit the function.

    Args:
        advice: behind Python's own words.
    """

    def decorate(function: F) -> F:
        signature = inspect.signature(function)

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except TypeError:
                try:
                    signature.bind(*args, **kwargs)
                except TypeError as error:
                    msg = f"{function.__name__}: {error}; write {advice}"
                    raise TypeError(msg) from None
                raise

        return called  # type: ignore[return-value]

    return decorate


# -- names, which visitors may have chosen: what looks wrong is logged, and never raised ----------

MOST_WARNED: Final = 20  # names
_warned: Final[set[str]] = set()


def warn_once(text: str, name: str, *more: object) -> None:
    """Log a warning about a name, once for each name, and for so many names at most."""
    if name not in _warned and len(_warned) < MOST_WARNED:
        _warned.add(name)
        logger.warning(text, name, *more)


def warn_of_names(names: Sequence[str]) -> None:
    """Log a warning about names that look unfilled."""
    for name in filter(looks_unfilled, names):
        warn_once("the lock name %r looks unfilled: if it is, all callers share one lock", name)

"""What locks of other clients can do, and what to write in its place.

``lock.acquire()`` and ``lock.release()`` is how redis-py, ``threading`` and others are used. Here a
Lock is a description that many may use at once; what belongs to a holder is in its lease.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

INSTEAD: Final = {
    "release": "keep the lease that acquire() returns, and call its release()",
    "arelease": "keep the lease that aacquire() returns, and call its arelease()",
    "extend": "keep the lease that acquire() returns, and call its extend()",
    "aextend": "keep the lease that aacquire() returns, and call its aextend()",
    "reacquire": "keep the lease that acquire() returns, and call its extend()",
    "owned": "keep the lease that acquire() returns, and call its ensure()",
    "locked": "ask state().held; to take it if it is free, use try_acquire()",
}


class FromOtherClients:
    """Says what to write in place of a method that other clients' locks have."""

    if not TYPE_CHECKING:  # a type checker knows that they are missing

        def __getattr__(self, name: str) -> Any:
            kind = type(self).__name__
            text = f"{kind!r} object has no attribute {name!r}"
            if name in INSTEAD:
                text = f"{text}; {INSTEAD[name]}"
            raise AttributeError(text, name=name, obj=self)

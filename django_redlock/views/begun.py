"""Know whether the view of a request has begun to work under a lock of its own.

Then part of its work may be done, and no answer invites the client to repeat it. The view begins
where ``RedlockMiddleware`` passes the request on, or else at its first ``@single_flight``; what a
middleware above has locked and left is not the view's. Where neither is there, leases count from
the start of the request: too many rather than too few.
"""

from __future__ import annotations

from typing import Any, Final

from django_redlock.leases import context

_BEGAN: Final = "redlock_view_began"  # the attribute of Django's request
_STARTED: Final = "django_redlock.started"  # in its environ or scope


def note_request(*, environ: Any = None, scope: Any = None, **_: Any) -> None:
    """Note that a request has started, before any middleware is asked; a signal tells it."""
    started = scope if environ is None else environ
    if started is not None:
        started[_STARTED] = context.now()


def note_view(request: Any) -> None:
    """Note that the view begins here: the leases that are taken from now on are its own."""
    setattr(_djangos(request), _BEGAN, context.share())


def note_single_flight(request: Any) -> None:
    """Note the same, unless the view has begun before.

    Who holds a lock already may be a view that calls another one, or a middleware: then the
    leases count from the start of the request.
    """
    inner = _djangos(request)
    if not hasattr(inner, _BEGAN) and not (context.leases() and _started(inner)):
        note_view(inner)


def has_begun(request: Any) -> bool:
    """Return True if the view of the request holds a lease, or has held one."""
    inner = _djangos(request)
    since = getattr(inner, _BEGAN, None) or _started(inner)
    return since is not None and context.held_since(since)


def _started(inner: Any) -> int | None:
    """Return what ``note_request`` noted; None: a test has made the request, and no server."""
    found: int | None = (getattr(inner, "scope", None) or inner.META).get(_STARTED)
    return found


def _djangos(request: Any) -> Any:
    """Return Django's request, which that of a framework may wrap."""
    return getattr(request, "_request", request)

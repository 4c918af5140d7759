"""Keep the lock of a view for as long as its response is not complete.

A stream keeps it until it is closed, a template until it is rendered. A response that is dropped
instead releases the lock when it is forgotten.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction

from django_redlock.concurrency.farewells import Farewell
from django_redlock.concurrency.threads import start_thread

if TYPE_CHECKING:
    from django_redlock.leases.lease import Lease


def keeps(response: Any, lease: Lease) -> bool:
    """Return True if the response is not complete yet, and let the lease end with it."""
    streams = getattr(response, "streaming", False)
    if not streams and getattr(response, "is_rendered", True):
        return False
    forgotten = Farewell(response, partial(_release_apart, lease))

    def release(*_: object) -> None:
        if forgotten.cancel():
            lease.release()

    if streams:
        response._resource_closers.append(release)  # noqa: SLF001 - Django has no other way
    elif iscoroutinefunction(response.render):
        response.add_post_render_callback(release)  # not called when rendering fails
    else:
        _follow_rendering(response, release)
    return True


def _release_apart(lease: Lease) -> None:
    """Release in a thread of its own: the caller may not block, e.g. the garbage collector."""
    with suppress(RuntimeError):  # no thread can be started any more: the ttl ends the lease
        start_thread(lease.release)


def _follow_rendering(response: Any, followed_by: Callable[[], object]) -> None:
    """Call ``followed_by`` when the response has been rendered, or failed to be."""
    reference = weakref.ref(response)  # no cycle: it must be forgotten as soon as it is dropped

    def render() -> Any:
        response: Any = reference()
        del response.render  # a cache pickles the response while it is being rendered
        try:
            return response.render()
        finally:
            followed_by()

    response.render = render

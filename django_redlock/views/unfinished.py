"""Keep the lock of a view for as long as its response is not complete.

A stream keeps it until it is closed, a template until it is rendered. Where a response is dropped
instead, the lease is renewed no more, and the name is free after its ttl.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from asgiref.sync import iscoroutinefunction

if TYPE_CHECKING:
    from django_redlock.leases.lease import Lease


def keeps(response: Any, lease: Lease) -> bool:
    """Return True if the response is not complete yet, and let the lease end with it."""
    streams = getattr(response, "streaming", False)
    if not streams and getattr(response, "is_rendered", True):
        return False
    lease.block = weakref.ref(response)

    def release(*_: object) -> None:
        lease.release()

    if streams:
        response._resource_closers.append(release)  # noqa: SLF001 - Django has no other way
    elif iscoroutinefunction(response.render):
        response.add_post_render_callback(release)  # not called when rendering fails
    else:
        _follow_rendering(response, release)
    return True


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

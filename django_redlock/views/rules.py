"""How the requests of one view are locked, and what is answered and logged where they are not."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from django.core.exceptions import BadRequest

from django_redlock.core.errors import LockTaken, NodesUnavailable
from django_redlock.events import log_fields

from .keys import default_fields, view_fields
from .responses import busy, unavailable
from .seldom import Seldom

if TYPE_CHECKING:
    from django.http import HttpRequest, HttpResponse

    from django_redlock.locks.lock import Lock

logger = logging.getLogger("django_redlock")


@dataclass(frozen=True, slots=True)
class Rules:
    """How the requests of a view are locked; see ``single_flight``."""

    lock: Lock  # its names are templates
    by_request: bool  # ... or one, DEFAULT_KEY
    methods: frozenset[str]
    status: int
    fail_open: bool
    unfilled: Seldom = field(default_factory=Seldom)
    unavailable: Seldom = field(default_factory=Seldom)

    def reader(self, view: Callable[..., Any]) -> Callable[..., Lock]:
        """What makes the lock of a call from its arguments."""
        fields = default_fields if self.by_request else view_fields(view, self.lock.names)

        def lock_of(*args: Any, **kwargs: Any) -> Lock:
            values = fields(*args, **kwargs)
            try:
                return self.lock.filled(values)
            except ValueError as error:  # it depends on what was sent
                self._log(self.unfilled, logging.WARNING, "a request is answered 400", error)
                raise BadRequest(str(error)) from error

        return lock_of

    def refusal(
        self, request: HttpRequest, error: LockTaken | NodesUnavailable
    ) -> HttpResponse | None:
        """The answer to a request that did not get the lock; None: it runs without."""
        if isinstance(error, LockTaken):
            return busy(request, self.status, error.retry_after)
        if self.fail_open:
            told = log_fields(self.lock.alias, error.name)
            logger.warning("the view runs without its lock: %s", error, extra=told)
            return None
        self._log(self.unavailable, logging.ERROR, "a request is answered 503", error)
        return unavailable(request)

    def _log(self, seldom: Seldom, level: int, text: str, error: Exception) -> None:
        """Write one line in a minute: visitors decide how many there would be."""
        left_out = seldom.count()
        if left_out is None:
            return
        name = getattr(error, "name", self.lock.names)
        told = log_fields(self.lock.alias, name, left_out=left_out)
        more = f" (and {left_out} more since the last such line)" if left_out else ""
        logger.log(level, "%s: %s%s", text, error, more, extra=told)

"""``{% load redlock %}{% redlock_state "export:42" as export %}``: show a lock on a page."""

from __future__ import annotations

from django import template

from django_redlock import conf
from django_redlock.core.names import check_names, check_no_fields
from django_redlock.inspection.survey import LockState, state_of, survey

register = template.Library()


@register.simple_tag
def redlock_state(name: str, *, alias: str = "default") -> LockState:
    """Ask the nodes of an alias about one lock; without a majority it is ``unclear``.

    Raises:
        TemplateSyntaxError: no lock can have this name.
        ImproperlyConfigured: there is no such alias, or its settings are wrong.
        SynchronousOnlyOperation: an event loop runs in this thread; this call would block it.
    """
    try:
        names = check_names([name])
        check_no_fields(names)
    except (TypeError, ValueError) as error:
        msg = f"redlock_state: {error}"
        raise template.TemplateSyntaxError(msg) from None
    backend = conf.backend(alias)
    backend.refuse_event_loop()
    (lock,) = survey(backend, names, patience=0).locks
    return state_of(lock)

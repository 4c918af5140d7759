"""``{% load redlock %}{% redlock_state "export:42" as export %}``: show a lock on a page."""

from __future__ import annotations

import re
from typing import Final

from django import template
from django.utils.html import format_html, format_html_join

from django_redlock import conf
from django_redlock.core.names import check_names, check_no_fields
from django_redlock.inspection.survey import LockState, state_of, survey

register = template.Library()
WORD: Final = 20  # characters that stand in one line
PIECES: Final = re.compile(rf"\(*[^:/._()@,~+-]{{1,{WORD}}}[:/._)@,~+-]*|[:/._()@,~+-]+")


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


@register.filter
def breakable(name: str) -> str:
    """Let a long name be broken behind its marks, and inside of a word only if that is long."""
    if len(name) <= WORD:
        return name
    first, *others = PIECES.findall(name)
    return format_html("{}{}", first, format_html_join("", "<wbr>{}", ((each,) for each in others)))

"""``{% load idempotency %}{% idempotency_key %}``: a key for a form, which can send no header.

A key belongs to a client: a user, or a session. So the tag starts the session of a visitor who has
none, as a login does.
"""

from __future__ import annotations

import uuid
from contextlib import suppress
from typing import Any

from django import template
from django.core.exceptions import SynchronousOnlyOperation
from django.utils.html import format_html
from django.utils.safestring import SafeString

from django_redlock.idempotency.keys import FIELD
from django_redlock.views.keys import client

register = template.Library()


@register.simple_tag(takes_context=True)
def idempotency_key(context: Any) -> SafeString:
    """Return a hidden field with a new key: each page that shows the form is a new request."""
    request = getattr(context, "request", None) or context.get("request")
    session: Any = getattr(request, "session", None)
    # An event loop cannot look up the session of a cookie; who comes without a cookie has none.
    with suppress(SynchronousOnlyOperation):
        has_user = session is None or client(request).startswith("user:")
        if not has_user and not session.keys():
            session[FIELD] = True  # SessionMiddleware saves what is not empty, and sets its cookie
    return format_html('<input type="hidden" name="{}" value="{}">', FIELD, uuid.uuid4())

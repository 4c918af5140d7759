"""``{% load idempotency %}{% idempotency_key %}``: a key for a form, which can send no header."""

from __future__ import annotations

import uuid

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from django_redlock.idempotency.keys import FIELD

register = template.Library()


@register.simple_tag
def idempotency_key() -> SafeString:
    """Return a hidden field with a new key: each page that shows the form is a new request."""
    return format_html('<input type="hidden" name="{}" value="{}">', FIELD, uuid.uuid4())

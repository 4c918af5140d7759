"""Who is visiting."""

import uuid

from django.http import HttpRequest


def visitor_of(request: HttpRequest) -> str:
    """Return by what the site knows a visitor again; the session begins with it.

    It is part of the name of a lock, so it is short.
    """
    return str(request.session.setdefault("visitor", uuid.uuid4().hex[:12]))

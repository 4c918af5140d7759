"""A middleware for sites on SQLite."""

from collections.abc import Callable

from django.db import connection
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse

Respond = Callable[[HttpRequest], HttpResponseBase]


def admin_writes_first(get_response: Respond) -> Respond:
    """Begin the transaction of an admin form as one that writes.

    The admin reads and then writes. SQLite refuses the write ("database is locked") if another
    process has written since that read, so such a transaction must wait for its turn before it
    reads. The site's own views write first, and need not wait while they read.
    """

    def respond(request: HttpRequest) -> HttpResponseBase:
        admin = request.path.startswith(reverse("admin:index"))
        if request.method != "POST" or not admin or connection.vendor != "sqlite":
            return get_response(request)
        connection.ensure_connection()  # it sets the mode that the settings say
        before = connection.transaction_mode  # type: ignore[attr-defined]
        connection.transaction_mode = "IMMEDIATE"  # type: ignore[attr-defined]
        try:
            return get_response(request)
        finally:
            connection.transaction_mode = before  # type: ignore[attr-defined]

    return respond

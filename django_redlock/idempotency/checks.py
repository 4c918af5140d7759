"""System checks of views under ``@idempotent``. They contact no node and no database."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, Final

from django.apps import apps
from django.conf import settings
from django.core import checks

from django_redlock.checks import documented
from django_redlock.views.lock import view_locks

from .decorator import IdempotentLock

W025: Final = "django_redlock.W025"  # a session that is another one with each request
W026: Final = "django_redlock.W026"  # the app of idempotency without that of the package
W029: Final = "django_redlock.W029"  # @idempotent above a check of the user
FLEETING: Final = {
    "django.contrib.sessions.backends.signed_cookies": "its key changes whenever it is written",
    "django.contrib.sessions.backends.cache": "a cache may forget it at any time",
}


def check_idempotent() -> list[checks.CheckMessage]:
    """Report W026, and W025 and W029 of the views that have been imported."""
    found = sorted(
        (each for each in view_locks if isinstance(each, IdempotentLock)),
        key=lambda each: each.line,
    )
    of_views = (message for lock in found for message in _of_view(lock))
    return documented(chain(_of_apps(), of_views))


def _of_apps() -> Iterator[checks.CheckMessage]:
    if not apps.is_installed("django_redlock"):
        yield checks.Warning(
            "'django_redlock.idempotency' is in INSTALLED_APPS, and 'django_redlock' is not: no "
            "other check of the package runs, and its commands and its page in the admin are "
            "missing.",
            hint="Add 'django_redlock' to INSTALLED_APPS.",
            id=W026,
        )


def _of_view(lock: IdempotentLock) -> Iterator[checks.CheckMessage]:
    where = f"The idempotent of {lock.line}"
    session: Any = getattr(settings, "SESSION_ENGINE", "")
    if lock.by_session and session in FLEETING and apps.is_installed("django.contrib.sessions"):
        yield checks.Warning(
            f"{where} tells anonymous clients apart by their session, and "
            f"{FLEETING[session]}: a repetition may be taken for the request of somebody else, "
            "and its work be done again.",
            hint="Give scope=, demand a login, or set SESSION_ENGINE to "
            "'django.contrib.sessions.backends.cached_db'.",
            id=W025,
        )
    if lock.is_above_login:
        yield checks.Warning(
            f"{where} stands above login_required, permission_required or user_passes_test: a "
            "request is answered from the record, or 400, before anybody looks at its user, and "
            "the redirect to the login is stored as the answer.",
            hint="Write @login_required above @idempotent.",
            id=W029,
        )

"""The app's configuration for ``INSTALLED_APPS``."""

from __future__ import annotations

from typing import Any

from django.apps import AppConfig
from django.core import checks as registry
from django.utils.translation import gettext_lazy


class IdempotencyConfig(AppConfig):
    """``"django_redlock.idempotency"`` in ``INSTALLED_APPS``: a table, its page, a command."""

    name = "django_redlock.idempotency"
    label = "redlock_idempotency"
    verbose_name = gettext_lazy("Idempotent requests")

    def ready(self) -> None:
        """Register the system checks."""
        registry.register(check_idempotent, registry.Tags.urls)


def check_idempotent(**_: Any) -> list[registry.CheckMessage]:
    """Report what is wrong with ``@idempotent``; imported for a check, not at each start."""
    from .checks import check_idempotent

    return check_idempotent()

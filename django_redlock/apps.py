"""The app's entry for ``INSTALLED_APPS``."""

from __future__ import annotations

from django.apps import AppConfig


class RedlockConfig(AppConfig):
    """``"django_redlock"`` in ``INSTALLED_APPS``: the commands and the system checks."""

    name = "django_redlock"
    verbose_name = "Redlock"

    def ready(self) -> None:
        """Register the system checks."""
        from . import checks  # noqa: F401 - registers by being imported

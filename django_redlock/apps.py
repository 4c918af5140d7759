"""The app's entry for ``INSTALLED_APPS``."""

from __future__ import annotations

from importlib.util import find_spec

from django.apps import AppConfig


class RedlockConfig(AppConfig):
    """``"django_redlock"`` in ``INSTALLED_APPS``: the commands, the system checks, the metrics."""

    name = "django_redlock"
    verbose_name = "Redlock"

    def ready(self) -> None:
        """Register the system checks; measure, where OpenTelemetry is installed."""
        from . import checks  # noqa: F401 - registers by being imported

        if find_spec("opentelemetry") and find_spec("opentelemetry.metrics"):
            from . import otel

            otel.instrument()

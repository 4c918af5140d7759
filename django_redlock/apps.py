"""The app's configuration for ``INSTALLED_APPS``."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from django.apps import AppConfig
from django.core import checks as registry


class RedlockConfig(AppConfig):
    """``"django_redlock"`` in ``INSTALLED_APPS``: the commands, the system checks, the metrics."""

    name = "django_redlock"
    verbose_name = "Redlock"

    def ready(self) -> None:
        """Register the system checks; start the metrics if OpenTelemetry is installed."""
        from . import checks  # noqa: F401 - registers by being imported

        registry.register(check_views, registry.Tags.urls)
        if find_spec("opentelemetry") and find_spec("opentelemetry.metrics"):
            from . import otel

            otel.instrument()


def check_views(**_: Any) -> list[registry.CheckMessage]:
    """Report what is wrong with ``@single_flight``; imported for a check, not at each start."""
    from .views import checks

    return checks.check_views()

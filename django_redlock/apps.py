"""The app's configuration for ``INSTALLED_APPS``."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Any

from django.apps import AppConfig
from django.core import checks as registry
from django.core import signals


class RedlockConfig(AppConfig):
    """``"django_redlock"`` in ``INSTALLED_APPS``: the commands, the system checks, the metrics."""

    name = "django_redlock"
    verbose_name = "Redlock"

    def ready(self) -> None:
        """Register system checks and the signal; start the metrics if there is OpenTelemetry."""
        from . import checks  # noqa: F401 - registers by being imported

        registry.register(check_views, registry.Tags.urls)
        registry.register(check_tasks)
        signals.request_started.connect(note_request)  # its lock is not ours to make anew
        if find_spec("opentelemetry") and find_spec("opentelemetry.metrics"):
            from . import otel

            otel.instrument()


def note_request(**about: Any) -> None:
    """Note that a request has started; imported for a request, not at each start."""
    from .views import begun

    begun.note_request(**about)


def check_views(**_: Any) -> list[registry.CheckMessage]:
    """Report what is wrong with ``@single_flight``; imported for a check, not at each start."""
    from .views import checks

    return checks.check_views()


def check_tasks(**_: Any) -> list[registry.CheckMessage]:
    """Report what is wrong with ``@locked_task``, in a project that has imported Celery."""
    if "celery" not in sys.modules:
        return []
    from .celery import checks

    return checks.check_tasks()

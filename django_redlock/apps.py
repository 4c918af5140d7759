"""The app's configuration for ``INSTALLED_APPS``."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks as registry
from django.urls import get_resolver


class RedlockConfig(AppConfig):
    """``"django_redlock"`` in ``INSTALLED_APPS``: the commands, the system checks, the metrics."""

    name = "django_redlock"
    verbose_name = "Redlock"

    def ready(self) -> None:
        """Register the system checks; start the metrics if there is OpenTelemetry."""
        from . import checks  # noqa: F401 - registers by being imported

        registry.register(check_views, registry.Tags.urls)
        registry.register(check_tasks)
        if find_spec("opentelemetry") and find_spec("opentelemetry.metrics"):
            from . import otel

            otel.instrument()


def check_views(**_: Any) -> list[registry.CheckMessage]:
    """Report what is wrong with ``@single_flight``; imported for a check, not at each start."""
    from .views import checks

    return checks.check_views()


def check_tasks(**_: Any) -> list[registry.CheckMessage]:
    """Report what is wrong with ``@locked_task``, of Celery and of Django's own tasks.

    And where a name that a task or a view locks has several limits.
    """
    with suppress(Exception):  # Django's own check raises it
        _import_views()
    from . import checks

    found: list[registry.CheckMessage] = []
    known = list(checks.known_locks())
    if "celery" in sys.modules or _has_celery_app():
        from .celery import checks as of_celery

        found += of_celery.check_tasks()
        known += of_celery.known_locks()
    if f"{__package__}.tasks.task" in sys.modules:  # a module of the project has imported it
        from .tasks import checks as of_django

        found += of_django.check_tasks()
        known += of_django.known_locks()
    if f"{__package__}.views.lock" in sys.modules:
        from .views import checks as of_views

        known += of_views.known_locks()
    return [*found, *checks.check_limits(known)]


def _import_views() -> None:
    """Import the URLs, whatever check comes first: a view may be the first to import a task."""
    if getattr(settings, "ROOT_URLCONF", None):
        _ = get_resolver().url_patterns


def _has_celery_app() -> bool:
    """Tell whether the application is where Celery's documentation puts it.

    A project whose tasks beat alone sends need not import it in other processes.
    """
    package = (settings.SETTINGS_MODULE or "").partition(".")[0]
    with suppress(ImportError, ValueError):  # settings that are no module, or not in a package
        return bool(find_spec("celery") and package and find_spec(f"{package}.celery"))
    return False

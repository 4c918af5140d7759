"""django-redlock in an event loop with the settings of an application that has thousands of locks.

And its yardstick, sockets by hand, with the same settings.

Told {"uvloop": whether that is the loop, "gc": whether what exists after the start is frozen and
the collector's thresholds are ``THRESHOLDS``}. The third setting is the Python that runs it.
"""

from __future__ import annotations

import asyncio
import gc
import os
import platform
from collections.abc import Callable
from importlib.metadata import version
from typing import Final

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")

import django
from django.test import override_settings

import django_redlock

from . import task_sockets
from .ours import by_tasks
from .serve import serve, settings

THRESHOLDS: Final = (20_000, 20, 20)


def main() -> None:
    """Serve both styles."""
    told = settings()
    django.setup()
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    if told["uvloop"]:
        import uvloop

        factory = uvloop.new_event_loop
    if told["gc"]:
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
    with override_settings(REDLOCK={"default": told["alias"] | {"NODES": told["urls"]}}):
        sockets = task_sockets.by_tasks(told["urls"], "bench:", told["ttl"])
        serve(_about(factory), {"asyncio": by_tasks(), "sockets": sockets}, factory)


def _about(factory: Callable[[], asyncio.AbstractEventLoop] | None) -> str:
    """What is in force."""
    parts = [django_redlock.__version__, f"Python {platform.python_version()}"]
    if factory is not None:
        parts.append(f"{factory.__module__} {version(factory.__module__)}")
    if gc.get_freeze_count() and gc.get_threshold() == THRESHOLDS:
        parts.append("gc")
    return ", ".join(parts)


if __name__ == "__main__":
    main()

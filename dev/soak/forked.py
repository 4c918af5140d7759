"""Processes that are forked from one which has imported the package: fifty start in seconds."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any, Final

# What takes long to import; the rest is imported by each process.
_LARGE: Final = (
    *("django.core.management", "django.db.models", "django.urls", "django.views.generic"),
    *("django_redlock.conf", "django_redlock.nodes.group", "django_redlock.transactions", "redis"),
)
_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([*_LARGE])


def start(work: Callable[..., object], *args: Any) -> BaseProcess:
    """Start a process that calls a function of a module; it ends with this process."""
    process = _FORKS.Process(target=work, args=args, daemon=True)
    process.start()
    return process

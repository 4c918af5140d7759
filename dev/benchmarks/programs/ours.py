"""django-redlock of any revision, through nothing but its public API.

Told {"alias": its settings, "home": where the package must be, in a comparison of revisions,
"uvloop" and "gc": whether they are in force}. PYTHONPATH begins with the folder of the revision;
the benchmark is always that of the working tree. A style that the revision lacks is not offered.
"""

from __future__ import annotations

import asyncio
import gc
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import django
from django.conf import settings as django_settings
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

import django_redlock
from django_redlock import redlock

from .conversation import Stamps, Style, call, serve, settings

THRESHOLDS: Final = (20_000, 20, 20)  # of the collector, as the page about asyncio has them


class Client:
    """Its ttl is in the settings."""

    def acquire(self, name: str, _: float) -> Any:
        return redlock(name).acquire()

    def wait(self, name: str, _: float, seconds: float) -> Any:
        return redlock(name).acquire(wait=seconds)

    def release(self, lease: Any) -> None:
        lease.release()


class AsyncClient:
    """The same with coroutines."""

    async def acquire(self, name: str, _: float) -> Any:
        return await redlock(name).aacquire()

    async def wait(self, name: str, _: float, seconds: float) -> Any:
        return await redlock(name).aacquire(wait=seconds)

    async def release(self, lease: Any) -> None:
        await lease.arelease()


def main() -> None:
    """Serve all styles that there are."""
    told = settings()
    home = Path(django_redlock.__file__).resolve().parents[1]
    if home != Path(told.get("home", home)).resolve():
        raise ImportError("another revision was imported than was asked for")
    django_settings.configure(
        SECRET_KEY="not a secret",  # noqa: S106 - it protects nothing
        USE_TZ=True,
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_redlock"],
        REDLOCK={"default": told["alias"]},
    )
    django.setup()
    factory: Callable[[], asyncio.AbstractEventLoop] | None = None
    about = [django_redlock.__version__, f"Python {platform.python_version()}"]
    if told.get("uvloop"):
        import uvloop

        factory = uvloop.new_event_loop
        about.append(f"uvloop {version('uvloop')}")
    if told.get("gc"):
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        about.append("gc")
    more: dict[str, Style] = {
        "with": call(_block),
        "decorated": call(_decorated()),
        "extend": _extending,
    }
    clients: dict[str, Any] = {"threads": Client()}
    if hasattr(redlock("bench"), "aacquire"):
        clients["asyncio"], more["async with"] = AsyncClient(), _async_block
    with suppress(ImportError):
        more["@single_flight"] = call(_view())
    with suppress(ImportError):  # of Celery
        more["@locked_task"] = call(_task())
    serve(", ".join(about), clients, more, factory)


def _block() -> None:
    with redlock("bench"):
        pass


async def _async_block(name: str) -> Stamps:
    began = time.perf_counter_ns()
    async with redlock(name):
        pass
    ended = time.perf_counter_ns()
    return began, ended, ended


def _decorated() -> Callable[[], object]:
    @redlock("bench:decorated")
    def function() -> None:
        pass

    return function


def _extending(name: str) -> Stamps:
    with redlock(name) as lease:
        began = time.perf_counter_ns()
        lease.extend()
        ended = time.perf_counter_ns()
    return began, ended, ended


def _view() -> Callable[[], object]:
    """A request to an empty view under the decorator."""
    from django_redlock.views import single_flight

    @single_flight
    def view(_: HttpRequest) -> HttpResponse:
        return response

    request, response = RequestFactory().post("/bench"), HttpResponse()
    return lambda: view(request)


def _task() -> Callable[[], object]:
    """A run of an empty task under the decorator."""
    from django_redlock.celery import locked_task

    @locked_task
    def task(_: int) -> None:
        pass

    return lambda: task(1)


if __name__ == "__main__":
    main()

"""django-redlock, and beside it in the same process the sockets that it is compared with."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "benchmarks.settings")

import django
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory, override_settings

import django_redlock
from django_redlock import redlock

from . import waiting_sockets
from .crowd import Crowd
from .serve import Asyncio, Blocking, Call, Style, serve, settings
from .sockets import PlainSockets, Sockets, ping


def main() -> None:
    """Serve all styles."""
    told = settings()
    django.setup()
    sockets = Sockets(told["urls"], "bench:", told["ttl"])
    plain = PlainSockets(told["urls"], told["ttl"])
    styles: dict[str, Style] = {
        "sockets": Blocking(sockets.acquire, sockets.release),
        "plain sockets": Blocking(plain.acquire, plain.release),
        "ping": Call(ping(told["urls"][0])),
        "threads": Blocking(lambda name: redlock(name).acquire(), lambda lease: lease.release()),
        "with": Call(_block),
        "@single_flight": Call(_view()),
        "@locked_task": Call(_task()),
        "crowd": Crowd(
            lambda name, seconds: redlock(name).acquire(wait=seconds), lambda lease: lease.release()
        ),
    }
    styles["crowd by sockets"] = waiting_sockets.crowd(told["urls"], "bench:", told["ttl"])
    if hasattr(redlock("bench"), "aacquire"):
        styles["asyncio"], styles["crowd of tasks"] = by_tasks(), _crowd_of_tasks()
    with override_settings(REDLOCK={"default": told["alias"] | {"NODES": told["urls"]}}):
        serve(django_redlock.__version__, styles)


def by_tasks() -> Asyncio:
    """Acquire and release with coroutines."""
    template: Any = redlock
    return Asyncio(lambda name: template(name).aacquire(), lambda lease: lease.arelease())


def _crowd_of_tasks() -> Crowd:
    """Of each process one task at a time, in a loop of its own, which is made after the fork."""
    template: Any = redlock
    runner = asyncio.Runner()

    def done(work: Coroutine[Any, Any, Any]) -> Any:
        return runner.get_loop().run_until_complete(work)

    return Crowd(
        lambda name, seconds: done(template(name).aacquire(wait=seconds)),
        lambda lease: done(lease.arelease()),
    )


def _block() -> None:
    with redlock("bench"):
        pass


def _view() -> Callable[[], object]:
    """A request to an empty view under the decorator."""
    from django_redlock.views.decorator import single_flight

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

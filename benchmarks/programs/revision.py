"""django-redlock of some revision, through nothing but its public API.

PYTHONPATH begins with the folder of the revision; the other modules of the benchmark are always
those of the working tree. A style that the revision does not have yet is not offered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import django
from django.conf import settings as django_settings
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

import django_redlock
from django_redlock import redlock

from .serve import AsyncCall, Blocking, Call, Own, Style, Within, serve, settings
from .waiters import Waiters

WAITERS = 8


def main() -> None:
    """Serve all styles that there are."""
    told = settings()
    home = Path(django_redlock.__file__).resolve().parents[1]
    if home != Path(told["home"]).resolve():
        raise ImportError("Error: another revision was imported than was asked for")
    django_settings.configure(
        SECRET_KEY="not a secret",  # noqa: S106 - it protects nothing
        USE_TZ=True,
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        INSTALLED_APPS=[
            "django.contrib.contenttypes",
            "django.contrib.auth",
            "django_redlock",
        ],
        REDLOCK={"default": told["alias"]},
    )
    django.setup()
    # Before anything of the library has run: what waits has no connection of ours.
    styles: dict[str, Style] = {}
    if told["waiters"]:
        styles["waiters"] = Own(Waiters(WAITERS, lambda name, wait: redlock(name, wait=wait)).block)
    styles |= {
        "with": Call(_block),
        "threads": Blocking(lambda name: redlock(name).acquire(), lambda lease: lease.release()),
        "decorated": Call(_decorated()),
        "extend": Within(_extending),
    }
    if hasattr(redlock("bench"), "__aenter__"):
        styles["async with"] = AsyncCall(_async_block)
    if view := _view():
        styles["view"] = Call(view)
    serve(django_redlock.__version__, styles)


def _block() -> None:
    with redlock("bench"):
        pass


async def _async_block(name: str) -> None:
    async with redlock(name):
        pass


def _decorated() -> Callable[[], object]:
    @redlock("bench:decorated")
    def function() -> None:
        pass

    return function


@contextmanager
def _extending(name: str) -> Iterator[Callable[[], object]]:
    with redlock(name) as lease:
        yield lease.extend


def _view() -> Callable[[], object] | None:
    """A request to an empty view under the decorator."""
    try:
        from django_redlock.views import single_flight
    except ImportError:
        return None

    @single_flight
    def view(_: HttpRequest) -> HttpResponse:
        return response

    request, response = RequestFactory().post("/bench"), HttpResponse()
    return lambda: view(request)


if __name__ == "__main__":
    main()

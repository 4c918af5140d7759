"""Locked views and Django's cache: a refusal is never stored, and what is stored holds no lock."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.http import HttpResponse
from django.template import engines
from django.template.response import TemplateResponse
from django.test import override_settings
from django.urls import path
from django.utils.cache import get_max_age
from django.views.decorators.cache import cache_page

from django_redlock import conf, redlock
from django_redlock.views import single_flight

from . import asking
from .asking import OURS, is_free

NUMBERS = itertools.count()
SITE = (
    "django.middleware.cache.UpdateCacheMiddleware",
    "django.middleware.cache.FetchFromCacheMiddleware",
    OURS,
)
runs: list[str] = []  # of the views' bodies


@pytest.fixture(autouse=True)
def _empty() -> Iterator[None]:
    runs.clear()
    where = f"cached-{next(NUMBERS)}"
    backend = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "LOCATION": where}
    with override_settings(CACHES={"default": backend}):
        yield


def ran() -> str:
    """Count a run."""
    runs.append("ran")
    return f"run {len(runs)}"


def page(request: Any) -> HttpResponse:
    """A page that is there at once."""
    return HttpResponse(ran())


def template(request: Any) -> TemplateResponse:
    """A page that is rendered later."""
    return TemplateResponse(request, engines["django"].from_string("{{ ran }}"), {"ran": ran})


def friendly(request: Any, refusal: Any) -> HttpResponse:
    """An answer of a site's own, with a status that Django's cache stores."""
    return HttpResponse("busy")


def within(request: Any) -> HttpResponse:
    """A view that takes the lock itself."""
    with redlock("key"):
        return page(request)


locked = single_flight("key", methods=["GET"])
answering = single_flight("key", methods=["GET"], on_refused=friendly)
urlpatterns = [
    path("above/", cache_page(60)(locked(page))),
    path("below/", locked(cache_page(60)(page))),
    path("above-template/", cache_page(60)(locked(template))),
    path("below-template/", locked(cache_page(60)(template))),
    path("friendly/", cache_page(60)(answering(page))),
    path("plain/", locked(page)),
    path("template/", locked(template)),
    path("plain-friendly/", answering(page)),
    path("within/", within),
]


ask = functools.partial(asking.ask, __name__, method="get")

PER_VIEW = ("/above/", "/below/", "/above-template/", "/below-template/")
PER_SITE = ("/plain/", "/template/", "/within/")


@pytest.mark.parametrize(
    ("address", "middleware"),
    [*((address, ()) for address in PER_VIEW), *((address, SITE) for address in PER_SITE)],
)
def test_a_refusal_is_not_stored(address, middleware):
    """Who comes after it gets the page; no page that is stored, and none made of it, has a lock."""
    with redlock("key"):
        refused = ask(address, *middleware)
    assert refused.status_code == 409
    assert refused.headers["Cache-Control"] == "no-store"
    assert get_max_age(refused) is None
    assert "Expires" not in refused.headers
    group: Any = conf.backend("default").group
    group.down = {0, 1, 2}
    assert ask(address, *middleware).status_code == 503
    group.down = set()
    for _ in range(3):
        done = ask(address, *middleware)
        assert (done.status_code, done.content) == (200, b"run 1")
        assert is_free("key")
    cache.clear()
    assert ask(address, *middleware).content == b"run 2"


@pytest.mark.parametrize(
    ("address", "middleware"), [("/friendly/", ()), ("/plain-friendly/", SITE)]
)
def test_an_answer_of_a_sites_own_is_not_stored(address, middleware):
    """Not even with the status 200: some releases of Django store it if it is not `private`."""
    with redlock("key"):
        refused = ask(address, *middleware)
    assert (refused.status_code, refused.content) == (200, b"busy")
    assert refused.headers["Cache-Control"] == "no-store, private"
    assert get_max_age(refused) is None
    assert ask(address, *middleware).content == b"run 1"

"""The system checks of views: E003 and W021."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from io import StringIO
from typing import Any
from weakref import WeakSet

import pytest
from django.core.checks import ERROR, WARNING, CheckMessage
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.test import override_settings
from django.utils.decorators import method_decorator
from django.views.generic import View

from django_redlock import checks as system_checks
from django_redlock.apps import check_views
from django_redlock.checks import E003
from django_redlock.views import RedlockMiddleware, checks, lock, rest_framework, single_flight
from tests.simulation.mutants import Edit, with_edits
from tests.support.addresses import explained

from .test_rest_framework import Base


class Busy(RedlockMiddleware):
    on_refused = "shop/none.html"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No view of another test; an alias in memory."""
    made: Any = WeakSet()
    for module in (checks, lock):
        monkeypatch.setattr(module, "view_locks", made)
    with override_settings(REDLOCK={"default": {"NODES": ["memory://views"]}}):
        yield


def view(request: Any) -> HttpResponse:
    """Any view."""
    return HttpResponse("done")


def told() -> list[CheckMessage]:
    """What is reported; each hint has an address."""
    found = check_views(app_configs=None)
    assert all(explained(each.hint) for each in found)
    return found


def test_nothing_to_report():
    """Options that the alias allows, and a template that is there."""
    kept = [single_flight("a", ttl=60, min_hold=60, on_refused="admin/index.html")(view)]
    assert told() == []
    assert kept


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"alias": "payments"}, "has no alias 'payments'; it has: 'default'"),
        ({"ttl": 61}, "ttl=61 is above MAX_TTL"),
        ({"min_hold": 61}, "min_hold=61 is above MAX_TTL"),
        ({"ttl": 0.001}, "too short"),
    ],
)
def test_e003_a_lock_that_no_request_can_have(given, problem):
    """django_redlock.E003: of functions, classes and views of REST framework, by their line."""
    function = single_flight("a", **given)(view)
    every = [function]
    every.append(method_decorator(single_flight(**given), name="dispatch")(type("V", (View,), {})))
    every.append(rest_framework.single_flight("c", **given)(type("R", (Base,), {})))
    found = told()
    assert len(found) == len(every)
    for message in found:
        assert (message.id, message.level) == (E003, ERROR)
        assert problem in message.msg
        assert f"{__name__}, line " in message.msg
    assert len({message.msg for message in found}) == len(every)


def test_what_is_wrong_with_redlock_is_told_by_its_own_checks():
    """No view is blamed for settings that are missing, or wrong."""
    kept = [single_flight("a", ttl=600)(view)]
    settings: tuple[Any, ...] = ({}, None, {"default": {"NODES": []}})
    for setting in settings:
        with override_settings(REDLOCK=setting):
            assert told() == []
    assert [each.id for each in told()] == [E003]
    assert kept


@pytest.mark.parametrize("text", [None, "{% if %}"])
def test_w021_a_template_that_cannot_be_loaded(text, tmp_path):
    """django_redlock.W021: of a view or a middleware, and whether it is missing or wrong."""
    kept = [single_flight("a", on_refused="shop/none.html")(view)]
    (tmp_path / "shop").mkdir()
    if text is not None:
        (tmp_path / "shop/none.html").write_text(text)
    engine = {"BACKEND": "django.template.backends.django.DjangoTemplates", "DIRS": [tmp_path]}
    names = [f"{__name__}.Busy", "django_redlock.views.RedlockMiddleware", "nowhere.Middleware"]
    with override_settings(TEMPLATES=[engine], MIDDLEWARE=names):
        first, second = told()
    (tmp_path / "shop/none.html").write_text("{{ refusal.detail }}")
    with override_settings(
        TEMPLATES=[engine], MIDDLEWARE=names
    ):  # loaders remember what is missing
        assert told() == []
    for message in (first, second):
        assert (message.id, message.level) == (checks.W021, WARNING)
        assert "'shop/none.html'" in message.msg
    assert "single_flight of" in first.msg
    assert f"middleware {__name__}.Busy" in second.msg
    assert kept


@pytest.mark.django_db  # Django 6.1 asks the databases, too
def test_the_command_imports_the_views(tmp_path, monkeypatch):
    """``manage.py check`` finds a view that only the URLs import; without URLs nothing is asked."""
    name = "views_of_a_site_that_is_checked"
    lines = [
        "from django.urls import path",
        "from django_redlock.views import single_flight",
        "@single_flight('a', ttl=600)",
        "def late(request): ...",
        "urlpatterns = [path('', late)]",
    ]
    (tmp_path / f"{name}.py").write_text("\n".join(lines))
    monkeypatch.syspath_prepend(tmp_path)
    with override_settings(ROOT_URLCONF=name), pytest.raises(CommandError) as error:
        call_command("check", stdout=StringIO(), stderr=StringIO())
    assert f"{E003}) The single_flight of {name}, line 3 answers each" in str(error.value)
    with override_settings(ROOT_URLCONF=None):
        assert [each.id for each in told()] == [E003]


@pytest.mark.slow
def test_a_view_that_is_gone_is_not_checked():
    """The list of views keeps none alive."""
    single_flight("a", ttl=600)(view)
    gc.collect()
    assert told() == []


def missing() -> None:
    """W021 of a template that is nowhere."""
    kept = [single_flight("a", on_refused="shop/none.html")(view)]
    assert [each.id for each in told()] == [checks.W021]
    assert kept


@pytest.mark.parametrize(
    ("edit", "caught_by"),
    [
        (
            Edit(
                system_checks, "_problem", "backend.check_min_hold(options.min_hold or 0.0)", "pass"
            ),
            lambda: test_e003_a_lock_that_no_request_can_have({"min_hold": 61}, "min_hold"),
        ),
        (
            Edit(system_checks, "_problem", "known and alias not", "not known and alias not"),
            lambda: test_e003_a_lock_that_no_request_can_have({"alias": "b"}, "alias 'b'"),
        ),
        (
            Edit(checks, "_of_template", "TemplateDoesNotExist, ", ""),
            missing,
        ),
    ],
)
def test_a_mistake_of_a_check_is_noticed(edit, caught_by):
    """The tests above can fail."""
    with with_edits(edit), pytest.raises(Exception):  # noqa: B017, PT011 - each in its own way
        caught_by()

"""What stands around the records: the command, the admin's list, the tag of forms, the checks."""

from __future__ import annotations

import io
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth.decorators import (
    login_not_required,
    login_required,
    permission_required,
    user_passes_test,
)
from django.contrib.auth.models import Permission, User
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.test import Client, override_settings
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.cache import never_cache

from django_redlock.idempotency import idempotent
from django_redlock.idempotency.apps import check_idempotent
from django_redlock.idempotency.models import Record
from django_redlock.views import single_flight
from django_redlock.views.checks import check_views
from tests.views.asking import urls

from .shop import SESSIONS, Shop, anybody, order, orders_made, records

pytestmark = pytest.mark.django_db


# -- the command -----------------------------------------------------------------------------------


def clear(**options: Any) -> str:
    """What the command prints."""
    out = io.StringIO()
    call_command("redlock_clear_idempotency", stdout=out, **options)
    return out.getvalue()


def test_expired_records_are_deleted(django_assert_num_queries):
    """In batches; the others stay."""
    shop = Shop(anybody(order))
    for number in range(5):
        shop.send(f"key{number}")
    assert clear() == "No record has expired.\n"
    Record.objects.exclude(key="key3").update(expires=timezone.now() - timedelta(seconds=1))
    with django_assert_num_queries(5):
        assert clear(batch=3) == "4 records are deleted.\n"
    assert [each.key for each in records()] == ["key3"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"database": "elsewhere"}, "--database"),
        ({"batch": 0}, "--batch must be"),
    ],
)
def test_wrong_options_of_the_command(options, text):
    """Each is told."""
    with pytest.raises(CommandError, match=text):
        clear(**options)


# -- the admin -------------------------------------------------------------------------------------


def viewer(*permissions: str) -> Client:
    """A client of the admin, logged in by a user with these permissions."""
    user = User.objects.create(username="ann", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    client = Client()
    client.force_login(user)
    return client


def test_who_sees_what():
    """The list, and one record; its body only by a permission of its own."""
    Shop(anybody(lambda _: HttpResponse("<b>4111 1111</b>"))).send()
    (record,) = records()
    listed = reverse("admin:redlock_idempotency_record_changelist")
    shown = reverse("admin:redlock_idempotency_record_change", args=[record.pk])
    curious = viewer("view_record")
    assert record.key in curious.get(listed, {"q": record.key[:8]}).content.decode()
    for lookup in ("body", "body__startswith", "body__regex", "body__gt", "body__isnull"):
        assert curious.get(listed, {lookup: "4111"}).status_code == 400  # or it could be guessed
    page = curious.get(shown).content.decode()
    assert "Content-Type" in page
    assert "4111" not in page
    User.objects.all().delete()
    page = viewer("view_record", "view_body").get(shown).content.decode()
    assert "&lt;b&gt;4111 1111&lt;/b&gt;" in page
    User.objects.all().delete()
    assert viewer("view_body").get(shown).status_code == 403


def test_nothing_can_be_changed():
    """Not even by a superuser."""
    Shop(anybody(lambda _: HttpResponse(b"\xff"))).send()
    (record,) = records()
    assert str(record) == f"anybody {record.key}"
    client = Client()
    client.force_login(User.objects.create_superuser("root"))
    shown = reverse("admin:redlock_idempotency_record_change", args=[record.pk])
    assert "1 bytes, which are no text" in client.get(shown).content.decode()
    assert client.post(shown, {"key": "x"}).status_code == 403
    added = reverse("admin:redlock_idempotency_record_add")
    assert client.post(added, {"post": "yes"}).status_code == 403
    listed = reverse("admin:redlock_idempotency_record_changelist")
    of_many = {"action": "delete_selected", "_selected_action": [record.pk], "post": "yes"}
    client.post(listed, of_many)
    assert [each.key for each in records()] == [record.key]


def test_a_record_that_was_stored_by_mistake_is_deleted():
    """By a permission of its own; the page says that the work is done once more then."""
    shop = Shop(anybody(order))
    shop.send()
    (record,) = records()
    deleted = reverse("admin:redlock_idempotency_record_delete", args=[record.pk])
    shown = reverse("admin:redlock_idempotency_record_change", args=[record.pk])
    curious = viewer("view_record", "view_body")
    assert curious.post(deleted, {"post": "yes"}).status_code == 403
    assert deleted not in curious.get(shown).content.decode()
    User.objects.all().delete()
    client = viewer("view_record", "delete_record")
    assert deleted in client.get(shown).content.decode()
    page = client.get(deleted).content.decode()
    assert "the work is done once more" in page
    assert len(records()) == 1
    client.post(deleted, {"post": "yes"})
    assert records() == []
    shop.send()
    assert orders_made() == 2


def test_a_body_that_is_not_stored_and_a_long_one():
    """Both are told."""
    from django_redlock.idempotency.admin import SHOWN, RecordAdmin

    made = RecordAdmin(Record, None)  # type: ignore[arg-type]
    assert made.shown_body(Record()) == "not stored"
    assert made.shown_body(Record(body=b"x" * SHOWN)) == "x" * SHOWN
    assert made.shown_body(Record(body=b"x" * (SHOWN + 1))) == "x" * SHOWN + "…"


# -- checks ----------------------------------------------------------------------------------------


def found(**options: Any) -> list[str]:
    """The ids of what the checks say of a view with these options."""
    view = idempotent(**options)(order)
    with urls():
        said = [each for each in check_idempotent() if __name__ in each.msg]
    del view
    return [str(each.id) for each in said]


def test_a_view_that_is_right():
    """Nothing is said."""
    assert found() == []


@pytest.mark.parametrize(
    ("engine", "scope", "ids"),
    [
        ("signed_cookies", None, ["django_redlock.W025"]),
        ("cache", None, ["django_redlock.W025"]),
        ("cached_db", None, []),
        ("cache", "anybody", []),
    ],
)
def test_sessions_that_are_others_each_time(engine, scope, ids):
    """A client without a user is told from others by its session."""
    with override_settings(SESSION_ENGINE=f"django.contrib.sessions.backends.{engine}"):
        assert found(scope=scope) == ids


async def aorder(request: Any) -> HttpResponse:
    """A view that is a coroutine function."""
    return HttpResponse()


ASKS = [login_required, permission_required("a"), user_passes_test(bool)]


@pytest.mark.parametrize("asks", ASKS, ids=["login", "permission", "test"])
@pytest.mark.parametrize("view", [order, aorder], ids=["def", "async"])
def test_it_stands_below_the_check_of_the_user(asks, view):
    """Above it, a replay asks nobody; the redirect to the login is stored, as the check says."""
    above, other = idempotent(asks(view)), idempotent(never_cache(asks(view)))
    right, passing = asks(idempotent(view)), idempotent(login_not_required(view))
    ids = [each.id for each in check_idempotent() if __name__ in each.msg]
    assert ids == ["django_redlock.W029"] * 2
    del above, other, right, passing


def test_a_login_below_it_is_no_login():
    """What the check says happens: who sends the redirect's key again is not asked to log in."""
    shop = Shop(idempotent(scope="anybody")(login_required(order)), middleware=SESSIONS)
    assert shop.send().status_code == 302
    shop.client.force_login(User.objects.create(username="ann"))
    assert (shop.send().status_code, orders_made()) == (302, 0)
    assert shop.send("new").status_code == 201
    shop.client.logout()
    assert shop.send("new").status_code == 201


def test_the_app_of_the_package_is_missing():
    """Then no other check looks at the settings, and nobody would notice."""
    apps = [each for each in settings.INSTALLED_APPS if each != "django_redlock"]
    with override_settings(INSTALLED_APPS=apps):
        ids = [each.id for each in check_idempotent()]
    assert ids[0] == "django_redlock.W026"
    assert "django_redlock.W026" not in [each.id for each in check_idempotent()]


def test_a_lock_in_its_transaction_is_refused():
    """Below it a lock is free before the COMMIT; above it all is well."""
    for inner in (order, aorder, never_cache(order)):
        with pytest.raises(TypeError, match="write @single_flight above @idempotent"):
            idempotent(scope="x")(single_flight("stock")(inner))
        with pytest.raises(TypeError, match="the lock of idempotent"):
            idempotent(scope="x")(idempotent(scope="x")(inner))
    with Shop(single_flight("stock")(idempotent(scope="x")(order))).site:
        assert not check_views()


def test_without_the_app():
    """The import says what to add."""
    script = (
        "import django; from django.conf import settings\n"
        "settings.configure(INSTALLED_APPS=['django_redlock']); django.setup()\n"
        "from django_redlock.idempotency import idempotent"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert "add 'django_redlock.idempotency' to INSTALLED_APPS" in done.stderr.splitlines()[-1]


def test_what_the_package_has():
    """Names that are there, and none that is not."""
    import django_redlock.idempotency as package

    assert all(getattr(package, name) for name in package.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        package.nothing  # noqa: B018

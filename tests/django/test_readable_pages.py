"""The admin's page of locks can be read by everybody: each thing that it may have to show.

In light and dark, on a desk and a phone, and zoomed; axe-core finds nothing, nothing is cut off,
and the browser has nothing to complain about. What is Django's on the page is not judged here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client, override_settings

from django_redlock import LockTaken, redlock
from django_redlock import admin as page_of_locks
from django_redlock.admin import LockKeyAdmin
from tests.django.test_admin import PAGE
from tests.support.hostile import HOSTILE
from tests.support.looked_at import A, B, finish, group, in_memory, put, queue, stop_clocks
from tests.support.pages.faults import Fault

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow

ID = "8c1f7cf2-3b53-4a0e-9d2b-5b7f0b8f6f5e"
DJANGOS_403 = {"landmark-one-main", "region"}  # rules that Django's page does not follow


def quiet() -> str:
    """No lock is held."""
    return ""


def busy() -> str:
    """Locks of all kinds are held, and tasks wait, run and have finished."""
    nodes = group("default")
    stop_clocks(nodes)
    holder = f"{A}:1795263992757438:worker-1:640"
    put(nodes, "invoice:42", holder, *range(5))
    put(nodes, "import:7", holder, 0, 1)
    put(nodes, "split", holder, 0, 1)
    put(nodes, "split", f"{B}:1795263992757439:worker-2:641", 2, 3)
    put(nodes, "x" * 512, f"{A}:1795263992757438:{'y' * 200}", *range(5))
    put(nodes, "another's", "somebody else's value", *range(5))
    put(nodes, "over", holder, *range(5), seconds=1)
    run = f"{A}:5:worker-1:640(reports.tasks.sync):{ID}"
    put(nodes, "account:7", run, *range(5))
    queue(nodes, "reports.tasks.sync", "account:8", ID, *range(5))
    queue(nodes, "t" * 80, "x" * 400, "i" * 64, 0, 1)
    finish(nodes, "reports.tasks.sync", ID, *range(5))
    return "?finished=on"


def hostile() -> str:
    """Locks, holders and tasks have hostile names."""
    nodes = group("default")
    for name in HOSTILE:
        put(nodes, name, f"{A}:5:{name[:100]}", *range(5))
        queue(nodes, name.replace(":", ""), name, "id", *range(5))
    return "?finished=on"


def ill() -> str:
    """Two nodes cannot be reached."""
    path = busy()
    group("default").down = {1, 3}
    return path


def unknown() -> str:
    """A majority of the nodes cannot be reached."""
    path = busy()
    group("default").down = {0, 1, 3}
    return path


def many() -> str:
    """There are more locks and tasks than a page has."""
    nodes = group("default")
    for number in range(30):
        put(nodes, f"order:{number}", f"{A}:{number}:web-{number % 7}:640", *range(5))
        queue(nodes, "reports.tasks.sync", f"account:{number}", f"id-{number}", *range(5))
    return "?p=2&t=3&q=o"


def nothing_found() -> str:
    """A search finds nothing."""
    return "?q=nothing-has-this-in-its-name-" + "x" * 60


def refused() -> str:
    """A search for what cannot be a name."""
    return "?q=%00" + "x" * 600


def no_such_alias() -> str:
    """An alias that the settings do not have."""
    return "?alias=" + "nope" * 40


STATES = quiet, busy, hostile, ill, unknown, many, nothing_found, refused, no_such_alias
# What is wrong in Django's own parts of an admin page: the rule, the element, and why it stays so.
DJANGOS = {
    ("contrast", "#site-name > a"): "Django's heading: 3.65 : 1, of large text",
    ("contrast", "#nav-filter"): "the placeholder of Django's sidebar: the browser's colour",
}


def cookies_of(user: User) -> dict[str, str]:
    """The cookies of a browser in which this user has logged in."""
    client = Client()
    client.force_login(user)
    return {name: morsel.value for name, morsel in client.cookies.items()}


def ours(found: list[Fault]) -> list[Fault]:
    """The faults that are not of Django's own parts of the page."""
    return [fault for fault in found if (fault.rule, fault.where) not in DJANGOS]


OFTEN = [  # all but one of the states at night
    pytest.param(each, id=each.__name__, marks=() if each is busy else pytest.mark.nightly)
    for each in STATES
]


@pytest.mark.parametrize("state", OFTEN)
def test_everybody_can_read_the_page_of_locks(
    auditor, live_server, monkeypatch, state: Callable[[], str]
):
    """Whatever the page has to show, nobody is kept from reading it."""
    cookies = cookies_of(User.objects.create_superuser("operator"))
    monkeypatch.setattr(LockKeyAdmin, "list_per_page", 10)

    def until_over(page: Page) -> None:
        page.wait_for_selector(".redlock-over")

    with in_memory("default", "payments-" + "p" * 80):
        address = f"{live_server.url}{PAGE}{state()}"
        act = {"act": until_over} if state is busy else {}
        assert ours(auditor.audit(address, cookies=cookies, **act)) == []


@pytest.mark.nightly
@pytest.mark.parametrize("language", ["de", "ja", "zh-hans", "ar"])
def test_everybody_can_read_the_pages_in_other_languages(auditor, live_server, language):
    """German has longer words, Japanese and Chinese break elsewhere, Arabic goes leftwards."""
    cookies = cookies_of(User.objects.create_superuser("operator"))

    def submit(page: Page) -> None:
        page.click("summary")
        page.check("#id_now")
        page.click(".redlock-form input[type=submit]")
        page.wait_for_selector(".errorlist")

    with in_memory("default", "payments"), override_settings(LANGUAGE_CODE=language):
        for state in (ill, unknown):
            assert ours(auditor.audit(f"{live_server.url}{PAGE}{state()}", cookies=cookies)) == []
            group("default").down = set()
        address = f"{live_server.url}{PAGE}lock/?{urlencode({'name': 'invoice:42'})}"
        assert ours(auditor.audit(address, cookies=cookies, act=submit)) == []


@pytest.mark.nightly
def test_everybody_can_read_the_page_of_one_lock(auditor, live_server):
    """What happened to it, the form, also with errors, and a lock of a client that chose its name.

    Somebody who may only look sees no form.
    """
    viewer = User.objects.create(username="viewer", is_staff=True)
    viewer.user_permissions.add(Permission.objects.get(codename="view_lock"))
    cookies = cookies_of(User.objects.create_superuser("operator"))

    def submit(page: Page) -> None:
        page.click("summary")
        page.check("#id_now")
        page.click(".redlock-form input[type=submit]")
        page.wait_for_selector(".errorlist")

    with in_memory("default"), redlock(HOSTILE[0]), redlock("report:42"):
        for name in (HOSTILE[0], "report:42"):
            with pytest.raises(LockTaken):
                redlock(name).acquire()
            address = f"{live_server.url}{PAGE}lock/?{urlencode({'name': name})}"
            assert ours(auditor.audit(address, cookies=cookies)) == []
            assert ours(auditor.audit(address, cookies=cookies, act=submit)) == []
        assert ours(auditor.audit(address, cookies=cookies_of(viewer))) == []
        group("default").down = {1, 3}
        assert ours(auditor.audit(address, cookies=cookies)) == []


@pytest.mark.nightly
def test_everybody_can_read_that_the_session_has_ended(auditor, live_server, monkeypatch):
    """The page that cannot bring itself up to date says so, beside a lock that is held."""
    cookies = cookies_of(User.objects.create_superuser("operator"))
    monkeypatch.setattr(page_of_locks, "REFRESH", 0.2)

    def log_out(page: Page) -> None:
        page.context.clear_cookies()
        page.wait_for_selector("#redlock-stale", state="visible")

    with in_memory("default"):
        address = f"{live_server.url}{PAGE}{busy()}"
        assert ours(auditor.audit(address, cookies=cookies, act=log_out)) == []


@pytest.mark.nightly
@pytest.mark.parametrize("redlock", [{}, {"default": {}}, {"default": {"NODES": []}}])
def test_everybody_can_read_what_is_wrong_with_the_settings(auditor, live_server, redlock):
    """Settings without an alias, or without nodes, are told on a page that can be read."""
    cookies = cookies_of(User.objects.create_superuser("operator"))
    with override_settings(REDLOCK=redlock):
        assert ours(auditor.audit(f"{live_server.url}{PAGE}", cookies=cookies)) == []


@pytest.mark.nightly
def test_everybody_can_read_who_may_not_see_the_page(auditor, live_server):
    """Staff that may not see the locks gets Django's page of a 403, which hides nothing."""
    cookies = cookies_of(User.objects.create_user("staff", is_staff=True))
    found = auditor.audit(f"{live_server.url}{PAGE}", status=403, cookies=cookies)
    assert {fault.rule for fault in found} <= DJANGOS_403

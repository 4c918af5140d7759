"""The page of one lock: what nodes have of it, who waits, what happened to it here."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client
from django.utils.html import escape

from django_redlock import LockTaken, NodesUnavailable, redlock
from django_redlock.core.reasons import printable
from django_redlock.inspection import recent
from django_redlock.models import LockKey
from tests.support.hostile import HOSTILE
from tests.support.listening import memory, nobody
from tests.support.looked_at import A, put
from tests.support.waiting import eventually

from .test_admin import PAGE, browser

__all__ = ["memory", "nobody"]

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("recording")]
LOCK = f"{PAGE}lock/"


@pytest.fixture
def recording(nobody) -> Iterator[None]:
    """The process has made the admin's addresses, as one that shows the page has."""
    assert admin.site._registry[LockKey].get_urls()
    yield
    recent.forget()


@pytest.fixture
def viewer() -> Client:
    """The browser of somebody who may see the locks and nothing else."""
    return browser("view_lock")


def shown(client: Client, name: str) -> Any:
    """The page of a lock."""
    response = client.get(LOCK, {"name": name})
    assert response.status_code == 200
    return response


def kinds(client: Client, name: str) -> list[str]:
    """What the page says happened, the latest first."""
    return [each["what"] for each in shown(client, name).context["events"]]


def test_the_list_leads_to_the_page_of_each_lock(viewer, memory):
    """Also of one that nobody holds for certain, and for somebody who may only look."""
    put(memory, "left", f"{A}:5:web-1", 0)
    with redlock("report:42 & more"):
        page = viewer.get(PAGE).content.decode()
        assert 'href="lock/?alias=default&amp;name=report%3A42%20%26%20more"' in page
        assert 'href="lock/?alias=default&amp;name=left"' in page
        text = shown(viewer, "report:42 & more").content.decode()
    assert "report:42 &amp; more" in text
    assert "nobody holds &#x27;left&#x27; for certain" in shown(viewer, "left").content.decode()


def test_what_happened_to_it_is_told_the_latest_first(viewer, memory):
    """Taken, refused, unknown, released, with the reasons; nothing of another lock."""
    lock = redlock("mine")
    with lock as lease, redlock("other"):
        with pytest.raises(LockTaken):
            redlock("mine").acquire()
        lease.extend()
    memory.down = {0, 1, 2}
    with pytest.raises(NodesUnavailable):
        redlock("mine").acquire()
    response = shown(viewer, "mine")
    events = response.context["events"]
    assert [each["what"] for each in events] == ["unavailable", "released", "refused", "acquired"]
    assert [bool(each["why"]) for each in events] == [True, False, True, False]
    assert events[1]["fence"] == events[3]["fence"] == str(lease.fence)
    assert "2 of 5 nodes could vote" in response.context["refused"]
    memory.down = set()
    assert kinds(viewer, "other") == ["released", "acquired"]
    assert kinds(viewer, "nobody's") == []
    assert "Nothing that it remembers." in shown(viewer, "nobody's").content.decode()


def test_each_name_of_a_list_has_what_happened_to_all(viewer):
    """They are one lease."""
    with redlock(["a", "b"]):
        assert kinds(viewer, "a") == kinds(viewer, "b") == ["acquired"]


def test_the_record_is_bounded_and_keeps_no_lease_alive(viewer):
    """Neither a lease nor the frames of an error, where secrets of the caller are."""
    for number in range(recent.MOST):
        redlock(f"n{number}").acquire().release()
    assert kinds(viewer, "n0") == []
    assert kinds(viewer, f"n{recent.MOST - 1}") == ["released", "acquired"]
    lease = redlock("last").acquire()
    with pytest.raises(LockTaken) as caught:
        redlock("last").acquire()
    assert caught.value.__traceback__ is not None
    lease.release()
    seen = weakref.ref(lease)
    del lease
    gc.collect()
    assert seen() is None
    errors = [past.error for past in recent.happened("default", "last") if past.error]
    assert [(type(error), error.__traceback__) for error in errors] == [(LockTaken, None)]


def test_a_child_has_a_record_of_its_own(viewer):
    """What happened before the fork happened to the parent."""
    with redlock("name"):
        pass
    child = os.fork()
    if not child:
        os._exit(len(recent.happened("default", "name")))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert kinds(viewer, "name") == ["released", "acquired"]


def test_only_a_process_that_has_the_page_records(viewer):
    """Workers and commands pay nothing: without the admin's addresses no event is made."""
    recent.forget()
    with redlock("name"):
        assert kinds(viewer, "name") == []


@pytest.mark.parametrize("name", [name for name in HOSTILE if "{" not in name])
def test_names_cannot_break_the_page(viewer, name):
    """A name with markup in it is shown as a text, also where it stands in a reason."""
    with redlock(name), pytest.raises(LockTaken):
        redlock(name).acquire()
    page = shown(viewer, name).content.decode()
    assert "<script>alert" not in page
    assert escape(printable(name)) in page
    assert kinds(viewer, name) == ["released", "refused", "acquired"]


@pytest.mark.slow
def test_a_waiter_is_told(viewer, redlock_nodes):
    """As the nodes know it: of how many waiters, none of them does."""
    with redlock("name"):
        assert "No node was told of a waiter" in shown(viewer, "name").content.decode()
        with pytest.raises(LockTaken):
            redlock("name").acquire(wait=0.05)
        assert shown(viewer, "name").context["lock"]["waited"] == 5
        text = shown(viewer, "name").content.decode()
        assert "Somebody waits for it: 5 nodes were told so" in text
        eventually(lambda: not shown(viewer, "name").context["lock"]["waited"])


def test_a_lock_that_silent_nodes_decide_on_is_not_called_free(memory):
    """Who may take locks away has no form, and reads why."""
    put(memory, "x", f"{A}:5:a", 0, 1)
    memory.down = {2, 3}
    page = browser("view_lock", "release_lock").get(LOCK, {"name": "x"}).content.decode()
    assert "those that do not vote decide whether it is held" in page
    assert "nobody holds" not in page
    assert "Take the lock away" not in page


def test_a_free_name_has_no_seconds_left(viewer):
    """Nor does it never expire."""
    text = shown(viewer, "free").content.decode()
    assert "never expires" not in text
    assert "nobody holds &#x27;free&#x27;" in text

"""The page of one lock: what nodes have of it, and who waits."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils.html import escape

from django_redlock import LockTaken, redlock
from django_redlock.core.reasons import printable
from tests.support.hostile import HOSTILE
from tests.support.listening import memory
from tests.support.looked_at import A, put
from tests.support.waiting import eventually

from .test_admin import PAGE, browser

__all__ = ["memory"]

pytestmark = pytest.mark.django_db
LOCK = f"{PAGE}lock/"


@pytest.fixture
def viewer() -> Client:
    """The browser of somebody who may see the locks and nothing else."""
    return browser("view_lock")


def shown(client: Client, name: str) -> Any:
    """The page of a lock."""
    response = client.get(LOCK, {"name": name})
    assert response.status_code == 200
    return response


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


@pytest.mark.parametrize("name", ["report:42 & more", *HOSTILE])
def test_the_name_is_the_title_and_the_heading(viewer, name):
    """Also of one that nobody holds, and of a slot."""
    title = escape(printable(name))
    text = shown(viewer, name).content.decode()
    assert f"<title>{title} | " in text
    heading = f'<h1 class="redlock-name"><bdi>{title}</bdi></h1>'
    assert heading in text.replace("<wbr>", "")  # where it may be broken


def test_a_slot_is_named_in_the_heading(viewer):
    """With its number."""
    with redlock("openai", limit=3) as lease:
        text = viewer.get(LOCK, {"name": "openai", "slot": lease.slot}).content.decode()
    assert f"<bdi>openai (slot {lease.slot} of 3)</bdi></h1>" in text.replace("<wbr>", "")


def test_without_a_majority_it_is_said_why(viewer, memory):
    """In the words of the nodes."""
    memory.down = {0, 1, 2}
    page = shown(viewer, "mine")
    assert "2 of 5 nodes could vote" in page.context["refused"]
    # The script puts it there again every three seconds: an alert would be read out each time.
    assert 'role="alert"' not in page.content.decode()


@pytest.mark.parametrize("name", [name for name in HOSTILE if "{" not in name])
def test_names_cannot_break_the_page(viewer, name):
    """A name with markup in it is shown as a text, also where it stands in a reason."""
    with redlock(name):
        page = shown(viewer, name).content.decode()
    assert "<script>alert" not in page
    assert escape(printable(name)) in page


@pytest.mark.slow
def test_a_waiter_is_told(viewer, redlock_nodes):
    """As the nodes know it: of how many waiters, none of them does."""
    with redlock("name"):
        assert "Nobody is waiting for this lock." in shown(viewer, "name").content.decode()
        with pytest.raises(LockTaken):
            redlock("name").acquire(wait=0.05)
        assert shown(viewer, "name").context["lock"]["waited"] == 5
        assert "Somebody is waiting for this lock." in shown(viewer, "name").content.decode()
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

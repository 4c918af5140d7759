"""The page that takes one lock away: who may, from whom, and what is on record."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.core import signing
from django.test import Client

from django_redlock import LeaseLost, redlock

from .test_admin import PAGE, browser, look

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("patient_nodes")]
NAME = "report:42 & more"
RELEASE = f"{PAGE}lock/"


@pytest.fixture
def releaser() -> Client:
    """The browser of somebody who may see locks and take them away."""
    return browser("view_lock", "release_lock")


@pytest.fixture
def lease() -> Any:
    """A lease of the name."""
    held = redlock(NAME, renew=False).acquire()
    yield held
    held.release()


def form_of(client: Client, name: str = NAME) -> dict[str, str]:
    """What a browser would send of the form, with a reason."""
    response = client.get(RELEASE, {"alias": "default", "name": name})
    assert response.status_code == 200
    return {"seen": response.context["form"].initial["seen"], "reason": "hangs <b>since</b> noon"}


def send(client: Client, form: dict[str, str], name: str = NAME) -> Any:
    """Submit the form."""
    return client.post(f"{RELEASE}?alias=default&name={name.replace('&', '%26')}", form)


def test_two_clicks_take_the_lock_away_and_are_on_record(releaser, lease):
    """From the list to the log: the holder is told who did it, and why."""
    page = look(releaser)
    assert f'href="lock/?alias=default&amp;name={"report%3A42%20%26%20more"}"' in page
    shown = releaser.get(RELEASE, {"alias": "default", "name": NAME}).content.decode()
    assert "report:42 &amp; more" in shown
    response = send(releaser, form_of(releaser))
    assert response.status_code == 302
    assert response["Location"] == f"{PAGE}?alias=default"
    assert "taken away on 5 of 5 nodes, free in at most " in look(releaser)
    with pytest.raises(LeaseLost, match=r"revoked by user\d+: hangs <b>since</b> noon"):
        lease.extend()
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.user.username[:4]) == (NAME, "user")
    assert "hangs <b>since</b> noon" in entry.change_message
    assert "<b>since" not in look(releaser)


def test_who_may_take_a_lock_away(lease):
    """Staff that may see locks and take them away, and nobody else; only by a form."""
    others = browser("view_lock"), browser("release_lock"), browser()
    shown = [other.get(RELEASE, {"name": NAME}) for other in others]
    assert [response.status_code for response in shown] == [200, 403, 403]
    assert "form" not in shown[0].context
    assert b"csrfmiddlewaretoken" not in shown[0].content.partition(b'id="content-main"')[2]
    assert [send(other, {"reason": "x"}).status_code for other in others] == [403] * 3
    assert Client().get(RELEASE, {"name": NAME}).status_code == 302
    strict = browser(is_superuser=True)
    strict.handler.enforce_csrf_checks = True
    assert send(strict, {"reason": "x"}).status_code == 403
    assert browser("view_lock", "release_lock").delete(RELEASE).status_code == 405
    lease.extend()


def test_it_is_taken_from_the_holder_that_was_shown(releaser, lease):
    """Not from the next one, nor by a mark that is old, forged or of another lock."""
    form = form_of(releaser)
    lease.release()
    later = redlock(NAME, renew=False).acquire()
    marks = [form["seen"], "", "x", signing.dumps(["default", NAME, "0" * 16], salt="other")]
    for mark in marks:
        response = send(releaser, form | {"seen": mark})
        assert response.status_code == 200
        assert "Look again: this has changed" in response.content.decode()
        assert response.context["form"].initial["reason"] == form["reason"]
    later.extend()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("django_redlock.forms.SEEN_FOR", -1)
        assert send(releaser, form_of(releaser)).status_code == 200
    later.extend()
    later.release()


def test_deleting_the_key_wants_to_be_confirmed(releaser, lease):
    """Two may believe in the name then. The way to it is folded until somebody has gone it."""
    shown = releaser.get(RELEASE, {"name": NAME}).content.decode()
    folded = shown.partition("<details>")[2].partition("</details>")[0]
    assert [each in folded for each in ("id_now", "id_sure", "id_reason")] == [True, True, False]
    form = form_of(releaser) | {"now": "on"}
    response = send(releaser, form)
    assert "<details open>" in response.content.decode()
    assert "Confirm this, or do not delete the key now." in response.content.decode()
    lease.extend()
    assert send(releaser, form | {"sure": "on"}).status_code == 302
    redlock(NAME).acquire(wait=0).release()


@pytest.mark.parametrize("reason", ["", "x" * 201])
def test_a_reason_is_needed(releaser, lease, reason):
    """So that the holder and the next on call know."""
    response = send(releaser, form_of(releaser) | {"reason": reason})
    assert response.context["form"].errors.keys() == {"reason"}
    lease.extend()


def test_a_name_that_nobody_holds_has_no_form(releaser):
    """Nor has one that no lock can have, or an alias that there is not."""
    for query, told in (
        ({"name": "free"}, "nobody holds &#x27;free&#x27;"),
        ({"name": ""}, "name"),
        ({"name": "x", "alias": "nowhere"}, "nowhere"),
    ):
        response = releaser.get(RELEASE, query)
        page = response.content.decode()
        assert (response.status_code, '<form method="post" novalidate' in page) == (200, False)
        assert told in page


def test_another_client_can_only_be_deleted(releaser, patient_nodes):
    """It cannot be told."""
    for node in patient_nodes:
        with node.client() as client:
            client.set("redlock:lock:theirs", "another client's", px=60_000)
    form = form_of(releaser, "theirs")
    assert "<details open>" in releaser.get(RELEASE, {"name": "theirs"}).content.decode()
    assert "another client holds" in send(releaser, form, "theirs").content.decode()
    form |= {"now": "on", "sure": "on"}
    assert send(releaser, form, "theirs").status_code == 302
    redlock("theirs").acquire(wait=0).release()

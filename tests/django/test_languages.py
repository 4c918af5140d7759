"""The labels of the admin's pages in other languages; commands, reasons and logs are English."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.core.management import call_command
from django.http import HttpResponse
from django.test import RequestFactory, override_settings
from django.utils import translation

from django_redlock import LeaseLost, NodesUnavailable, redlock
from django_redlock.models import LockKey
from django_redlock.views import single_flight
from tests.support.looked_at import A, check, finish, put, queue, status

from .test_admin import PAGE, browser

pytestmark = pytest.mark.django_db
OFTEN = "de"  # the others at night
LANGUAGES = [
    pytest.param(code, marks=() if code == OFTEN else pytest.mark.nightly)
    for code in ("de", "ja", "zh-hans")
]
RELEASE = f"{PAGE}lock/"


@contextmanager
def language(code: str) -> Iterator[None]:
    """A process whose settings name a language, as a command has it: nothing is activated."""
    translation.deactivate()
    with override_settings(LANGUAGE_CODE=code):
        yield


@pytest.fixture(autouse=True)
def busy(memory) -> None:
    """A lock, one that is nowhere held for certain, a task that waits and one that has finished."""
    put(memory, "invoice:42", f"{A}:1795263992757438:web-1", *range(5))
    put(memory, "report:1", f"{A}:5:web-1", 0, 1)
    queue(memory, "reports.tasks.sync", "account:8", "task-id", *range(5))
    finish(memory, "reports.tasks.sync", "task-id", *range(5))
    memory.down = {1}


LABELS = {
    "de": ("Sperren", "Inhaber", "Restzeit (s)", "Die Sperre entziehen"),
    "ja": ("ロック", "保持者", "残り (秒)", "ロックを失効させる"),
    "zh-hans": ("锁", "持有者", "剩余秒数", "撤销锁"),
}


@pytest.mark.parametrize("code", LANGUAGES)
def test_the_labels_are_in_the_language_of_the_browser(code):
    """Headings, columns and buttons; what nodes and reasons say is English in each."""
    middleware = [*settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
    with override_settings(MIDDLEWARE=middleware):
        viewer = browser("view_lock", "release_lock")
        viewer.defaults["HTTP_ACCEPT_LANGUAGE"] = code
        page = viewer.get(PAGE).content.decode()
        one = viewer.get(RELEASE, {"name": "invoice:42"}).content.decode()
    title, holder, left, take = LABELS[code]
    for label in (title, holder, left):
        assert label in page
    assert take in one
    assert "degraded (4 of 5 nodes vote, 3 are needed)" in page
    assert ">held</span>" in page


def printed() -> list[str]:
    """What the commands say, for people and for programs."""
    found = [
        status("--finished")[1],
        status("--json")[1],
        status("--prometheus")[1],
        check()[1],
        check("--json")[1],
    ]
    zeros = [re.sub(r"\d+(\.\d+)?", "0", each) for each in found]
    # The nodes tell of "9 to 10" seconds where the last of them was asked a moment later.
    return [re.sub(r"[ -]+", " ", each).replace("0 to 0", "0") for each in zeros]


@pytest.mark.parametrize("code", LANGUAGES)
def test_commands_are_english_in_every_language(code):
    """The people on call search for their words, and a program reads some of them."""
    before = printed()
    with language(code):
        assert printed() == before


@pytest.mark.parametrize("code", LANGUAGES)
def test_errors_are_english_in_every_language(memory, code):
    """A log is searched by people who read other languages."""
    memory.down = {0, 1, 3}
    with language(code), pytest.raises(NodesUnavailable) as caught:
        redlock("x").acquire()
    assert str(caught.value).endswith(
        "'x': 2 of 5 nodes could vote, 3 are needed; 3 of 5 nodes: down "
        f"({', '.join(vote.node for vote in caught.value.votes if vote.reason)})"
    )


def test_what_is_said_of_a_lock_that_was_taken_away_is_english(memory):
    """The holder's error, the admin's log, and what the page tells the user."""
    memory.down = set()
    held = redlock("invoice:43", renew=False).acquire()
    with language("de"):
        viewer = browser("view_lock", "release_lock")
        form = viewer.get(RELEASE, {"name": "invoice:43"}).context["form"]
        sent = {"seen": form.initial["seen"], "reason": "hängt"}
        viewer.post(f"{RELEASE}?name=invoice:43", sent)
        page = viewer.get(PAGE).content.decode()
        with pytest.raises(LeaseLost, match=r"it was revoked \(.*revoked by user\d+: hängt\)"):
            held.extend()
    assert "taken away on 5 of 5 nodes, free in at most " in page
    assert "taken away on 5 of 5 nodes" in LogEntry.objects.get().change_message


def test_refused_requests_are_told_so_in_their_language():
    """On the page, and in the texts of the problem details; its keys and status stay."""

    @single_flight("pay")
    def pay(_request: Any) -> HttpResponse:
        return HttpResponse("paid")

    with redlock("pay"), translation.override("ja"):
        page = pay(RequestFactory().post("/", headers={"accept": "text/html"}))
        sent = pay(RequestFactory().post("/", headers={"accept": "application/json"}))
    assert '<html lang="ja"' in page.content.decode()
    assert "<h1>少々お待ちください</h1>" in page.content.decode()
    problem = json.loads(sent.content)
    assert (problem["type"], problem["title"], problem["status"]) == ("about:blank", "競合", 409)


def test_no_migration_depends_on_the_language():
    """The names of the model are those of the migration."""
    with language("de"):
        assert LockKey._meta.verbose_name == "Sperre"
        call_command("makemigrations", "--check", "--dry-run", "django_redlock", verbosity=0)

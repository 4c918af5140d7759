"""What people are shown of work that is done once, and how they let it be done again."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import call_command
from django.test import Client, override_settings

from django_redlock import LockTaken, redlock
from tests.support.looked_at import A, finish, put, status

from .test_admin import PAGE, SURVEYS, Reader, browser, look
from .test_admin import rows as rows_of

pytestmark = pytest.mark.django_db
LOCK, NAME = f"{PAGE}lock/", "digest:today"


@pytest.fixture(params=["memory", "patient_nodes"])
def nodes(request: pytest.FixtureRequest) -> Any:
    """Five nodes, in memory and real."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def releaser() -> Client:
    """The browser of somebody who may see locks and take them away."""
    return browser("view_lock", "release_lock")


def do_once() -> bool:
    """Do the work, unless it is done; whether it was to be done."""
    with redlock(NAME).once(keep=72_000) as run:
        return run.fresh


def release(*args: str, **options: Any) -> str:
    """What ``redlock_release`` prints."""
    out = io.StringIO()
    call_command("redlock_release", *args, stdout=out, **options)
    return out.getvalue()


def words(page: str) -> str:
    """The words of a page behind its heading, in one line."""
    return " ".join(Reader(page[page.index('id="content"') :]).words.split())


def test_work_that_is_done_is_in_the_list_and_says_when(nodes):
    """Without any option; a command says the second, and that the work may be done again."""
    assert do_once()
    (line,) = [line for line in status()[1].splitlines() if line.startswith(NAME)]
    assert re.search(r" \d+ s ago +5 of 5 +7\d{4} .* done$", line)
    assert "manage.py redlock_release NAME lets it be done again." in status()[1]
    assert json.loads(status("--json")[1])["aliases"]["default"]["locks"][0]["kind"] == "done"
    at = redlock(NAME).state().since
    assert at is not None
    shown = release(NAME, dry_run=True)
    assert f"at {at:%Y-%m-%d %H:%M:%S} UTC, " in shown
    assert re.search(r"\d+ s ago, not again for (20 h 0|19 h 59) min$", shown.strip())


def test_a_record_has_a_page_and_a_button_of_its_own(nodes, releaser):
    """Nothing there is about a holder, a fence or a waiter: nobody has a lock."""
    assert do_once()
    cells = rows_of(look(releaser))[NAME]
    assert cells[:2] == ["done", "5 of 5"]
    assert cells[2].endswith(" s ago")
    page = releaser.get(LOCK, {"name": NAME})
    text = words(page.content.decode())
    assert re.search(r"This work was done at [-\d]{10} [:\d]{8} \S+, \d+ s ago", text)
    assert not re.search("holder|fence|waiting|take the lock away|delete the key", text.lower())
    sent = {"seen": page.context["form"].initial["seen"], "reason": "it had a mistake"}
    assert not do_once()
    answer = releaser.post(f"{LOCK}?name={NAME}", sent, follow=True)
    assert "the work is done again when somebody next asks for it" in answer.content.decode()
    assert "it had a mistake" in LogEntry.objects.get().change_message
    assert NAME not in rows_of(look(releaser))
    assert do_once()


def test_the_command_lets_work_be_done_again(nodes):
    """And says so, in words of its own."""
    assert do_once()
    shown = release(NAME, yes=True)
    assert f"{NAME}: its record is removed on 5 of 5 nodes, and the work is done again" in shown
    assert "taken away" not in shown
    assert do_once()


def test_a_node_that_is_away_may_bring_a_record_back(memory):
    """One record is enough: who lets the work be done again is told."""
    assert do_once()
    memory.down = {4}
    assert "the others may bring it back, then do this again" in release(NAME, yes=True)
    memory.down = set()
    assert not do_once()


def test_finished_tasks_hide_no_work_that_is_done(memory, monkeypatch):
    """Though there are more of these than a page has: each index is its own."""
    monkeypatch.setattr(SURVEYS, "PAGE", 10)
    for number in range(30):
        finish(memory, "sync", f"id-{number}", *range(5))
    assert do_once()
    assert f"{NAME} " in status("--limit", "10")[1]
    assert "finished" not in status()[1]
    assert status("--finished")[1].count(" finished") == 30


def test_gauges_do_not_count_work_that_is_done(memory, monkeypatch):
    """So much of it is no reason to say that there was more than could be counted."""
    for number in range(3):
        with redlock(f"daily:{number}").once(keep=60) as run:
            assert run.fresh
    assert 'redlock_truncated{alias="default"} 0' in status("--prometheus", "--limit", "2")[1]


@override_settings(TIME_ZONE="Pacific/Kiritimati", USE_TZ=True)
def test_a_date_that_no_calendar_has(memory, releaser):
    """Another writer's, or that of a node that is broken: the work is done, and pages stand."""
    put(memory, NAME, "once::9007199254740992:x", *range(5))
    assert not do_once()
    assert f"{NAME} " in status(NAME)[1]
    assert " done, by x, on 5 of 5 nodes, at 9999-12-30 " in release(NAME, dry_run=True)
    assert json.loads(status("--json")[1])["aliases"]["default"]["locks"][0]["kind"] == "done"
    assert rows_of(look(releaser))[NAME][0] == "done"
    assert "This work was done at 9999-12-30" in releaser.get(LOCK, {"name": NAME}).content.decode()


def test_another_writers_name_is_no_slot(memory, releaser):
    """A slot has a number as this package writes it, below 128."""
    for end in ("007", "128", "7"):
        put(memory, f"name\x1f{end}", f"{A}:5:web-1", *range(5))
    out = status()[1]
    assert out.count("(slot ") == 1
    assert r"name\x1f007" in out
    assert r"name\x1f128" in out
    assert "name (slot 7)" in out
    assert r"name\x1f007" in rows_of(look(releaser))


# -- one node -------------------------------------------------------------------------------------


def test_one_node_has_no_columns_of_nodes(releaser):
    """They would repeat what is said beside them; nor does a sentence count to one."""
    settings = {"default": {"NODES": ["memory://the-only-one"]}}
    with override_settings(REDLOCK=settings), redlock("report:7"):
        out = status()[1]
        assert out.startswith("default: healthy (its node votes)\n")
        heads = next(line for line in out.splitlines() if line.startswith("lock "))
        assert heads.split() == ["lock", "holder", "held", "for", "seconds", "left", "is"]
        page, one = look(releaser), releaser.get(LOCK, {"name": "report:7"}).content.decode()
        with pytest.raises(LockTaken) as taken:
            redlock("report:7").acquire(wait=0)
        told = [out, words(page), words(one), str(taken.value), release("report:7", yes=True)]
    assert not [text for text in told if re.search(r"\bof 1\b|#1|needed", text)]


def test_several_nodes_have_them(memory, releaser):
    """The page has a column for each, and the sentences count them."""
    with redlock("report:7"):
        assert status()[1].startswith("default: healthy (5 of 5 nodes vote, 3 are needed)\n")
        assert "#5" in words(look(releaser))
        assert " on 5 of 5 nodes, " in release("report:7", dry_run=True)

import functools
import hashlib
import importlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import connection
from django.test import Client, override_settings

from django_redlock import conf, redlock
from django_redlock.core.reasons import ReasonCode, because, printable
from django_redlock.inspection import LockStatus
from django_redlock.models import LockKey
from django_redlock.nodes.group import NodeGroup
from tests.inspection.states import STATES
from tests.support.hostile import HOSTILE
from tests.support.looked_at import (
    A,
    B,
    clients,
    finish,
    in_memory,
    put,
    queue,
    some_tasks,
    stop_clocks,
    take,
    take_before,
)
from tests.support.loops import idle
from tests.support.passwords import SECRET
from tests.support.waiting import eventually
from tests.urls_admin import site as operations

pytestmark = pytest.mark.django_db

SURVEYS = importlib.import_module("django_redlock.inspection.survey")  # its name is a function's
PAGE = "/admin/django_redlock/lockkey/"
C = "c" * 32


@pytest.fixture
def viewer() -> Client:
    """The browser of somebody who may see the locks and nothing else."""
    return browser("view_lock")


def browser(*permissions: str, is_superuser: bool = False, is_staff: bool = True) -> Client:
    """The browser of a user with these permissions, logged in."""
    user = User.objects.create(
        username=f"user{User.objects.count()}", is_staff=is_staff, is_superuser=is_superuser
    )
    for each in permissions:
        found = Permission.objects.get(content_type__app_label="django_redlock", codename=each)
        user.user_permissions.add(found)
    made = Client()
    made.force_login(user)
    return made


def look(viewer: Client, **query: str) -> str:
    """The page, which is always there."""
    response = viewer.get(PAGE, query)
    assert response.status_code == 200
    return response.content.decode()


class Reader(HTMLParser):
    """What a browser would make of a page: its elements, its words, and its tables' rows."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, tuple[str, ...]]] = []
        self.links: list[str] = []
        self.rows: list[list[str]] = []
        self.words = ""
        self._cell = False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag != "wbr":  # where a name may be broken
            self.elements.append((tag, tuple(sorted(name for name, _ in attrs))))
        self.links += [value for name, value in attrs if name == "href" and value and tag == "a"]
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self._cell = True
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        if tag in {"td", "th"}:
            self._cell = False
        if tag == "div" and self._cell and self.rows[-1][-1]:
            self.rows[-1][-1] += "\n"

    def handle_data(self, data):
        self.words += data
        if self._cell:
            self.rows[-1][-1] += data


def rows(page: str) -> dict[str, list[str]]:
    """The rows of the page's tables by what stands in their first cell."""
    return {
        cells[0].strip(): [cell.strip() for cell in cells[1:]]
        for cells in Reader(page).rows
        if cells
    }


# -- who may see it -------------------------------------------------------------------------------


OTHER_SITE = "/operations/django_redlock/lockkey/"


@pytest.mark.parametrize(
    ("method", "url"),
    [
        *(("get", f"{PAGE}{query}") for query in ("", "?q=x", "?alias=nope", "?p=2&finished=on")),
        *((method, url) for method in ("get", "head", "post") for url in (PAGE, OTHER_SITE)),
    ][1:],
)
def test_who_may_see_the_page(memory, method, url):
    """Anonymous users log in first; staff needs view_lock; nobody may post."""
    answers = {
        who: getattr(client, method)(url)
        for who, client in {
            "anonymous": Client(),
            "customer": browser("view_lock", is_staff=False),
            "staff": browser(),
            "releaser": browser("release_lock"),
            "viewer": browser("view_lock"),
            "superuser": browser(is_superuser=True),
        }.items()
    }
    seen = 405 if method == "post" else 200
    assert {who: answer.status_code for who, answer in answers.items()} == {
        "anonymous": 302,
        "customer": 302,
        "staff": 403,
        "releaser": 403,
        "viewer": seen,
        "superuser": seen,
    }
    for who in ("anonymous", "customer"):
        assert "/login/?next=" in answers[who]["Location"]


def test_every_url_was_tried():
    """The model has two addresses, and nothing to add, change, delete or look back at.

    Those of the second one are in ``test_lock_page`` and ``test_release_page``.
    """
    for each in (admin.site, operations):
        names = [url.name for url in each._registry[LockKey].get_urls()]
        assert names == ["django_redlock_lockkey_changelist", "django_redlock_lockkey_lock"]


def test_it_may_not_be_kept(memory, viewer):
    """What is held now is not for a cache."""
    assert "no-store" in viewer.get(PAGE)["Cache-Control"]


# -- the model ------------------------------------------------------------------------------------


def test_no_table(capsys):
    """The model has no table, and nothing that walks over all models looks for one."""
    assert apps.get_model("django_redlock.LockKey") is LockKey
    assert "django_redlock_lockkey" not in connection.introspection.table_names()
    for options in ({}, {"use_base_manager": True}):
        call_command("dumpdata", "django_redlock", **options)
        assert json.loads(capsys.readouterr().out) == []
    assert not LockKey.objects.exists()
    assert str(LockKey(name="invoice:42")) == "invoice:42"


@pytest.mark.parametrize("key", ["AutoField", "BigAutoField"])
def test_migrations_are_complete(key):
    """No project is told to make a migration for this app, whatever its default key."""
    with override_settings(DEFAULT_AUTO_FIELD=f"django.db.models.{key}"):
        call_command("makemigrations", "django_redlock", check=True, verbosity=0)


BARE = """\
SECRET_KEY = "x"
INSTALLED_APPS = ["django_redlock"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates"}]
REDLOCK = {"default": {"NODES": [f"memory://bare-{i}" for i in range(5)]}}
"""
USE = """\
import sys, django
django.setup()
from django.core.management import call_command
from django.db import connection
from django.template import Context, Template
from django_redlock import redlock
call_command("check", fail_level="INFO")
call_command("migrate", verbosity=0)
call_command("makemigrations", check=True, verbosity=0)
assert connection.introspection.table_names() == ["django_migrations"]
text = '{% load redlock %}{% redlock_state "export:42" as export %}{{ export.held }}'
with redlock("export:42"):
    print(Template(text).render(Context()))
assert not any(name.startswith("django.contrib.") for name in sys.modules)
"""


@pytest.mark.slow
def test_without_the_admin(tmp_path):
    """Where neither the admin nor users nor content types are installed, the rest works."""
    (tmp_path / "bare.py").write_text(BARE)
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", USE],
        cwd=tmp_path,
        env={"DJANGO_SETTINGS_MODULE": "bare"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout.splitlines()[-1:]) == (0, ["True"]), run.stderr


# -- what it shows --------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [each for each, state in STATES.items() if state.on])
def test_a_state_is_a_row_of_the_page(memory, viewer, state):
    """What it is, nodes, holders, fence, seconds left; and of each node, letters say whose key."""
    expected = STATES[state]
    expected.made(memory)
    page = look(viewer, finished="on", q=" ".join(expected.texts))
    kind, votes, holder, fence, left, *cells = rows(page)[expected.name]
    holders = [re.sub("^[A-C] ", "", each) for each in holder.partition("\nfor ")[0].splitlines()]
    if expected.kind in {LockStatus.HELD, LockStatus.FINISHED}:  # whatever else is left
        holders = [re.sub(r" on \d$", "", holders[0])]
    assert ", ".join(holders) == expected.holder
    assert (kind, votes, fence) == (expected.kind, f"{expected.on} of 5", expected.fence or "–")
    assert (left.replace("–", " to "), cells) == (expected.left, expected.cells)
    assert "1 row" in page


def test_locks_that_are_held_for_long(memory, viewer):
    """A link for each age shows the locks that are held for so long, the oldest first."""
    take_before(memory, a=90, b=5000, c=30)
    page = look(viewer)
    assert "older=60" in page
    found = rows(look(viewer, older="60"))
    assert [name for name in found if name in "abc"] == ["b", "a"]
    assert found["b"][2] == "web-1\nfor 1 h 23 min"
    assert "No lock is held for that long." in look(viewer, older="86400")
    assert set("abc") < set(rows(look(viewer, older="nonsense")))


@pytest.mark.parametrize(
    ("down", "words"),
    [
        ({4}, "degraded (4 of 5 nodes vote"),
        ({0, 1, 2, 3, 4}, "no majority, no lock can be taken (0 of 5"),
    ],
)
def test_nodes_that_are_down(memory, viewer, down, words):
    """Down nodes are shown with why; without a majority it is a page that says so."""
    memory.down = down
    page = look(viewer, q="unknown")
    assert words in page
    assert {rows(page)[str(i + 1)][1] for i in down} == {"down down"}
    assert ("Too few nodes vote" in page) == (len(down) == 5)
    assert ("Nothing that is held has “unknown” in its name" in page) == (len(down) == 1)


@pytest.mark.parametrize(
    "setting",
    [
        None,
        {},
        {"default": {"NODES": []}},
        {"default": {"X": 1}},
        {"default": {"NODES": [f"redis://:{SECRET}@h:p"]}},
        {"default": {"NODES": [f"redis://:{SECRET}#@h"]}},
    ],
)
def test_misconfigured(viewer, setting):
    """What is wrong with the settings stands on the page; a URL is not quoted."""
    with override_settings(REDLOCK=setting):
        page = look(viewer)
    assert "REDLOCK" in Reader(page).words
    assert SECRET not in page


# -- aliases, search, pages -----------------------------------------------------------------------


def test_several_aliases(viewer):
    """Each alias has its page, the default first; a wrong one spoils no other."""
    with in_memory("payments", "default", "third"):
        with redlock("a"), redlock.using("payments")("b"):
            first, other = look(viewer), look(viewer, alias="payments")
        assert "a" in rows(first)
        assert "b" not in rows(first)
        assert "b" in rows(other)
        assert "a" not in rows(other)
        links = [link for link in Reader(look(viewer, q="x&y")).links if "alias=" in link]
        assert "?alias=payments&q=x%26y" in links
        wrong = look(viewer, alias="nope")
        assert "has no alias &#x27;nope&#x27;" in wrong
        assert "?alias=payments" in Reader(wrong).links
    with in_memory("one", "two"):
        assert "<strong>one</strong>: healthy" in look(viewer)
    with in_memory("only"):
        assert 'aria-label="Aliases"' not in look(viewer)


def test_search(memory, viewer):
    """A search finds parts of names in any case, and counts."""
    take(memory, "Invoice:42", "invoice:43", "export:42")
    put(memory, "invoice", "a value of another client", *range(5))
    for node in memory.nodes:
        del node.held["invoice"]  # it is in no list
    found = rows(look(viewer, q="INVOICE"))
    assert {"Invoice:42", "invoice:43"} <= set(found)
    assert not {"export:42", "invoice"} & set(found)
    assert "invoice" in rows(look(viewer, q="invoice"))
    page = look(viewer, q="42")
    assert "2 rows" in page
    assert "Show all" in page
    assert 'value="42"' in page
    assert "Nothing that is held has “zzz” in its name" in look(viewer, q="zzz")


def test_search_beyond_what_the_page_reads(memory, viewer, monkeypatch):
    """A search looks at all that is held, and says if more matches than it shows."""
    monkeypatch.setattr(SURVEYS.Wanted.survey, "__defaults__", (3,))
    monkeypatch.setattr(SURVEYS, "PAGE", 2)
    for i in range(9):
        put(memory, f"n{i}", f"{A}:5:a", *range(5), seconds=600 + i)
    page = look(viewer)
    assert "A search looks at the others, too." in page
    page = look(viewer, q="N[78]")
    assert {"n7", "n8"} <= set(rows(page))
    assert "2 rows" in page
    assert "More is held" not in page
    page = look(viewer, q="n")
    assert {"n0", "n1", "n2"} <= set(rows(page))
    assert "More is held than is shown or was searched: search for less." in page
    monkeypatch.setattr(SURVEYS, "PAGES", 2)
    assert "search for less" in look(viewer, q="n8")


def test_search_for_what_cannot_be_a_name(memory, viewer):
    """It is a part of a name all the same; what is longer than a name is cut off."""
    take(memory, "x:1")
    assert "x:1" not in rows(look(viewer, q="a\x1bb"))
    for text in ("x" * 1025, "[!" * 32_768, *HOSTILE):
        page = look(viewer, q=text.ljust(1025, "y"))
        assert "x:1" not in rows(page)
        assert "y" * 900 not in page
        harmless(page)


def test_pages(memory, viewer):
    """Many locks take several pages, with links that keep the search and the alias."""
    take(memory, *(f"n{i:03}" for i in range(120)))
    for p, first, last in (("", 0, 49), ("2", 50, 99), ("3", 100, 119), ("99", 100, 119)):
        found = [name for name in rows(look(viewer, p=p)) if name.startswith("n")]
        assert found == [f"n{i:03}" for i in range(first, last + 1)]
    page = look(viewer, q="n", alias="default", p="2", finished="on", evil="1")
    assert "?alias=default&q=n&p=3&finished=on" in Reader(page).links
    assert "evil" not in page
    assert "120 rows" in page
    assert "n000" in rows(look(viewer, p="nonsense"))


# -- tasks ---------------------------------------------------------------------------------------


FINISHED = "run:reports.sync:number-of-id-finished"
TASKS = ["account:7", "account:8", "account:9"]


def tasks(page: str) -> list[str]:
    """The names of the rows about tasks."""
    return [name for name in rows(page) if name in {*TASKS, FINISHED}]


def test_tasks_are_rows_beside_the_locks(memory, viewer):
    """A link shows finished ones, and another one hides them; a mark leads to no page."""
    some_tasks(memory)
    page = look(viewer)
    assert tasks(page) == TASKS
    assert tasks(look(viewer, q="QUEUED")) == ["account:8"]
    assert tasks(look(viewer, q="account:[79]")) == ["account:7", "account:9"]
    assert tasks(look(viewer, q="reports")) == TASKS
    (link,) = (each for each in Reader(page).links if "finished" in each)
    page = viewer.get(f"/admin/django_redlock/lockkey/{link}").content.decode()
    assert tasks(page) == [*TASKS, FINISHED]
    assert not any(nonce[:12] in page for nonce in (A, B))
    links = Reader(page).links
    assert [each for each in links if "name=" in each] == ["lock/?alias=default&name=account%3A7"]


def test_the_number_of_requests_does_not_grow_with_tasks(memory, viewer, monkeypatch):
    """One request is for all indexes, and one more asks for the memory."""
    ask, requests = memory.ask, []

    def counting(request: Any) -> Any:
        requests.append(request)
        return ask(request)

    monkeypatch.setattr(memory, "ask", counting)
    for count in (1, 40):
        requests.clear()
        for number in range(count):
            queue(memory, "sync", f"account:{number}", f"id-{number}", *range(5))
            finish(memory, "sync", f"ended-{number}", *range(5))
        assert f"{2 * count} rows" in look(viewer, finished="on")
        assert len(requests) == 2


# -- hostile text ---------------------------------------------------------------------------------


def harmless(page: str) -> list[tuple[str, tuple[str, ...]]]:
    """The page's elements, after a look for anything that could run."""
    found = Reader(page).elements
    for tag, names in found:
        assert tag not in {"style", "iframe", "object", "base"}
        assert tag != "script" or "src" in names
        assert not [name for name in names if name.startswith("on") or name == "style"]
    assert "\u202e" not in page
    assert "\u200b" not in page
    return found


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_nodes(memory, viewer, monkeypatch, text):
    """What nodes say of themselves, and their errors, are text."""
    stop_clocks(memory)  # else the keys of five nodes may have one left time, or two
    take(memory, "x")
    states = memory.states()

    def say(what: str):
        said = because(ReasonCode.CONNECT_FAILED, text=what)
        same = {"label": what, "software": what, "role": what, "reason": said}
        told = [each._replace(**same, voting=False, uptime=1.0) for each in states]
        monkeypatch.setattr(memory, "states", lambda: told)
        memory.down = {0}
        return look(viewer)

    elements = harmless(say("harmless"))
    page = say(text)
    assert harmless(page) == elements
    plain = printable(text)
    assert rows(page)["1"][:4] == [plain, f"down {plain}", plain, plain]
    assert rows(page)["2"][1] == f"no vote {plain}"


# -- real nodes -----------------------------------------------------------------------------------


def all_well() -> bool:
    """Take a lock; return whether all nodes vote, and nothing is on its way to one."""
    group = conf.backend("default").group
    assert isinstance(group, NodeGroup)
    with redlock("well"):
        pass
    return not any(
        node.down_reason
        or node.undos.kept
        or len(node._attempts)
        or any(each.owed for each in idle(node))
        for node in group.nodes
    )


def test_reads_the_index_and_changes_nothing(patient_nodes, viewer):
    """The page asks for no KEYS or SCAN, and whatever its address, writes nothing."""
    with clients(patient_nodes) as each, redlock("invoice:42", renew=False):
        for client in each:
            client.mset({f"foreign:{i}": "x" for i in range(100)})
        eventually(all_well)  # an earlier test may have left a node to be connected
        look(viewer)
        for client in each:
            eventually(functools.partial(client.exists, "redlock:lock:invoice:42"))  # late grants
            client.config_resetstat()
        for query in (
            {},
            {"q": "invoice:42"},
            {"q": "nobody"},
            {"action": "delete_selected", "_selected_action": "invoice:42", "post": "yes"},
            {"release": "invoice:42"},
        ):
            look(viewer, **query)
        found = rows(look(viewer))
        for client in each:
            calls = {
                name.removeprefix("cmdstat_").partition("|")[0]  # 6.2 counts no subcommands
                for name in client.info("commandstats")
            }
            client.delete(*(f"foreign:{i}" for i in range(100)))
            assert {"evalsha", "zrangebyscore", "get"} <= calls
            assert calls <= {
                "evalsha",
                "eval",  # by a node that has forgotten the scripts
                "zrangebyscore",
                "get",
                "hget",
                "pttl",
                "zscore",
                "time",
                "info",
                "config",
            }
    assert found["invoice:42"][:2] == ["held", "5 of 5"]


def test_no_nonce_anywhere(patient_nodes, viewer):
    """The nonce, the power to release, is not on the page, nor is its digest."""
    with redlock("invoice:42", renew=False) as lease:
        page = look(viewer) + look(viewer, q="invoice:42")
    assert "invoice:42" in rows(page)
    assert lease.grant.nonce[:12] not in page
    digest = hashlib.sha1(lease.grant.nonce.encode(), usedforsecurity=False).hexdigest()
    assert digest[:12] not in page


class Isolated(HTMLParser):
    """Collects the texts with digits below ``#content-main`` that no ``<bdi>`` isolates."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.bare: list[str] = []
        self.isolated = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in {"input", "img", "link", "meta", "br"} and (
            self.open or ("id", "content-main") in attrs
        ):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            del self.open[len(self.open) - 1 - self.open[::-1].index(tag) :]

    def handle_data(self, data: str) -> None:
        if self.open and re.search(r"\d", data):
            if "bdi" in self.open:
                self.isolated += 1
            else:
                self.bare.append(data.strip())


def test_numbers_are_isolated_where_the_page_is_right_to_left(memory):
    """Else "0.52 ms" is shown as "ms 0.52", and the full stop of a sentence before it."""
    put(memory, "import:7", f"{A}:5:web-1:640", 0, 1, 2)
    put(memory, "import:8", f"{A}:5:web-1:640", 0, 1)
    put(memory, "import:8", f"{B}:6:web-2:641", 2, 3)
    take(memory, *(f"report:{number}" for number in range(60)))
    some_tasks(memory)
    memory.down = {4}
    viewer = browser("view_lock", "release_lock")
    with override_settings(LANGUAGE_CODE="ar"):
        pages = [
            look(viewer, finished="on"),
            look(viewer, q="report:1", older="60"),
            look(viewer, q="nothing:1"),
            viewer.get(f"{PAGE}lock/", {"name": "import:7"}).content.decode(),
            viewer.get(f"{PAGE}lock/", {"name": "import:8"}).content.decode(),
        ]
    for page in pages:
        assert 'dir="rtl"' in page
        found = Isolated()
        found.feed(page)
        assert found.bare == []
        assert found.isolated > 0
        broken = Isolated()
        broken.feed(page.replace("<bdi", "<span").replace("</bdi>", "</span>"))
        assert len(broken.bare) == found.isolated

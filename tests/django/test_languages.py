"""The pages and commands in other languages: all that a person reads, and nothing for programs."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.core.management import CommandError, call_command
from django.http import HttpResponse
from django.test import Client, RequestFactory, override_settings
from django.utils import translation

from django_redlock import LeaseLost, LockTaken, NodesUnavailable, redlock
from django_redlock.core.reasons import Reason, ReasonCode, because
from django_redlock.inspection import recent, rows
from django_redlock.inspection.examination import Examination
from django_redlock.inspection.probe import Finding, Level, NodeReport
from django_redlock.inspection.rows import said
from django_redlock.management.printing import _plain
from django_redlock.models import LockKey
from django_redlock.nodes.memory import MemoryNodes
from django_redlock.views import single_flight
from tests.core.test_reasons import sample
from tests.support import brackets as bracketed
from tests.support.looked_at import A, B, finish, group, in_memory, put, queue, status

from .test_admin import PAGE, browser
from .test_status import no_rich

__all__ = ["no_rich"]

pytestmark = pytest.mark.django_db
OFTEN = "de"  # the others at night: `make lint` checks the catalogues
LANGUAGES = [
    pytest.param(code, marks=() if code == OFTEN else pytest.mark.nightly)
    for code in ("de", "ja", "zh-hans")
]
WIDE = "ja"  # of its characters some take two places
RELEASE = f"{PAGE}lock/"
SHOWN = {"alt", "title", "aria-label", "placeholder", "data-label"}
BRACKETS = re.compile(r"⟦[^⟦⟧]*⟧")
# What is no text of ours: names, holders, units, and what comes from nodes, settings or Django.
DATA = re.compile(
    r"invoice:42|report:\d|split|another's|never-ends|resting|p{5,}|a\b|web-\d|host|payments|"
    r"reports\.tasks\.sync|account:\d|task-id|default-?|status-\d+|\d+ (s|ms|min|h|d)\b|UTC|CST|"
    r"#\d|"
    r"memory|master|allkeys-lru|noeviction|[A-Z]\b|Redlock|nope|"
    r"revoked by \S+|Start|Suchen|Dieses Feld ist zwingend erforderlich\."
)


@contextmanager
def language(code: str) -> Iterator[None]:
    """A process whose settings name a language, as a command has it: nothing is activated."""
    translation.deactivate()
    with override_settings(LANGUAGE_CODE=code):
        yield


@pytest.fixture
def brackets(tmp_path: Path) -> Iterator[None]:
    """A language in which each string of ours is in brackets: so is all that can be translated."""
    bracketed.write(tmp_path)
    with override_settings(LOCALE_PATHS=[tmp_path]), language("de"):
        yield


def bare(text: str) -> str:
    """What nobody can translate: the words outside of the brackets, without data."""
    while BRACKETS.search(text):
        text = BRACKETS.sub(" ", text)
    return " ".join(re.findall(r"[^\W\d_]\S*", DATA.sub(" ", text)))


class Read(HTMLParser):
    """The texts of our part of a page, also those of attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.feed(page[page.index('id="content-main"') - 5 : page.index("</main>")])

    def handle_starttag(self, tag, attrs):
        said = set(SHOWN)
        if (tag == "span" and ("data-redlock-told", None) in attrs) or tag == "button":
            said |= {name for name, _ in attrs if name.startswith("data-")} - {"data-redlock-every"}
        if tag == "input" and ("type", "submit") in attrs:
            said.add("value")
        self.texts += [value for name, value in attrs if name in said and value]

    def handle_data(self, data):
        if data.strip():
            self.texts.append(data)


def busy(memory: MemoryNodes) -> None:
    """Locks and tasks of all kinds."""
    put(memory, "invoice:42", f"{A}:1795263992757438:web-1", *range(5))
    put(memory, "report:1", f"{A}:5:web-1", 0, 1)
    put(memory, "split", f"{A}:5:web-1", 0, 1)
    put(memory, "split", f"{B}:5:web-2", 2, 3)
    put(memory, "another's", "somebody else's value", *range(5))
    put(memory, "never-ends", "somebody else's value", *range(5))
    for i, node in enumerate(memory.nodes):
        value, due = node.keys["redlock:lock:never-ends"]
        node.keys["redlock:lock:never-ends"] = (value, None if i else due)
    queue(memory, "reports.tasks.sync", "account:8", "task-id", *range(5))
    queue(memory, "reports.tasks.sync", "account:9", "task-id", 0)
    finish(memory, "reports.tasks.sync", "task-id", *range(5))
    redlock.using(label="web-1")("resting", min_hold=60).acquire().release()


def pages(viewer: Client, memory: MemoryNodes) -> Iterator[tuple[str, str]]:
    """The page of locks in each of its states, and the one that takes a lock away."""

    def page(**query: str) -> tuple[str, str]:
        return str(query), viewer.get(PAGE, query).content.decode()

    def release(name: str, sent: dict[str, str] | None = None) -> tuple[str, str]:
        address = f"{RELEASE}?{urlencode({'name': name})}"
        response = viewer.get(address) if sent is None else viewer.post(address, sent)
        assert response.status_code == 200
        return address, response.content.decode()

    yield page()
    yield page(q="nope")
    yield page(q="\0")
    yield page(q="p" * 2000)
    yield page(finished="on")
    yield page(finished="on", q="nope")
    busy(memory)
    recent.record()
    with suppress(LockTaken):
        redlock("invoice:42").acquire()
    redlock("report:9").acquire().release()
    yield release("report:9")
    for query in ({}, {"finished": "on"}, {"q": "report:*"}, {"older": "86400"}, {"q": "nope"}):
        yield page(**query)
    for name in ("invoice:42", "another's", "resting"):
        yield release(name)
    yield release("invoice:42", {})
    seen = viewer.get(RELEASE, {"name": "invoice:42"}).context["form"].initial["seen"]
    yield release("invoice:42", {"seen": seen, "now": "on"})
    for name in ("nope", "split", "", "p" * 600):
        yield release(name)
    memory.down = {1, 3}
    yield page(finished="on")
    memory.down = {0, 1, 3}
    yield page(finished="on")
    with suppress(NodesUnavailable):
        redlock("invoice:42").acquire()
    yield release("invoice:42")
    recent.forget()


# -- nothing is left out ---------------------------------------------------------------------------


def test_all_that_the_pages_say_can_be_translated(brackets, memory):
    """In each of their states, also what the script says, and tips and labels."""
    viewer = browser("view_lock", "release_lock")
    for which, page in pages(viewer, memory):
        read = Read(page)
        assert any("⟦" in text for text in read.texts), which
        assert [text for text in read.texts if bare(text)] == [], which


def run(command: str, /, *arguments: str, **options: Any) -> str:
    """What a command prints; its error, if it ends with one."""
    out = io.StringIO()
    try:
        call_command(command, *arguments, stdout=out, **options)
    except SystemExit:
        pass
    except CommandError as error:
        return f"{out.getvalue()}{error}"
    return out.getvalue()


def printed(memory: MemoryNodes) -> Iterator[str]:
    """What the commands for people print."""
    yield run("redlock_status")
    yield run("redlock_status", "--problems")
    yield run("redlock_status", "--older-than", "5")
    yield run("redlock_status", "nope*", "--finished")
    yield run("redlock_status", "p" * 2000)
    yield run("redlock_status", "--prometheus", "--json")
    yield run("redlock_status", "--watch", "1", "--json")
    yield run("redlock_status", "--watch", "1")
    busy(memory)
    yield run("redlock_status", "--finished")
    yield run("redlock_status", "--limit", "1")
    yield run("redlock_status", "report:*", "invoice:*", "--limit", "1")
    yield run("redlock_release", "invoice:42", "--dry-run")
    yield run("redlock_release", "invoice:42")
    yield run("redlock_release", "another's", "--yes")
    yield run("redlock_release", "another's", "--yes", "--now")
    yield run("redlock_release", "invoice:42", "--fence", "7")
    yield run("redlock_release", "invoice:42", "--yes", "--reason", "p" * 300)
    yield run("redlock_release", "invoice:42", "--yes")
    yield run("redlock_release", "nope")
    yield run("redlock_release", "split")
    yield run("redlock_run", "invoice:42")
    yield run("redlock_run", "report:3", command=["true"], grace=99.0)
    memory.down = {1, 3}
    yield run("redlock_status", "--finished")
    memory.down = {0, 1, 3}
    yield run("redlock_status")
    yield run("redlock_release", "invoice:42")
    yield run("redlock_run", "invoice:42", command=["true"])
    with override_settings(REDLOCK={}):
        yield run("redlock_status")


def test_all_that_the_commands_say_can_be_translated(brackets, memory, no_rich):
    """Tables, sentences and errors."""
    for text in printed(memory):
        assert "⟦" in text
        assert [line for line in text.splitlines() if bare(line)] == []


def test_all_that_is_said_of_nodes_can_be_translated(brackets):
    """What `redlock_check` finds of them."""
    findings = tuple(Finding(level, because(ReasonCode.SNAPSHOTS)) for level in Level)
    about: dict[str, Any] = {"software": "Redis 7.0", "role": "master", "findings": findings}
    nodes = (
        NodeReport("#1", True, False, rights=False, append_only=True, snapshots=True, **about),
        NodeReport("#2", True, True, rights=True, append_only=False, snapshots=False, maxmemory=0),
        NodeReport("#3", False, False, because(ReasonCode.DOWN)),
    )
    for found in (Examination("default", 3, 2, 30.0, nodes), Examination("default", 3, 2, 0, ())):
        shown = list(rows.check(found))
        text = _plain(shown)
        assert bare(text.replace("Redis 7.0", "")) == ""
        assert "⟦append-only file⟧, ⟦snapshots⟧" in text or not found.nodes


# -- each language ---------------------------------------------------------------------------------


def texts(memory: MemoryNodes, code: str) -> set[str]:
    """All that the pages say to a visitor whose browser asks for a language."""
    middleware = [*settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
    with override_settings(MIDDLEWARE=middleware):
        viewer = browser("view_lock", "release_lock")
        viewer.defaults["HTTP_ACCEPT_LANGUAGE"] = code
        return {text for _, page in pages(viewer, memory) for text in Read(page).texts}


@pytest.fixture
def english() -> set[str]:
    """The same in English."""
    with in_memory("default"):
        return texts(group("default"), "en")


@pytest.mark.parametrize("code", LANGUAGES)
def test_the_pages_speak_the_language_of_the_browser(memory, english, code):
    """No sentence of the English pages is on the others; words may be the same."""
    found = texts(group("default"), code)  # made anew when the settings of `english` ended
    assert [each for each in found & english if len(bare(each).split()) > 1] == []
    assert {"de": "Sperren", "ja": "ロック", "zh-hans": "锁"}[code] in found


@pytest.mark.parametrize("code", LANGUAGES)
def test_the_commands_speak_the_language_of_the_settings(memory, no_rich, code):
    """Of the process, without a visitor."""
    sentence = {
        "de": "gesund (5 von 5 Knoten stimmen ab, 3 sind nötig)",
        "ja": "正常 (5 ノード中 5 ノードが投票、3 ノードが必要)",
        "zh-hans": "正常（5 个节点中有 5 个投票，需要 3 个）",
    }[code]
    with language(code):
        assert sentence in status()[1]
        busy(memory)
        assert "held" not in status("--finished")[1]


def columns(text: str) -> str:
    """The text as a terminal shows it: a wide character takes two places."""
    return "".join(char + "~" * (unicodedata.east_asian_width(char) in "WF") for char in text)


@pytest.mark.parametrize(
    "code",
    [
        WIDE,
        pytest.param("de", marks=pytest.mark.nightly),
        pytest.param("zh-hans", marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("plain", [True, False])
def test_tables_are_aligned(memory, request, code, plain):
    """With and without rich, each cell begins where its column does."""
    if plain:
        request.getfixturevalue("no_rich")
    busy(memory)
    put(memory, "予約:東京", f"{A}:5:ウェブ-1", *range(5))
    memory.down = {1}
    with language(code):
        lines = list(map(columns, status()[1].splitlines()))
    tables = 0
    for i, line in enumerate(lines):
        if not re.fullmatch(r"[-─ ]*[-─]{3}[-─ ]*", line):
            continue
        tables += 1
        # A rule of rich is one line: there the heads tell where a column begins.
        starts = [found.start() for found in re.finditer(r"(?<=  )\S", lines[i - 1])]
        rows = lines[i + 1 : lines.index("", i) if "" in lines[i:] else None]
        rows = [row for row in rows if re.search(r" {2,}", row)]
        assert rows
        for row in rows:
            assert all(row[start - 2 : start].strip() == "" for start in starts), (line, row)
    assert tables == 3


@pytest.mark.parametrize("code", LANGUAGES)
@pytest.mark.parametrize("reason", ReasonCode)
def test_each_reason_can_be_said(code, reason):
    """With its data, also in short."""
    whole = Reason(reason, tuple((sample(reason).data | {"ahead": 1.0, "behind": 1.0}).items()))
    english = str(whole)
    with language(code):
        assert said(whole).isprintable()
        assert said(whole, brief=True).isprintable()
        assert "{" not in said(whole)
        assert (said(whole) == english) == (reason.sentence == "{text}")


# -- what stays English ----------------------------------------------------------------------------


def documents() -> list[str]:
    """What programs read of the commands."""
    asked = [("redlock_status", "--json", "--finished"), ("redlock_check", "--json")]
    asked.append(("redlock_status", "--prometheus"))
    return [re.sub(r"\d+(\.\d+)?", "0", run(*each)) for each in asked]


@pytest.mark.parametrize("code", LANGUAGES)
def test_documents_are_the_same_in_every_language(memory, code):
    """JSON and gauges: a program reads them."""
    busy(memory)
    memory.down = {1}
    before = documents()
    json.loads(before[0])
    with language(code):
        assert documents() == before
        assert status()[1] != before[0]


@pytest.mark.parametrize("code", LANGUAGES)
def test_errors_are_english_and_pages_tell_them_in_the_language(memory, code):
    """A log is searched by people who read other languages."""
    memory.down = {0, 1, 3}
    with language(code):
        with pytest.raises(NodesUnavailable) as caught:
            redlock("x").acquire()
        assert str(caught.value).endswith(
            "'x': 2 of 5 nodes could vote, 3 are needed; 3 of 5 nodes: down "
            f"({', '.join(vote.node for vote in caught.value.votes if vote.reason)})"
        )
        with pytest.raises(ValueError, match="the lock name '' is empty") as refused:
            redlock("").acquire()
        for error in (caught.value, refused.value):
            assert said(error) != str(error)
            assert bare(said(error)) != bare(str(error))
    assert said(caught.value) == str(caught.value)


def test_what_others_read_of_a_lock_that_was_taken_away_is_english(memory):
    """The holder's error and the admin's log; the user is told in the user's language."""
    held = redlock("invoice:42", renew=False).acquire()
    with language("de"):
        viewer = browser("view_lock", "release_lock")
        form = viewer.get(RELEASE, {"name": "invoice:42"}).context["form"]
        sent = {"seen": form.initial["seen"], "reason": "hängt"}
        viewer.post(f"{RELEASE}?name=invoice:42", sent)
        page = viewer.get(PAGE).content.decode()
        with pytest.raises(LeaseLost, match=r"it was revoked \(.*revoked by user\d+: hängt\)"):
            held.extend()
    assert "auf 5 von 5 Knoten entzogen, frei in höchstens " in page
    assert "taken away on 5 of 5 nodes" in LogEntry.objects.get().change_message


def test_refused_requests_are_told_so_in_their_language(memory):
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


def test_an_output_that_lacks_the_characters_gets_escapes(memory, no_rich):
    """What a command has done must not be an error because of a word."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    redlock.using(label="web-1")("invoice:42").acquire()
    with language("ja"):
        call_command("redlock_status", stdout=out)
        call_command("redlock_release", "invoice:42", "--yes", stdout=out)
    out.seek(0)
    assert r"\u30ce\u30fc\u30c9" in out.read()

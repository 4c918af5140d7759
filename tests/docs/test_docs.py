"""The documentation is tried out: what it says to type runs, and what it states is so."""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import shlex
import socket
import sqlite3
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Container, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings
from redis.exceptions import ResponseError

from django_redlock import LeaseLost, LockTaken, checks, conf, current_lease, redlock
from django_redlock.celery import checks as task_checks
from django_redlock.core import completion, marks
from django_redlock.core.reasons import CHECKS
from django_redlock.core.reasons.sentences import SENTENCES
from django_redlock.events import LEVELS
from django_redlock.fencing import checks as fence_checks
from django_redlock.fencing import field as fence_field
from django_redlock.inspection.survey import Health, survey
from django_redlock.inspection.tasks import list_tasks
from django_redlock.testing import EmbeddedNodes
from django_redlock.transport.wire import scripts
from django_redlock.views import checks as view_checks
from museum.cells import CELLS
from tests.support.addresses import SITE, addresses, leads_nowhere
from tests.support.looked_at import group, in_memory
from tests.support.retired import retired
from tests.support.servers import redis_version
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs/tutorial.md"
INSTALL = ROOT / "docs/install.md"
STATUS = ROOT / "docs/how-to/status.md"
FENCING = ROOT / "docs/how-to/fencing.md"
TESTING = ROOT / "docs/how-to/testing.md"
LONG_JOBS = ROOT / "docs/how-to/long-jobs.md"
ERRORS = ROOT / "docs/how-to/errors.md"
SETTINGS = ROOT / "docs/reference/settings.md"
SIGNALS = ROOT / "docs/reference/signals.md"
METRICS = ROOT / "docs/reference/metrics.md"
LAST_GOODBYE_SECONDS = 30.0
CELL_KEYS = {cell.key for cell in CELLS}  # of the museum; they look like paths
HEALTH = {0, 3, 4}  # the exit codes of redlock_status


class Block(NamedTuple):
    """A fenced block of a page: its language, the file that its first line names, its text."""

    language: str
    file: str
    text: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    fenced = re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)
    found = []
    for language, text in fenced:
        named = re.match(r"# (\S+\.py)\n", text)
        found.append(Block(language, named[1] if named else "", text))
    return found


# -- a reader -------------------------------------------------------------------------------------

SHELL = """\
import json, sys
import django
django.setup()
names = {}
for line in sys.stdin:
    exec(json.loads(line), names)
    print("\\0", end="", flush=True)
"""


class Reader:
    """Does in a directory of its own what a page says.

    A block with a file's name goes into that file. Other blocks of Python are typed into one
    shell, which stays open; what it prints since the last block of text is in ``seen``.
    """

    def __init__(self, home: Path, stack: ExitStack, settings: str) -> None:
        self.home = home
        self.stack = stack
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
        self.environment = {
            **kept,
            "DJANGO_SETTINGS_MODULE": settings,
            "PYTHONPATH": str(home),
            "PYTHONUTF8": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self.seen = ""
        self._open: dict[str, subprocess.Popen[str]] = {}

    def write(self, block: Block) -> None:
        """Save a file, below what is in it already."""
        path = self.home / block.file
        path.parent.mkdir(exist_ok=True)
        with path.open("a") as file:
            file.write(f"\n{block.text}")

    def run(self, command: str, *, codes: Container[int] = (0,)) -> str:
        """Run a command line to its end; what it printed."""
        ended = subprocess.run(
            self._words(command), **self._how(), capture_output=True, text=True, check=False
        )
        assert ended.returncode in codes, f"{command}: {ended.stdout}{ended.stderr}"
        printed: str = ended.stdout
        return printed

    def type(self, source: str) -> None:
        """Type Python into the shell and wait until it is done."""
        if "shell" not in self._open:
            self.start("shell", [sys.executable, "-c", SHELL])
        self.seen += self.tell("shell", json.dumps(source), until="\0")

    def close_shell(self) -> None:
        """Leave the shell; the next block opens a new one."""
        _end(self._open.pop("shell"))

    def start(self, name: str, words: list[str]) -> None:
        """Start a program that is told things."""
        pipe = subprocess.PIPE
        process = subprocess.Popen(words, **self._how(), text=True, stdin=pipe, stdout=pipe)
        self._open[name] = process
        self.stack.callback(_end, process)

    def tell(self, name: str, line: str, *, until: str) -> str:
        """Give a program a line; what it prints up to ``until``."""
        pipe = self._open[name].stdin
        assert pipe is not None
        pipe.write(f"{line}\n")
        pipe.flush()
        return self.hear(name, until=until)

    def hear(self, name: str, *, until: str) -> str:
        """What a program prints up to ``until``."""
        pipe = self._open[name].stdout
        assert pipe is not None
        said = ""
        while not said.endswith(until):
            character = pipe.read(1)
            assert character, f"it ended, after {said!r}"
            said += character
        return said.removesuffix(until)

    def _words(self, command: str) -> list[str]:
        words = shlex.split(command)
        alone = ["-p", "no:cacheprovider", "-p", "no:randomly"]
        program = {
            "python": [sys.executable],
            "django-admin": [sys.executable, "-m", "django"],
            "pytest": [sys.executable, "-m", "pytest", *alone],
        }
        return [*program[words[0]], *words[1:]]

    def _how(self) -> dict[str, Any]:
        return {"cwd": self.home, "env": self.environment}


def _end(process: subprocess.Popen[str]) -> None:
    """Let a program end by itself, which is how it ends what it has started."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.close()
        process.wait(LAST_GOODBYE_SECONDS)
    finally:
        process.kill()
        process.wait()  # or the next test is told of a process that nobody awaited
        process.stdout.close()


@contextmanager
def reader(home: Path, settings: str) -> Iterator[Reader]:
    """A reader with an empty directory."""
    with ExitStack() as stack:
        yield Reader(home, stack, settings)


# -- README ---------------------------------------------------------------------------------------


def test_the_readme_is_short():
    """The README has at most 700 words, code and tables included."""
    assert len(README.read_text().split()) <= 700


EXPLAINED = ["node", "vote", "lease", "fence"]


def unexplained(text: str) -> list[str]:
    """The words of the trade that a text uses before it has said, in bold, what they are."""
    prose = re.sub(r"\]\([^)]*\)", "]", text)
    first = {word: re.search(rf"(\**)\b{word}s?\b", prose, re.IGNORECASE) for word in EXPLAINED}
    return [word for word, found in first.items() if found and found[1] != "**"]


def test_the_readme_explains_its_words_first():
    """Who has never heard of Redlock meets no lease, node, vote or fence before its explanation."""
    text = README.read_text()
    assert all(f"**{word}" in text for word in EXPLAINED)
    assert unexplained(text) == []
    assert unexplained("Five nodes, **nodes**, **vote**. [A lease](https://fence).") == [
        "node",
        "lease",
    ]


def test_the_readme_tells_what_state_the_project_is_in():
    """Version and state are those of the package, and nothing is on the index before a release."""
    first = README.read_text().split("\n\n")[1]
    released = re.search(r"^## \[\d", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    (state,) = [each for each in PROJECT["classifiers"] if each.startswith("Development Status")]
    assert first.startswith(f"{PROJECT['version']}, {state.rpartition(' ')[2].lower()}")
    for page in (README, INSTALL):
        assert ("not yet on the package index" in page.read_text()) == (not released)


def test_the_readme_runs(tmp_path):
    """Every Python block of the README runs as pasted, in one project, from top to bottom."""
    with reader(tmp_path, "mysite.test_settings") as someone:
        _follow(someone, README)
        _follow(someone, TESTING)
        assert "no issues" in someone.run("python manage.py check --settings mysite.settings")
        _make_tables(someone)
        someone.run("python manage.py redlock_status")
        for block in blocks(README):
            if block.language == "python" and not block.file:
                someone.type(block.text)
        someone.type(USE_OF_THE_README)
        assert someone.seen.endswith("refused\n12\n")


def test_the_commands_of_the_status_page_run(tmp_path):
    """Each command in the table of the page runs in a new project, beside a lock that is held."""
    rows = re.findall(r"^\| `manage\.py (redlock_status.*?)` \|", STATUS.read_text(), re.MULTILINE)
    assert len(rows) == 8
    with reader(tmp_path, "mysite.test_settings") as someone:
        _follow(someone, INSTALL)
        _follow(someone, TESTING)
        someone.write(Block("python", "mysite/test_settings.py", PAYMENTS))
        for row in rows:
            said = someone.run(f"python manage.py {row}")
            assert "payments" in said or "--alias" not in row


def test_the_installation_runs(tmp_path):
    """The settings of the page are accepted; they are the defaults, as the page says."""
    (settings,) = [block for block in blocks(INSTALL) if block.file]
    names: dict[str, Any] = {"INSTALLED_APPS": []}
    exec(settings.text, names)  # noqa: S102 - our own page
    given = names["REDLOCK"]["default"]
    assert {**conf.DEFAULTS, "NODES": given["NODES"]} == {**conf.DEFAULTS, **given}
    with reader(tmp_path, "mysite.settings") as someone:
        _follow(someone, INSTALL)
        assert "no issues" in someone.run("python manage.py check")


def test_what_migrate_does(tmp_path):
    """Locks work before it; it makes no table, and the two permissions of the admin page."""
    with reader(tmp_path, "mysite.test_settings") as someone:
        _follow(someone, INSTALL)
        _follow(someone, TESTING)
        someone.run("python manage.py migrate --check", codes=(1,))
        someone.type("""\
from django_redlock import redlock
from django.core.management import call_command
from django.db import connection

def tables():
    return {name for name in connection.introspection.table_names() if "redlock" in name}

with redlock("before"):
    print(tables())
call_command("migrate", verbosity=0)
from django.contrib.auth.models import Permission
found = Permission.objects.filter(content_type__app_label="django_redlock")
print(tables(), *sorted(found.values_list("codename", flat=True)))
""")
        assert someone.seen.endswith("set()\nset() release_lock view_lock\n")
        someone.run("python manage.py migrate --check")


def test_a_row_refuses_as_the_page_says(tmp_path):
    """The models of the page about fencing add what is added, and refuse a lower fence."""
    with reader(tmp_path, "mysite.test_settings") as someone:
        _follow(someone, INSTALL)
        _follow(someone, FENCING)
        _follow(someone, TESTING)
        _make_tables(someone)
        for block in blocks(FENCING):
            if block.language == "python" and not block.file:
                someone.type(block.text)
        someone.type(USE_OF_FENCING)
        assert someone.seen.endswith(SEEN_OF_FENCING)


def _follow(someone: Reader, page: Path) -> None:
    """Write the files that a page shows, the first one into a new project with an empty app."""
    if not (someone.home / "manage.py").exists():
        someone.run("django-admin startproject mysite .")
        someone.run("python manage.py startapp billing")
        (someone.home / "billing/models.py").unlink()  # a comment and an import
        someone.write(Block("python", "mysite/settings.py", 'INSTALLED_APPS += ["billing"]\n'))
    for block in blocks(page):
        if block.file:
            someone.write(block)


def _make_tables(someone: Reader) -> None:
    someone.run("python manage.py makemigrations billing")
    someone.run("python manage.py migrate")


PAYMENTS = """\
REDLOCK["payments"] = {"NODES": ["memory://d"]}
"""

USE_OF_THE_README = """\
from billing.models import Invoice
from django_redlock.fencing import StaleFence
from django_redlock.fencing.field import Token

invoice = Invoice.objects.create()
invoice.add(5)
invoice.add(7)
invoice.refresh_from_db()
mine = invoice.fence
Invoice.objects.update(fence=Token(mine + 10**12))  # a later holder has claimed it
try:
    invoice.add(100)
except StaleFence:
    print("refused")
invoice.refresh_from_db()
print(invoice.total)
assert mine > 0
Invoice.objects.update(fence=Token(mine))

from types import SimpleNamespace
from django.test import RequestFactory
from billing.tasks import report
from billing.views import pay

assert report(2026) == "the report of 2026"
request = RequestFactory().post("/pay")
request.user = SimpleNamespace(pk=7)
assert pay(request, invoice.pk).status_code == 200
assert pay(request, invoice.pk).status_code == 409
with redlock("report:2026"):
    assert report(2026)["skipped"]
"""

USE_OF_FENCING = """\
import asyncio
from contextlib import closing

from billing.invoices import add
from django_redlock.fencing import StaleFence
from django_redlock.fencing.field import Token
from django_redlock.testing import EmbeddedNodes

invoice = Invoice.objects.create()
add(invoice.pk, 5)
add(invoice.pk, 7)
invoice.refresh_from_db()
Invoice.objects.filter(pk=invoice.pk).update(fence=Token(2**62))
try:
    add(invoice.pk, 100)
except StaleFence:
    print("refused")
invoice.refresh_from_db()
print(invoice.total)
Invoice.objects.filter(pk=invoice.pk).update(fence=Token(0))
asyncio.run(pay(invoice.pk))
invoice.refresh_from_db()
print(invoice.paid)
with EmbeddedNodes(1) as nodes, closing(nodes[0].client()) as client:
    print(claim(client, "k", 8), claim(client, "k", 7))
    print(write(client, "k", 7, "late"), write(client, "k", 8, "new"), client.hget("k", "value"))

from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from urllib.error import HTTPError
from wsgiref.simple_server import make_server

from django.core.wsgi import get_wsgi_application
from django.urls import path
from billing.views import total
from mysite import urls

urls.urlpatterns.append(path("total/<int:pk>/", total))
server = make_server("127.0.0.1", 0, get_wsgi_application())
Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}/total/{invoice.pk}/"
print(raise_total(url, invoice.pk))
try:
    put_total(url, 100, 1)
except HTTPError as error:
    print(error.code)
server.shutdown()
invoice.refresh_from_db()
print(invoice.total)


class Store(BaseHTTPRequestHandler):
    body, tag = b'{"fence": 0, "data": "old"}', '"0"'

    def do_GET(self):
        self.answer(200, self.body)

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers["If-Match"] != self.tag:
            return self.answer(412, b"")
        Store.body, Store.tag = body, f'"{hash(body)}"'
        self.answer(200, b"")

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("ETag", self.tag)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


store = HTTPServer(("127.0.0.1", 0), Store)
Thread(target=store.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{store.server_port}/"
data, late = claim_object(url, 7)
_, mine = claim_object(url, 8)
print(data, claim_object(url, 7), put(url, late, 7, "late"))
print(put(url, mine, 8, "new") is not None, json.loads(Store.body))
store.shutdown()
"""

SEEN_OF_FENCING = """\
refused
12
True
True False
False True b'new'
True
409
17
old None None
True {'fence': 8, 'data': 'new'}
"""


PAGES = [*(ROOT / "docs").glob("*.md"), *(ROOT / "docs").glob("[!_]*/*.md"), *ROOT.glob("*.md")]
EVERY_PAGE = pytest.mark.parametrize(
    "page", sorted(PAGES), ids=lambda page: str(page.relative_to(ROOT))
)


@EVERY_PAGE
def test_the_targets_of_a_page_exist(page):
    """Every `make` command of a page names a target of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = re.findall(r"(?:`|\$ )make ([a-z-]+)", page.read_text())
    assert set(commands) <= targets
    if page == README:
        assert {"demo", "test"} <= set(commands)


@EVERY_PAGE
def test_links_to_files(page):
    """Every relative link of a page leads to a file (Sphinx checks the anchors)."""
    for link in re.findall(r"\]\(([^)#:]+)[^):]*\)", page.read_text()):
        assert (page.parent / link).is_file(), link


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def _lead_nowhere(text: str) -> list[str]:
    """The links that the package index cannot follow, or that lead to no page of this project."""
    docs, source = PROJECT["urls"]["Documentation"], PROJECT["urls"]["Source"]
    raw = source.replace("https://github.com", "https://raw.githubusercontent.com")
    files = {
        f"{docs}en/latest/": (ROOT / "docs", ".md"),
        f"{source}/blob/main/": (ROOT, ""),
        f"{raw}/main/": (ROOT, ""),
    }
    wrong = []
    for link in re.findall(r"\]\(([^)]+)\)", text):
        url, _, anchor = link.partition("#")
        begun = [begin for begin in files if url.startswith(begin)]
        if not begun:
            wrong.append(link)
            continue
        folder, suffix = files[begun[0]]
        name = url.removeprefix(begun[0]) or "index.html"
        page = folder / (name.removesuffix(".html") + suffix)
        headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE) if anchor else []
        slugs = [heading.lower().replace(" ", "-") for heading in headings]
        if not page.is_file() or (anchor and anchor not in slugs):
            wrong.append(link)
    return wrong


def test_addresses_in_texts_of_the_package_lead_somewhere():
    """Of hints of checks, reasons, and whatever else refers to a page; each check has a section."""
    package = ROOT / "django_redlock"
    named = {each for path in package.rglob("*.py") for each in addresses(path.read_text())}
    named |= {each for sentence in SENTENCES.values() for each in addresses(sentence)}
    every = vars(checks) | vars(task_checks) | vars(fence_field) | vars(fence_checks)
    every |= vars(view_checks)
    numbers = {name.lower() for name in every if re.fullmatch(r"[EW]\d+", name)}
    named |= {f"{CHECKS}{number}" for number in numbers}
    assert len(named) > len(numbers) > 20
    assert [each for each in named if leads_nowhere(each.removesuffix("#"))] == []
    assert not any("in the documentation" in sentence for sentence in SENTENCES.values())


@pytest.mark.parametrize("address", ["no-page.html", "install.html#no-heading"])
def test_an_address_that_leads_nowhere_is_noticed(address):
    """The check above can fail."""
    assert leads_nowhere(f"{SITE}{address}")
    assert not leads_nowhere(f"{SITE}reference/settings.html#an-acl-user-for-the-nodes")


def test_links_of_the_readme_work_on_the_package_index():
    """None is relative, and each leads to a page, a heading or a file that is there."""
    text = README.read_text()
    assert text.count("](") >= 8
    assert _lead_nowhere(text) == []


@pytest.mark.parametrize(
    "link",
    [
        "docs/tutorial.md",
        "https://django-redlock.readthedocs.io/en/latest/no-page.html",
        "https://django-redlock.readthedocs.io/en/latest/install.html#no-heading",
        "https://github.com/django-redlock/django-redlock/blob/main/NO-FILE",
        "https://example.org/",
    ],
)
def test_a_link_that_leads_nowhere_is_noticed(link):
    """A relative link, a page, a heading, a file and a site that are not ours are found."""
    assert _lead_nowhere(f"[text]({link})") == [link]


GENERATED = {"mutants.md", "performance-figures.md"}


@EVERY_PAGE
def test_no_page_uses_a_retired_word(page):
    """Pages say node, request, wake-up and queue, and name their subjects; see the glossary."""
    assert page.name in GENERATED or retired(page.read_text()) == []


def test_a_retired_word_is_noticed():
    """In prose, in any case, and not in code."""
    assert retired("Whoever stood in line.\n```text\nan alarm\n```\n`a.twin`") == [
        "Whoever",
        "stood",
        "in line",
    ]


@pytest.mark.parametrize(
    "page",
    [
        "CONTRIBUTING.md",
        "docs/explanation/architecture.md",
        "docs/explanation/design.md",
        "docs/explanation/museum.md",
    ],
)
def test_the_files_that_a_page_names_exist(page):
    """A path in code style is that of a file or folder, in the repository or the package."""
    named = re.findall(r"`([a-z_.]+/[\w./-]*|\w+\.(?:py|md|toml))`", (ROOT / page).read_text())
    named = [path for path in named if path not in CELL_KEYS]
    assert named
    for path in named:
        assert (ROOT / path).exists() or (ROOT / "django_redlock" / path).exists(), path


# -- tutorial -------------------------------------------------------------------------------------


def test_the_tutorial_runs(tmp_path):
    """Who types what the tutorial says sees what the tutorial shows, but for numbers."""
    with reader(tmp_path, "shop.settings") as someone:
        for block in blocks(TUTORIAL):
            if block.file:
                someone.write(block)
            elif block.language == "python":
                if "billing.models" in block.text:
                    someone.close_shell()  # "Leave the shell and open it again"
                someone.type(block.text)
            elif block.language == "console":
                for line in block.text.splitlines():
                    _obey(someone, line)
            else:
                shown = re.sub(r"^lock unavailable: .*\n", "", block.text)  # goes to stderr
                assert _gist(someone.seen) == _gist(shown)
                someone.seen = ""
        eventually(partial(_is_guarded_at_first, someone), within=60)
        someone.tell("nodes", "", until="")  # "End the nodes with an empty line"


def _is_guarded_at_first(someone: Reader) -> bool:
    """Whether the status, asked in the three seconds after a restart, shows the guard."""
    someone.tell("nodes", "restart 3", until="nodes> ")
    return "restart guard" in someone.run("python manage.py redlock_status", codes=HEALTH)


def _obey(someone: Reader, line: str) -> None:
    """Do what a line of a console block says; the environment is there already."""
    prompt, _, command = line.partition(" ")
    if command == "python nodes.py":
        someone.start("nodes", [sys.executable, "-u", "nodes.py"])
        someone.seen = someone.hear("nodes", until="nodes> ")
        told = someone.home / "nodes.json"
        alias = json.loads(told.read_text())
        told.write_text(json.dumps(alias | {"NODE_TIMEOUT": 1}))  # a stall makes no node silent
    elif prompt == "nodes>":
        someone.tell("nodes", command, until="nodes> ")
    elif "redlock_status" in command:
        someone.seen = someone.run(command, codes=HEALTH)
    elif command.startswith(("python manage.py", "django-admin")):
        someone.run(command)


def _gist(text: str) -> list[list[str]]:
    """The words of each line, without numbers, rulers, and the names of machine and server."""
    text = text.replace(socket.gethostname(), "laptop")
    text = re.sub(r"\b(redis|valkey) (?=\d+\.)", "SERVER ", text)
    text = re.sub(r"^[─ -]+$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\d+(\.\d+)*( (s|min|ms)\b)?", "N", text)
    text = text.replace("N to N", "N")  # seconds left, where the nodes do not agree on a tenth
    return [words for line in text.splitlines() if (words := line.split())]


# -- long jobs ------------------------------------------------------------------------------------


def test_long_jobs_are_done_as_the_page_says(tmp_path):
    """The page's functions hold, ask, stop when told, and write under their fence only."""
    names: dict[str, Any] = {}
    for block in blocks(LONG_JOBS):
        exec(block.text, names)  # noqa: S102 - our own page
    seen: list[int] = []

    def lose(*_: object, **__: object) -> None:
        seen.append(1)
        for node in group("default").nodes:
            node.keys.clear()
        lease = current_lease()
        assert lease is not None
        with pytest.raises(LeaseLost):
            lease.extend()

    with in_memory("default"), closing(sqlite3.connect(tmp_path / "jobs.sqlite3")) as table:
        with pytest.raises(LeaseLost):
            names["rebuild"]([1, 2, 3], lose)
        assert len(seen) == 1
        names["import_feed"]([1, 2, 3], lose)
        assert len(seen) == 2
        with pytest.raises(LeaseLost):
            names["nightly"](lose)
        table.execute("CREATE TABLE job (id, fence, done)")
        table.execute("INSERT INTO job VALUES (7, 0, 0)")
        with redlock("job") as early:
            names["step"](early, lambda: seen.append(1), 10_000)
            assert names["claim"](table, early)
            assert names["save"](table, early, 5)
        with redlock("job") as late:
            assert names["claim"](table, late)
            assert not names["claim"](table, early)
            assert not names["save"](table, early, 6)
            assert names["save"](table, late, 7)
        assert table.execute("SELECT fence, done FROM job").fetchall() == [(late.fence, 7)]


# -- errors ---------------------------------------------------------------------------------------


def test_the_errors_are_handled_as_the_page_says():
    """Each function of the page about errors runs, and does what the page says on its error."""
    names: dict[str, Any] = {}
    for text in re.findall(
        r"^ *```python\n(.*?)^ *```$", ERRORS.read_text(), re.DOTALL | re.MULTILINE
    ):
        exec(textwrap.dedent(text), names)  # noqa: S102 - our own page
    holder = f"{socket.gethostname()}:{os.getpid()}"
    with in_memory("default"):
        assert names["send_newsletter"]() == "sent"
        with redlock("newsletter"):
            assert names["send_newsletter"]() == f"{holder} is sending it"
        assert names["charge"](7) == "charged"
        assert names["refresh_cache"]() == "refreshed"

        sent: list[int] = []

        def send(account: int) -> None:
            sent.append(account)
            if account == 2:
                lease = current_lease()
                assert lease is not None
                lease.release()

        with pytest.raises(LeaseLost):
            names["pay_out"]([1, 2, 3], send)
        assert sent == [1, 2]
        group("default").down = {0, 1, 2}
        assert names["charge"](7) == "try again in a moment"
        assert names["refresh_cache"]() == "refreshed without the lock"


# -- settings -------------------------------------------------------------------------------------


def test_every_setting_is_described():
    """The reference has each key with its default, a section for it, and no other keys."""
    page = SETTINGS.read_text()
    rows = re.findall(r"^\| \[`([A-Z_]+)`\].*\| `([^`]*)`[^|]*\|$", page, re.MULTILINE)
    assert {key: ast.literal_eval(default) for key, default in rows} == conf.DEFAULTS
    sections = re.findall(r"^### ([A-Z_]+)$", page, re.MULTILINE)
    assert sections == list(conf.DEFAULTS)


def test_the_settings_of_the_reference_are_accepted():
    """Each example of the reference is a setting that works, alone and beside nodes."""
    for block in blocks(SETTINGS):
        if block.language != "python":
            continue
        if block.text.startswith("REDLOCK"):
            names: dict[str, Any] = {}
            exec(block.text, names)  # noqa: S102 - our own page
            aliases = names["REDLOCK"]
        else:
            example = ast.literal_eval(f"{{{block.text}}}")
            aliases = {"default": {"NODES": ["rediss://10.0.0.1/0"]} | example}
        for alias, setting in aliases.items():
            conf.make(alias, setting)


def test_the_guard_of_the_pages():
    """The 71 seconds and the half of CLOCK_SKEW that the pages name follow from the defaults."""
    made = conf.make("default", {"NODES": ["redis://10.0.0.1"]})
    guard = conf.DEFAULTS["MAX_TTL"] + conf.DEFAULTS["CLOCK_SKEW"] + conf.UPTIME_STEP
    assert guard == 71
    assert made.policy.slack == 5
    for page in (README, INSTALL, SETTINGS, TUTORIAL):
        assert "71" in page.read_text()


def test_every_check_is_described():
    """Each id of a system check has a section."""
    every = vars(checks) | vars(task_checks) | vars(fence_field) | vars(fence_checks)
    every |= vars(view_checks)
    ids = {value for name, value in every.items() if re.fullmatch(r"[EW]\d+", name)}
    assert (
        set(re.findall(r"^### (django_redlock\.\w+)$", SETTINGS.read_text(), re.MULTILINE)) == ids
    )


@pytest.mark.parametrize(
    "option", ["socket_timeout", "retry", "protocol", "parser_class", "max_connections", "nonsense"]
)
def test_options_that_cannot_be_set(option):
    """What the reference says cannot be set in OPTIONS is refused, and so is the unknown."""
    with pytest.raises(ImproperlyConfigured, match=option):
        conf.make("default", {"NODES": ["redis://10.0.0.1"], "OPTIONS": {option: 1}})


# -- signals and metrics --------------------------------------------------------------------------

TELLING = """
from django_redlock import NodesUnavailable, conf, redlock

with redlock("invoice:42"):
    redlock("invoice:42").try_acquire()
lost = redlock("import", ttl=1, renew=False).acquire()
nodes = conf.backend("default").group
for node in nodes.nodes:
    node.keys.clear()
lost.release()
nodes.down = {0, 1, 2}
try:
    redlock("invoice:43").acquire()
except NodesUnavailable as error:
    down = error
from django_redlock.events import TaskEvent, TaskOutcome, tell_of_task
of_task = "default", "account:7", "reports.tasks.sync", "the-id"
tell_of_task(TaskEvent(TaskOutcome.DUPLICATE, *of_task, other_id="the-first"))
tell_of_task(TaskEvent(TaskOutcome.DEFERRED, *of_task, seconds=7.0, error=down))
"""


def test_the_examples_of_signals_run(tmp_path):
    """The receivers and the listener of the page are called with what they ask for."""
    with reader(tmp_path, "tests.settings") as someone:
        someone.environment["PYTHONPATH"] = str(ROOT)
        for block in blocks(SIGNALS):
            if block.language == "python":
                someone.type(block.text)
        someone.type(TELLING)
    for told in (
        "invoice:42 is taken",
        r"import was lost after \d+\.\d s",
        "the nodes of default could not be asked for invoice:43",
        r"acquired default invoice:42 \d+\.",
        "reports.tasks.sync of account:7 was asked for again: the-first waits or runs",
        "reports.tasks.sync the-id comes back in 7 s: ",
    ):
        assert re.search(told, someone.seen)


def test_the_examples_of_metrics_run(tmp_path):
    """The calls and the settings of the page are accepted, and its table has every metric."""
    with reader(tmp_path, "tests.settings") as someone:
        someone.environment["PYTHONPATH"] = str(ROOT)
        for block in blocks(METRICS):
            if block.language == "python":
                someone.type(block.text)
        someone.type("import logging.config; logging.config.dictConfig(LOGGING)")
        someone.type("events.tell_of_node(events.NodeTiming('default', '10.0.0.1:6379/0', 0.0007))")
        someone.type("from django_redlock.core.reasons import ReasonCode, because")
        someone.type("down = because(ReasonCode.DOWN)")
        someone.type(
            "events.tell_of_node(events.NodeTiming('default', '10.0.0.2:6379/0', None, down))"
        )
    assert "10.0.0.1:6379/0 answered in 0.70 ms" in someone.seen
    assert "10.0.0.2:6379/0 gave no vote: down" in someone.seen
    source = (ROOT / "django_redlock/otel.py").read_text()
    named = set(re.findall(r'"(redlock\.[a-z]+(?:\.(?:duration|failures|messages))?)", "', source))
    assert set(re.findall(r"^\| `(redlock\.[a-z.]+)`", METRICS.read_text(), re.MULTILINE)) == named


def test_the_levels_of_the_page_are_those_of_the_log():
    """The table of levels names each event once, at its level."""
    rows = re.findall(r"^\| `(WARNING|INFO|DEBUG)` \| (.*) \|$", METRICS.read_text(), re.MULTILINE)
    told = {kind: level for level, text in rows for kind in re.findall(r"`([a-z ]+)`", text)}
    assert told == {str(kind): logging.getLevelName(level) for kind, level in LEVELS.items()}


# -- the ACL line ---------------------------------------------------------------------------------

PASSWORD = "s3cr3t"


def acl_rules() -> list[str]:
    """The rules of the ACL line in the reference, for our password, as Redis 7.2 takes them."""
    (line,) = re.findall(r"^ACL SETUSER redlock (.*)$", SETTINGS.read_text(), re.MULTILINE)
    return str(line).replace(">PASSWORD", f">{PASSWORD}").split()


@pytest.fixture(scope="module")
def confined() -> Iterator[EmbeddedNodes]:
    """Two real nodes with the user of the reference; every lock needs both of them."""
    with EmbeddedNodes(2) as nodes:
        for node in nodes:
            with closing(node.client()) as admin:
                rules = acl_rules()
                if (7, 0) <= redis_version(node) < (7, 2):
                    rules.remove("+client|setinfo")  # the exception that the reference names
                admin.execute_command("ACL SETUSER", "redlock", *rules)
        yield nodes


def alias(nodes: EmbeddedNodes, database: int = 0) -> dict[str, Any]:
    """An alias that knows the nodes by the confined user only; it admits them, too."""
    return {
        "NODES": [
            {
                "URL": f"redis://{node.host}:{node.port}/{database}",
                "USERNAME": "redlock",
                "PASSWORD": PASSWORD,
            }
            for node in nodes
        ],
        "MAX_TTL": 5,
        "TTL": 5,
        "NODE_TIMEOUT": 10,
        "RESTART_GUARD": False,
        "OPTIONS": {"client_name": "tests"},
    }


def test_the_acl_line_suffices(confined):
    """With the user of the reference a lock can be taken, kept, given away, rested and seen."""
    with override_settings(REDLOCK={"default": alias(confined)}):
        with redlock("acl") as lease:
            lease.extend(4)
            with closing(confined[0].client()) as admin:
                shown = survey(conf.backend("default"))
                assert shown.health is Health.OK
                assert [lock.name for lock in shown.locks] == ["acl"]
                found = survey(conf.backend("default"), matching="acl".__eq__, memory=True)
                assert [lock.name for lock in found.locks] == ["acl"]
                assert all(node.maxmemory is not None for node in found.nodes)
                assert admin.execute_command("ACL LOG") == []
        assert redlock("acl").try_acquire() is not None
        given = redlock(["acl:a", "acl:b"]).acquire().handle()
        redlock.adopt(given).release()
        redlock("acl:rest", min_hold=4).acquire().release()
        assert redlock("acl:rest").try_acquire() is None
    with override_settings(REDLOCK={"default": alias(confined, database=1)}), redlock("acl:db"):
        pass
    for node in confined:
        with closing(node.client()) as admin:
            assert admin.execute_command("ACL LOG") == []


def test_the_acl_line_suffices_for_tasks(confined):
    """With the rights of the reference tasks are marked, recorded and listed, with all indexes."""
    with override_settings(REDLOCK={"default": alias(confined)}):
        backend = conf.backend("default")
        key = marks.mark_key(backend.policy, "sync", ["acl:task"])
        run = redlock.using(label="host:1(sync):id-1", renew=False)
        publish = partial(marks.publish, backend.policy, key, task="sync", ttl=60)
        with closing(confined[0].client()) as admin:
            for number in range(3000):
                backend.run(publish(task_id="id-1"))
                lease = run(f"run:sync:{number}").acquire()
                lease.disown()
                backend.run(completion.complete(backend.policy, lease.grant, life=60))
                calls = admin.info("commandstats")
                if {"cmdstat_zremrangebyrank", "cmdstat_zremrangebyscore"} <= set(calls):
                    break
            assert calls["cmdstat_zremrangebyrank"].get("failed_calls", 0) == 0
            (task,) = list_tasks(backend, frozenset({0, 1}), finished=True).tasks
            assert (task.task, task.state) == ("sync", "queued")
            backend.run(marks.remove(backend.policy, key))
            assert admin.zcard("redlock:marks") == 0
            (task,) = list_tasks(backend, frozenset({0, 1}), finished=True).tasks
            assert (task.task, task.state) == ("sync", "finished")
    for node in confined:
        with closing(node.client()) as admin:
            assert admin.execute_command("ACL LOG") == []


def test_the_acl_line_suffices_to_raise(confined):
    """Counters that differ are raised, with the rights of the reference."""
    with override_settings(REDLOCK={"default": alias(confined)}):
        with redlock("acl:raised") as first:
            pass
        field = conf.backend("default").policy.target(["acl:raised"]).fields[0]
        ahead = first.fence + 60_000_000
        with closing(confined[0].client()) as admin:
            admin.hset("redlock:fences", field, ahead)
        with redlock("acl:raised") as second:
            assert second.fence == ahead + 1
    for node in confined:
        with closing(node.client()) as admin:
            assert int(admin.hget("redlock:fences", field)) == ahead + 1


def test_the_acl_line_grants_no_more_than_is_used():
    """The commands of the reference are those of the scripts, of connecting and of waiting."""
    text = "".join([scripts.ADMIT, *scripts.TEXT.values()])
    used = {name.lower() for name in re.findall(r"redis\.p?call\('(\w+)'", text)}
    connecting = {
        "eval",
        "evalsha",
        "script|load",
        "info",
        "select",
        "client|id",
        "client|setname",
        "client|setinfo",
    }
    waiting = {"blpop", "client|unblock"}
    granted = {rule.removeprefix("+") for rule in acl_rules() if rule.startswith("+")}
    assert granted == used | connecting | waiting


def test_the_acl_line_suffices_to_wait(confined):
    """With the rights of the reference one stands in line, is woken, gives up, and claims."""
    with override_settings(REDLOCK={"default": alias(confined)}), ExitStack() as stack:
        admins = [stack.enter_context(closing(node.client())) for node in confined]

        def blocked() -> bool:
            return any(int(admin.info("clients")["blocked_clients"]) for admin in admins)

        held, taken = redlock("acl:wait", renew=False).acquire(), []
        waiter = Thread(target=lambda: taken.append(redlock("acl:wait").acquire(wait=20)))
        waiter.start()
        eventually(blocked)
        held.release()
        waiter.join(30)
        assert taken[0].fence > held.fence
        assert held.remaining() <= 0
        with pytest.raises(LockTaken):
            redlock("acl:wait").acquire(wait=0.2)
        taken[0].release()
        eventually(lambda: not blocked())
        for admin in admins:  # as after a release for somebody who has gone since
            admin.set("redlock:lock:acl:claim", "next::", px=3000)
            admin.rpush("redlock:queue:acl:claim", "0" * 32)
        redlock("acl:claim").acquire().release()
        for admin in admins:
            assert admin.execute_command("ACL LOG") == []


@pytest.mark.parametrize(
    "words",
    [
        ["FLUSHALL"],
        ["FLUSHDB"],
        ["KEYS", "*"],
        ["SCAN", "0"],
        ["CONFIG", "GET", "requirepass"],
        ["ACL", "LIST"],
        ["CLIENT", "KILL", "TYPE", "normal"],
        ["CLIENT", "LIST"],
        ["BLPOP", "jobs", "1"],
        ["SHUTDOWN", "NOSAVE"],
        ["REPLICAOF", "127.0.0.1", "1"],
        ["GET", "session:1"],
        ["SET", "session:1", "x"],
        ["EVAL", "return redis.call('GET', KEYS[1])", "1", "session:1"],
        ["EVAL", "return redis.call('GET', 'session:1')", "0"],
        ["EVAL", "return redis.call('FLUSHALL')", "0"],
        ["EVAL", "return redis.call('KEYS', '*')", "0"],
    ],
    ids=" ".join,
)
def test_the_acl_line_refuses_the_rest(confined, words):
    """Other commands and other keys are refused, also from within a script."""
    with (
        closing(confined[0].client(username="redlock", password=PASSWORD)) as user,
        closing(confined[0].client()) as admin,
    ):
        # Redis before 7.0 says the last in a script.
        with pytest.raises(ResponseError, match=r"(?i)permission|ACL|The user executing .* can't"):
            user.execute_command(*words)
        admin.execute_command("ACL LOG", "RESET")

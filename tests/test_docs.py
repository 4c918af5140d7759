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
from django_redlock.events import LEVELS
from django_redlock.inspection.results import Health
from django_redlock.inspection.survey import survey
from django_redlock.testing import EmbeddedNodes
from django_redlock.transport.wire import scripts
from tests.test_status import group, in_memory
from tests.waiting import eventually

from .servers import redis_version

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
TUTORIAL = ROOT / "docs/tutorial.md"
LONG_JOBS = ROOT / "docs/how-to/long-jobs.md"
ERRORS = ROOT / "docs/how-to/errors.md"
SETTINGS = ROOT / "docs/reference/settings.md"
SIGNALS = ROOT / "docs/reference/signals.md"
METRICS = ROOT / "docs/reference/metrics.md"
LAST_GOODBYE_SECONDS = 30.0
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
        process.stdout.close()


@contextmanager
def reader(home: Path, settings: str) -> Iterator[Reader]:
    """A reader with an empty directory."""
    with ExitStack() as stack:
        yield Reader(home, stack, settings)


# -- README ---------------------------------------------------------------------------------------


def test_the_readme_runs(tmp_path):
    """Every Python block of the README runs as pasted, in one project, from top to bottom."""
    with reader(tmp_path, "mysite.test_settings") as someone:
        _follow_the_readme(someone)
        assert "no issues" in someone.run("python manage.py check --settings mysite.settings")
        someone.run("python manage.py makemigrations billing")
        someone.run("python manage.py migrate")
        for command in re.findall(r"^\$ (python manage.py .*)$", README.read_text(), re.MULTILINE):
            someone.run(command)
        for block in blocks(README):
            if block.language == "python" and not block.file:
                someone.type(block.text)
        someone.type(USE_OF_THE_README)
        assert someone.seen.endswith("refused\n12\n")


def test_the_tests_of_the_readme_run(tmp_path):
    """The test that the README shows passes, in a project that has only been told of the nodes."""
    with reader(tmp_path, "mysite.settings") as someone:
        _follow_the_readme(someone)
        assert "1 passed" in someone.run("pytest tests")


def _follow_the_readme(someone: Reader) -> None:
    """A project with the files that the README shows."""
    someone.run("django-admin startproject mysite .")
    someone.run("python manage.py startapp billing")
    (someone.home / "billing/models.py").unlink()  # a comment and an import
    for block in blocks(README):
        if block.file:
            someone.write(block)
    someone.write(Block("python", "mysite/settings.py", 'INSTALLED_APPS += ["billing"]\n'))


USE_OF_THE_README = """\
from billing.invoices import add
from billing.models import Invoice, StaleHolder

invoice = Invoice.objects.create()
add(invoice.pk, 5)
add(invoice.pk, 7)
invoice.refresh_from_db()
try:
    Invoice.objects.write(invoice.pk, invoice.fence - 1, total=0)
except StaleHolder:
    print("refused")
print(invoice.total)

from types import SimpleNamespace
from django.test import RequestFactory
from billing.tasks import report
from billing.views import pay

assert report(2026) == "the report of 2026"
request = RequestFactory().post("/pay")
request.user = SimpleNamespace(pk=7)
assert pay(request, invoice.pk).status_code == 200
with redlock("report:2026"), redlock(f"pay:7:{invoice.pk}"):
    assert report(2026)["skipped"]
    assert pay(request, invoice.pk).status_code == 409
"""


def test_the_targets_of_the_readme_exist():
    """Every `make` command in the README names a target of the Makefile."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = re.findall(r"(?:`|\$ )make ([a-z-]+)", README.read_text())
    assert {"demo", "test"} <= set(commands) <= targets


@pytest.mark.parametrize("page", [README, *sorted((ROOT / "docs").glob("[!_]*/*.md"))], ids=str)
def test_links_to_files(page):
    """Every relative link of a page leads to a file (Sphinx checks the anchors)."""
    for link in re.findall(r"\]\(([^)#:]+)[^):]*\)", page.read_text()):
        assert (page.parent / link).is_file(), link


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
                assert _gist(someone.seen) == _gist(block.text)
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
    text = re.sub(r"\d+(\.\d+)*( (s|min|ms)\b)?", "N", text.replace("─", ""))
    text = text.replace("N to N", "N")  # seconds left, where the nodes do not agree on a tenth
    return [words for line in text.splitlines() if (words := line.split())]


# -- long jobs ------------------------------------------------------------------------------------


def test_long_jobs_are_done_as_the_page_says(tmp_path):
    """FM-6: the page's functions hold, ask, stop when told, and write under their fence only."""
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
    for page in (README, SETTINGS, TUTORIAL):
        assert "71" in page.read_text()


def test_every_check_is_described():
    """Each id of a system check has a section."""
    ids = {value for name, value in vars(checks).items() if re.fullmatch(r"[EW]\d+", name)}
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
except NodesUnavailable:
    pass
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
        someone.type(
            "events.tell_of_node(events.NodeTiming('default', '10.0.0.2:6379/0', None, 'down'))"
        )
    assert "10.0.0.1:6379/0 answered in 0.70 ms" in someone.seen
    assert "10.0.0.2:6379/0 gave no vote: down" in someone.seen
    source = (ROOT / "django_redlock/otel.py").read_text()
    named = set(re.findall(r'"(redlock\.[a-z]+(?:\.(?:duration|failures))?)", "', source))
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
                assert None not in found.evictions
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

"""The documentation is tried out: what it says to type runs, and what it states is so."""

from __future__ import annotations

import ast
import json
import os
import re
import socket
import sys
from contextlib import closing
from functools import partial
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_redlock import LeaseLost, NodesUnavailable, checks, conf, current_lease, redlock
from django_redlock.celery import checks as task_checks
from django_redlock.checks import check_deployment, check_settings
from django_redlock.core.reasons import CHECKS, ReasonCode
from django_redlock.fencing import field as fence_field
from django_redlock.testing import EmbeddedNode
from django_redlock.views import checks as view_checks
from tests.docs.pages import (
    BEYOND,
    ERRORS,
    EVERY_PAGE,
    FENCING,
    HEALTH,
    INSTALL,
    LONG_JOBS,
    METRICS,
    MONITORING,
    ONE_REDIS,
    README,
    ROOT,
    SETTINGS,
    SIGNALS,
    TESTING,
    TUTORIAL,
    Reader,
    blocks,
    follow,
    gist,
    make_tables,
    reader,
    whole,
)
from tests.support.addresses import addresses, leads_nowhere
from tests.support.looked_at import group, in_memory
from tests.support.waiting import eventually

# -- README ---------------------------------------------------------------------------------------


def test_the_readme_runs(tmp_path):
    """Every Python block of the README runs as pasted, in one project, from top to bottom.

    Its view warns of nothing, with ATOMIC_REQUESTS and without.
    """
    with reader(tmp_path, "mysite.test_settings") as someone:
        follow(someone, README)
        follow(someone, TESTING)
        assert "no issues" in someone.run("python manage.py check --settings mysite.settings")
        make_tables(someone)
        someone.run("python manage.py redlock_status")
        for block in blocks(README):
            if block.language == "python" and not block.file:
                someone.type(block.text)
        someone.type(USE_OF_THE_README)
        assert "charge the card\n" in someone.seen
        assert someone.seen.endswith("refused\n" + 2 * "200 409 True True\n")


def test_the_installation_runs(tmp_path):
    """The settings of the page are accepted; they are the defaults, as the page says."""
    (settings,) = [block for block in blocks(INSTALL) if block.file]
    names: dict[str, Any] = {"INSTALLED_APPS": []}
    exec(settings.text, names)  # noqa: S102 - our own page
    given = names["REDLOCK"]["default"]
    assert {**conf.DEFAULTS, "NODES": given["NODES"]} == {**conf.DEFAULTS, **given}
    with reader(tmp_path, "mysite.settings") as someone:
        follow(someone, INSTALL)
        assert "no issues" in someone.run("python manage.py check")


def settings_of_ones_own_machine(url: str) -> Any:
    """The settings that the page shows, for this node."""
    assert 'Add `"TTL": 5`' in ONE_REDIS.read_text()
    (settings,) = [block for block in blocks(ONE_REDIS) if block.file]
    names: dict[str, Any] = {"INSTALLED_APPS": []}
    exec(settings.text.replace("redis://127.0.0.1:6379/1", url), names)  # noqa: S102 - our own page
    names["REDLOCK"]["default"]["TTL"] = 5
    return names["REDLOCK"]


def test_the_first_lock_on_a_new_node_is_taken_at_once():
    """With the settings of the page, and no warning; with the guard it is refused for 71 s."""
    with closing(EmbeddedNode()) as node:
        node.start()
        setting = settings_of_ones_own_machine(node.url)
        with override_settings(REDLOCK=setting):
            with redlock("first", wait=20.0) as lease:  # as long as this machine may stall
                lease.ensure()
            assert check_settings() == check_deployment() == []
        del setting["default"]["RESTART_GUARD"]
        with (
            override_settings(REDLOCK={"default": setting["default"] | {"NODE_TIMEOUT": 10}}),
            pytest.raises(NodesUnavailable, match=r"restart guard.*(6\d|7[01])"),
        ):
            redlock("first").acquire()


def test_what_migrate_does(tmp_path):
    """Locks work before it; it makes no table, and the two permissions of the admin page."""
    with reader(tmp_path, "mysite.test_settings") as someone:
        follow(someone, INSTALL)
        follow(someone, TESTING)
        someone.type("""\
from django_redlock import redlock
from django.core.management import call_command
from django.db import connection

def is_there():
    try:
        call_command("migrate", check_unapplied=True, verbosity=0)
    except SystemExit:
        return False
    return True

def tables():
    return {name for name in connection.introspection.table_names() if "redlock" in name}

with redlock("before"):
    print(tables(), is_there())
call_command("migrate", verbosity=0)
from django.contrib.auth.models import Permission
found = Permission.objects.filter(content_type__app_label="django_redlock")
print(tables(), is_there(), *sorted(found.values_list("codename", flat=True)))
""")
        assert someone.seen.endswith("set() False\nset() True release_lock view_lock\n")


def test_a_row_refuses_as_the_page_says(tmp_path):
    """The models of the page add what is added, and resources beyond refuse a lower fence."""
    with reader(tmp_path, "mysite.test_settings") as someone:
        follow(someone, INSTALL)
        follow(someone, FENCING)
        follow(someone, BEYOND)
        follow(someone, TESTING)
        make_tables(someone)
        for block in [*blocks(FENCING), *blocks(BEYOND)]:
            if block.language == "python" and not block.file:
                someone.type(block.text)
        someone.type(USE_OF_FENCING)
        assert someone.seen.endswith(SEEN_OF_FENCING)


USE_OF_THE_README = """\
import warnings

from billing.models import Invoice
from billing.tasks import report
from billing.views import pay
from django.db import connection
from django.test import Client
from django.urls import path
from django_redlock.fencing import StaleFence
from django_redlock.fencing.field import Token
from mysite import urls

late, invoice = Invoice.objects.create(), Invoice.objects.create()
Invoice.objects.filter(pk=late.pk).update(fence=Token(2**62))  # a later holder has claimed it
with redlock(f"invoice:{late.pk}") as lease:
    try:
        late.charge(lease)
    except StaleFence:
        print("refused")

urls.urlpatterns.append(path("pay/<int:pk>/", pay))
for atomic in (False, True):
    connection.settings_dict["ATOMIC_REQUESTS"] = atomic
    invoice = Invoice.objects.create()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        client = Client(SERVER_NAME="localhost")
        statuses = [client.post(f"/pay/{invoice.pk}/").status_code for _ in range(2)]
    invoice.refresh_from_db()
    print(*statuses, invoice.paid, invoice.fence > 0)

assert report(2026) == "the report of 2026"
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
print(put_total(url, 100, 1))
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

publish(".", 10, "ten")
publish(".", 9, "late")
print(newest(".").read_text())
"""

SEEN_OF_FENCING = """\
refused
12
True
True False
False True b'new'
True
False
17
old None None
True {'fence': 8, 'data': 'new'}
ten
"""


# -- links ----------------------------------------------------------------------------------------


@EVERY_PAGE
def test_links_to_files(page):
    """Every relative link of a page leads to a file (Sphinx checks the anchors)."""
    for link in re.findall(r"\]\(([^)#:]+)[^):]*\)", page.read_text()):
        assert (page.parent / link).is_file(), link


def test_addresses_in_texts_of_the_package_lead_somewhere():
    """Of hints of checks, reasons, and whatever else refers to a page; each check has a section."""
    package = ROOT / "django_redlock"
    named = {each for path in package.rglob("*.py") for each in addresses(path.read_text())}
    named |= {each for code in ReasonCode for each in addresses(code.sentence)}
    every = vars(checks) | vars(task_checks) | vars(fence_field)
    every |= vars(view_checks)
    numbers = {name.lower() for name in every if re.fullmatch(r"[EW]\d+", name)}
    named |= {f"{CHECKS}{number}" for number in numbers}
    assert len(named) > len(numbers) > 20
    assert [each for each in named if leads_nowhere(each.removesuffix("#"))] == []
    assert not any("in the documentation" in code.sentence for code in ReasonCode)


def test_links_of_the_readme_work_on_the_package_index():
    """None is relative, and each leads to a page, a heading or a file that is there."""
    links = re.findall(r"\]\(([^)]+)\)", README.read_text())
    assert links
    ours = (
        r"https://(github|raw\.githubusercontent)\.com/django-redlock/django-redlock/(blob/)?main/"
    )
    for link in links:
        file = re.sub(ours, "", link)
        found = (ROOT / file).is_file() if file != link else not leads_nowhere(link)
        assert found, link
        assert link.startswith("https://"), link


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
                assert gist(someone.seen) == gist(shown)
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


# -- long jobs ------------------------------------------------------------------------------------


def test_long_jobs_are_done_as_the_page_says():
    """The page's functions hold, ask, and stop when told."""
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

    with in_memory("default"):
        with pytest.raises(LeaseLost):
            names["rebuild"]([1, 2, 3], lose)
        assert len(seen) == 1
        names["import_feed"]([1, 2, 3], lose)
        assert len(seen) == 2
        with pytest.raises(LeaseLost):
            names["nightly"](lose)
        with redlock("job") as lease:
            names["step"](lease, lambda: seen.append(1), 10_000)


# -- errors ---------------------------------------------------------------------------------------


def test_the_errors_are_handled_as_the_page_says():
    """Each function of the page about errors runs, and does what the page says on its error."""
    names: dict[str, Any] = {}
    for block in blocks(ERRORS, nested=True):
        if block.language == "python":
            exec(block.text, names)  # noqa: S102 - our own page
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
    """The calls and settings of two pages are accepted, and the table has every metric."""
    with reader(tmp_path, "tests.settings") as someone:
        someone.environment["PYTHONPATH"] = str(ROOT)
        for block in [*blocks(METRICS), *blocks(MONITORING)]:
            if block.language == "python" and "health" not in block.file:
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
    named = set(re.findall(r'"(redlock\.[a-z_]+(?:\.(?:duration|failures|messages))?)", "', source))
    assert set(re.findall(r"^\| `(redlock\.[a-z._]+)`", whole(METRICS), re.MULTILINE)) == named

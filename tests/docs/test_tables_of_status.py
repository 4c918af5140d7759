"""Tables of the status command, of the admin page and of the installation say what is so."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import fields
from functools import partial
from threading import Thread
from typing import Any

import pytest
from django.core.management import CommandError, call_command, get_commands, load_command_class
from django.core.management.base import BaseCommand

from django_redlock import conf, redlock
from django_redlock.admin import REFRESH
from django_redlock.core import completion, marks
from django_redlock.inspection.patterns import parse
from django_redlock.inspection.probe import NodeState
from django_redlock.inspection.rows import EXIT
from django_redlock.inspection.state import LockState
from django_redlock.inspection.survey import Health, LockStatus
from django_redlock.inspection.tasks import TaskState
from django_redlock.models import LockKey
from tests.docs.tables import ROOT, codes, first_codes, table, tables
from tests.docs.test_docs import PROJECT, STATUS
from tests.support.looked_at import A, finish, put, queue
from tests.support.waiting import eventually

PAGE = "docs/how-to/status.md"
OWN = [each for each in Health if each is not Health.NOT_YET]  # that one is of redlock_check
ADMIN = "docs/how-to/admin.md"
TEMPLATES = ROOT / "django_redlock/templates/admin/django_redlock/lockkey"


# -- the command ----------------------------------------------------------------------------------


def test_the_options_of_the_command():
    """The table uses each option of the command, and no other."""
    assert get_commands()["redlock_status"] == "django_redlock"
    parser = load_command_class("django_redlock", "redlock_status").create_parser("manage.py", "x")
    everywhere = BaseCommand().create_parser("manage.py", "x")
    own = set(parser._option_string_actions) - set(everywhere._option_string_actions)
    commands = [codes(row[0])[0] for row in table(PAGE, "Command").rows]
    assert {word for command in commands for word in command.split() if word[0] == "-"} == own
    for command in commands:
        parser.parse_args(command.replace("'", "").split()[2:])


def test_the_exit_status(memory):
    """Each health has its row; 1 and 2 are what Django and argparse end with."""
    assert {int(row[0]) for row in table(PAGE, "Exit status").rows} == {*map(EXIT.get, OWN), 1, 2}
    with pytest.raises(CommandError) as wrong:
        call_command("redlock_status", "--alias", "nobody")
    assert wrong.value.returncode == 1


def keys_of(document: Any, where: str = "") -> Iterator[str]:
    """The places of a document, as the page writes them, without what leads to a list."""
    if isinstance(document, list):
        for each in document:
            yield from keys_of(each, f"{where}[]")
    elif isinstance(document, dict):
        for key, value in document.items():
            name = "*" if where == "aliases" else key
            place = f"{where}.{name}" if where else name
            if not isinstance(value, list) or not any(isinstance(each, dict) for each in value):
                yield place
            yield from keys_of(value, place)


def shown_keys() -> Iterator[str]:
    """The places that the page's table names; "…." is the last list above it."""
    last = ""
    for key, value in table(PAGE, "Key", "Value").rows:
        for code in codes(key):
            if code.endswith("[]"):
                last = code
                yield from (f"{last}.{each}" for each in codes(value) if each.isidentifier())
            else:
                yield code.replace("…", last)


def document(*arguments: str) -> Any:
    """What ``--json`` prints."""
    out = io.StringIO()
    call_command("redlock_status", "--json", *arguments, stdout=out)
    return json.loads(out.getvalue())


def test_the_keys_of_the_document(memory):
    """The JSON has the keys of the table, all of them and no others."""
    put(memory, "invoice:42", f"{A}:7:web-1:2114", *range(5))
    queue(memory, "reports.sync", "account:7", "id-1", *range(5))
    finish(memory, "reports.sync", "id-2", *range(5))
    found = set(keys_of(document("--finished"))) - {"aliases.*"}
    shown = set(shown_keys()) - {"null"}
    # Cells name `null` in their text, and these two are told by the rows below them.
    assert {key for key in shown if not key.endswith(".null")} == found


def test_the_values_of_the_document():
    """Health, kinds of locks and states of tasks are those of the code."""
    rows = {row[0]: row[1] for row in table(PAGE, "Key", "Value").rows}
    for key, values in (("`health`", OWN), ("`….kind`", LockStatus), ("`….state`", TaskState)):
        assert [json.loads(code) for code in codes(rows[key])] == [each.value for each in values]


def terms(heading: str) -> list[str]:
    """The terms that a section of the page defines."""
    section = STATUS.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^(\S.*)\n: ", section, re.MULTILINE)


def test_each_state_is_explained():
    """The page has each state of a node, a lock and a task, and no others."""
    assert terms("The locks") == [each.value for each in LockStatus]
    assert terms("The tasks") == ["running", "queued", "finished", "partial, unclear"]
    assert ", ".join(each.value for each in TaskState) == ", ".join(terms("The tasks"))
    nodes = STATUS.read_text().split("\n## The nodes\n")[1]
    assert all(f"`{state.value}`" in nodes for state in NodeState)


# -- the admin page -------------------------------------------------------------------------------


def test_the_permissions():
    """The table has the permissions of the model."""
    made = {f"django_redlock.{codename}" for codename, _ in LockKey._meta.permissions}
    assert set(first_codes(table(ADMIN, "Permission"))) == made


@pytest.mark.parametrize("what", ["nodes", "locks", "tasks"])
def test_the_columns_of_the_admin_page(what):
    """The table has the columns of the template, in order."""
    heads = re.findall(r'<th scope="col"[^>]*>(.*?)</th>', (TEMPLATES / f"{what}.html").read_text())
    heads = [head.replace("#{{ forloop.counter }}", "#1, #2, …") for head in heads]
    assert table(ADMIN, f"Column of the {what}").column(f"Column of the {what}") == heads


def test_the_states_of_the_admin_page():
    """The column "Is" names the states that can be shown; the list has no free locks."""
    shown = {}
    for what in ("locks", "tasks"):
        (text,) = [row[1] for row in table(ADMIN, f"Column of the {what}").rows if row[0] == "Is"]
        shown[what] = re.findall(r"\*(\w+)\*", text)
    assert shown["locks"] == [each.value for each in LockStatus if each is not LockStatus.FREE]
    assert shown["tasks"] == [each.value for each in TaskState]


def test_what_the_admin_page_says_of_itself():
    """The script of the page has each sentence of the table, and the times that the page names."""
    script = (ROOT / "django_redlock/static/django_redlock/locks.js").read_text()
    times = {name: int(value) for name, value in re.findall(r"const ([A-Z]+) = (\d+);", script)}
    shown = first_codes(table(ADMIN, "The page says"))
    assert f"every {REFRESH} s" == shown[0]
    shown[0] = shown[0].replace(str(REFRESH), "${every / 1000}")
    for sentence in shown:
        assert sentence.replace("500", "${response.status}") in script
    text = " ".join((ROOT / ADMIN).read_text().split())
    assert f"within {times['PATIENCE'] // 1000} seconds" in text
    assert f"after {times['SLOWEST'] * REFRESH} seconds at most" in text
    assert (times["SHARE"], "four times as long" in text) == (4, True)


OF_A_STATE = {each.name for each in fields(LockState)} | {"held", "known"}


def test_the_fields_of_the_template_tag():
    """The table has attributes of what ``redlock_state`` gives."""
    (shown,) = [each for each in tables(ADMIN) if "known" in first_codes(each)[:1]]
    assert set(first_codes(shown)) == OF_A_STATE - {"name", "fence", "each"}


def test_the_attributes_of_a_state():
    """The table has each attribute of what ``Lock.state`` returns, but the name."""
    (shown,) = tables("docs/how-to/locks.md")
    assert set(first_codes(shown)) == OF_A_STATE - {"name"}
    assert isinstance(vars(LockState)["held"], property)


# -- the installation -----------------------------------------------------------------------------


def test_the_extras():
    """The page has each extra for users; the others are for those who work on the package."""
    extras = [re.sub(r".*\[(.*)\]", r"\1", code) for code in first_codes(table_of_extras())]
    of_contributors = {"demo", "test", "dev", "docs"}
    assert {*extras} == PROJECT["optional-dependencies"].keys() - of_contributors


def table_of_extras() -> Any:
    """The table of the page "Install"."""
    return table("docs/install.md", "Extra")


# -- what is on a node ----------------------------------------------------------------------------


def test_the_keys_on_a_node(patient_nodes):
    """Locks, waiters, marks and records leave the keys of the table, of its types."""
    page = table("docs/explanation/how-it-works.md", "Key", "Type")
    shown = {
        code.rstrip("ABCDEFGHIJKLMNOPQRSTUVWXYZ:"): kind
        for code, kind in zip(first_codes(page), page.column("Type"), strict=True)
    }
    seen: dict[str, str] = {}

    def look() -> dict[str, str]:
        for each in patient_nodes:
            with closing(each.client()) as client:
                for key in client.scan_iter("*", count=1000):
                    kind, left = client.type(key).decode(), client.pttl(key)
                    if left != -2:
                        name = key.decode().split(":")
                        seen[":".join(name[:2])] = f"{kind}, {left >= 0}"
        return seen

    backend = conf.backend("default")
    key = marks.mark_key(backend.policy, "sync", ["account"])
    backend.run(marks.publish(backend.policy, key, task="sync", task_id="id", ttl=60))
    lease = redlock.using(label="host:1(sync):id", renew=False)("run:sync:1").acquire()
    lease.disown()
    backend.run(completion.complete(backend.policy, lease.grant, life=60))
    held = redlock("invoice", renew=False).acquire()
    waiter = Thread(target=partial(redlock("invoice").acquire, wait=20))
    waiter.start()
    eventually(lambda: "redlock:waits" in look())
    held.release()
    waiter.join(30)
    eventually(lambda: "redlock:queue" in look())
    names = {"string": "string", "hash": "hash", "zset": "sorted set", "list": "list"}
    assert seen.keys() == shown.keys()
    for key, told in seen.items():
        kind, expires = told.split(", ")
        assert shown[key].partition(",")[0] == names[kind]
        if "expiry" in shown[key]:
            assert ("with an expiry" in shown[key]) == (expires == "True"), key


def test_the_patterns_mean_what_the_table_says():
    """Each sign of the table matches what its row says, and nothing else of the same length."""
    (page,) = [each for each in tables(PAGE) if first_codes(each)[:1] == ["*"]]
    meanings: dict[str, tuple[list[str], list[str]]] = {
        "*": (["ab", "a", "a:b/c"], []),
        "?": (["a", ":"], ["", "ab"]),
        "[abc]": (["a", "c"], ["d", "ab"]),
        "[a-z]": (["a", "q"], ["A", "1"]),
        "[!abc]": (["d"], ["a", "dd"]),
        "[^abc]": (["d"], ["a", "dd"]),
        "\\*": (["*"], ["a"]),
        "\\?": (["?"], ["a"]),
        "\\[": (["["], ["a"]),
        "\\]": (["]"], ["a"]),
        "\\\\": (["\\"], ["a"]),
    }
    assert first_codes(page) == list(meanings)
    for pattern, (matching, others) in meanings.items():
        parsed = parse(f"x{pattern}x")
        for text in matching:
            assert parsed.matches(f"x{text}x") or parsed.name == f"x{text}x", pattern
        for text in others:
            assert not parsed.matches(f"x{text}x"), pattern

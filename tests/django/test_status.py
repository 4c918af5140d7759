import importlib
import io
import json
import os
import re
import subprocess
import sys
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_redlock import conf, redlock
from django_redlock.inspection.rows import age
from django_redlock.management.commands import redlock_status
from django_redlock.management.commands.redlock_status import CLEAR
from django_redlock.nodes import admission
from django_redlock.testing import assert_free
from tests.inspection.states import STATES
from tests.support.looked_at import (
    A,
    B,
    clients,
    evicting,
    group,
    in_memory,
    put,
    some_tasks,
    status,
    stop_clocks,
    take,
    take_before,
)
from tests.support.passwords import SECRET, USER, with_passwords
from tests.support.waiting import eventually, waiting_for_silent_nodes

from .test_admin import browser, look

HOME = Path(conf.__file__).parent  # the package
SURVEYS = importlib.import_module("django_redlock.inspection.survey")  # its name is a function's


def document(*asked: str) -> dict[str, Any]:
    """What ``--json`` says of the alias ``default``."""
    found: dict[str, Any] = json.loads(status(*asked, "--json")[1])["aliases"]["default"]
    return found


def words(line: str) -> list[str]:
    """The cells of a table's line."""
    return re.split(r"\s{2,}", line.strip())


@pytest.mark.parametrize("state", STATES)
def test_a_state_is_a_row_of_the_table(memory, state):
    """Of name, holders, seconds held, nodes, seconds left and what it is; no other row."""
    expected = STATES[state]
    expected.made(memory)
    out = status(*expected.texts, "--finished")[1]
    (line,) = [line for line in out.splitlines() if re.search(r" \d of 5 ", line)]
    name, holder, _, *cells = words(line)
    assert (name, holder) == (expected.name, expected.holder or "-")
    assert cells == [f"{expected.on} of 5", expected.left or "-", expected.kind]


def locks(out: str) -> list[str]:
    """The names in the table of locks."""
    table = out.rpartition("\nlock ")[2].splitlines()[2:]
    return [words(line)[0] for line in table if re.search(r" \d of \d ", line)]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (["report:*"], ["report:1", "report:22"]),
        (["report:?"], ["report:1"]),
        (["[ao]???*"], ["areport:1", "other"]),
        (["nobody", "o*", "*22", "report:22"], ["nobody", "report:22", "other"]),
        # As of fnmatch: no escapes, and a bracket makes a character plain.
        (["a[*]b"], ["a*b"]),
        (["a\\*"], ["a\\x"]),
    ],
)
def test_a_pattern_shows_what_matches(memory, asked, found):
    """Of a pattern the held locks that match are shown, and nothing else; the same with --json."""
    take(memory, "report:1", "report:22", "other", "areport:1", "a*b", "a\\x")
    code, out = status(*asked)
    assert (code, locks(out)) == (0, found)
    told = document(*asked)
    assert [lock["name"] for lock in told["locks"]] == found
    assert not told["truncated"]


@pytest.mark.parametrize("name", ["rep*rt", "a?", "cart[5]", "*", "["])
def test_names_that_look_like_patterns(memory, name):
    """A name with a wildcard in it is found as it is, also in no index."""
    put(memory, name, "foreign", *range(5))
    take(memory, "cart5")
    for node in memory.nodes:
        del node.held[name]
    assert name in locks(status(name)[1])


@pytest.mark.parametrize("text", ["*" * 400 + "b", "[!" * 200, "[a" * 200 + "]", "a*" * 250])
def test_no_pattern_is_slow(memory, text):
    """Users write patterns: none is matched by trying all ways."""
    take(memory, "a" * 512)
    assert status(text)[0] == 0


def test_more_matches_than_the_limit(memory):
    """It is said how many more locks match than --limit lets show."""
    take(memory, "zero", *(f"report:{i:02}" for i in range(12)))
    _, out = status("report:*", "zero", "--limit", "5")
    assert locks(out) == ["zero", *(f"report:{i:02}" for i in range(5))]
    assert "7 more match; --limit shows more." in out
    assert "There is more" not in out
    found = document("report:*", "--limit", "5")
    assert (found["truncated"], found["beyond"], len(found["locks"])) == (True, 7, 5)
    _, out = status("report:*", "--limit", "12")
    assert "more match" not in out


def test_more_names_than_are_searched(memory, monkeypatch):
    """Where an index has more names than are looked at, it is said that others may match."""
    monkeypatch.setattr(SURVEYS, "PAGE", 10)
    monkeypatch.setattr(SURVEYS, "PAGES", 3)
    for i in range(33):  # 3 on the first page, a third of it, and then 10 on each
        put(memory, f"n{i:02}", f"{A}:5:a", *range(5), seconds=600 + i)
    _, out = status("n*")
    assert len(locks(out)) == 33
    assert "looked at" not in out
    put(memory, "n33", f"{A}:5:a", *range(5), seconds=700)
    _, out = status("n*")
    assert len(locks(out)) == 33
    assert "More names are held than were looked at: others may match, too." in out
    _, out = status("z*")
    assert "More names are held" in out
    assert "No held lock matches" not in out
    assert document("z*")["truncated"]


@pytest.mark.parametrize(("down", "code"), [(0, 0), (1, 3), (2, 3), (3, 4), (5, 4)])
def test_exit_codes(memory, down, code):
    """0: all nodes vote; 3: some do not; 4: no majority does. The same with --json."""
    memory.down = set(range(down))
    assert status()[0] == code
    assert status("--json")[0] == code
    assert status("some-name")[0] == code


def test_nodes_that_forgot_a_lock_are_not_believed(patient_nodes, monkeypatch):
    """Three nodes were emptied and say that they have nothing: the lease is held all the same.

    They count as young for an hour here, and the others as old: no second of this test decides.
    """
    monkeypatch.setattr(conf, "guard_of", lambda _: 3600.0)
    monkeypatch.setattr(admission, "age", lambda *_: 1e9)
    with redlock("import", renew=False) as lease:
        for node in patient_nodes[2:]:
            with closing(node.client()) as client:
                client.flushall()
        code, out = status("--older-than", "60")
        _, gauges = status("--prometheus")
        lease.ensure()
    assert code == 4
    assert "No lock is held" not in out
    assert "Too few nodes vote to know what is held." in out
    assert "redlock_names_held" not in gauges
    with pytest.raises(AssertionError, match="no majority of the nodes of 'default' votes"):
        assert_free("import")


def test_the_worst_alias_decides():
    """One alias without a majority makes the exit code 4, unless it is not looked at."""
    with in_memory("default", "payments"):
        group("default").down = {0}
        group("payments").down = {0, 1, 2}
        code, out = status()
        assert code == 4
        assert "default: degraded (4 of 5 nodes vote, 3 are needed)" in out
        assert "payments: no majority, no lock can be taken (2 of 5 nodes vote" in out
        code, out = status("--alias", "default")
        assert code == 3
        assert "payments" not in out
        code, out = status("--alias", "payments", "--alias", "default", "--json")
        assert code == 4
        found = json.loads(out)
        assert found["health"] == "no_majority"
        assert list(found["aliases"]) == ["payments", "default"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--alias", "nope"], "no alias 'nope'; it has: 'default'"),
        (["--limit", "0"], "limit must be from 1"),
        ([""], "is empty"),
        (["a\x1bb"], "control characters"),
        (["--older-than", "-1"], "--older-than"),
        *(
            (["--older-than", age], f"'{age}' is no duration: write seconds")
            for age in ("1w", "h", "an hour", "1h 30m", "1:00")
        ),
        (["--watch"], "needs a terminal"),
        (["--watch", "--json"], "leave --json out"),
        (["--watch=0"], "--watch must be"),
        (["--watch=often"], "invalid float value"),
    ],
)
def test_bad_arguments(memory, args, message):
    """What makes no sense is an error that says what to do instead, not a traceback."""
    with pytest.raises(CommandError, match=message):
        status(*args)


def test_a_text_that_is_too_long(memory):
    """The error says what a name may be."""
    with pytest.raises(CommandError, match="longer than 512"):
        call_command("redlock_status", "x", "[!" * 513)


@pytest.mark.parametrize("setting", [{}, None, {"default": {"NODES": ["redis://:s3cr3t@h:p"]}}])
def test_bad_settings(setting):
    """Missing or wrong settings are an error without a traceback or a password."""
    with override_settings(REDLOCK=setting), pytest.raises(CommandError) as caught:
        call_command("redlock_status")
    assert "REDLOCK" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_limit(memory):
    """More locks, or more tasks, than --limit: so many are shown, and that there are more."""
    some_tasks(memory)
    assert rows("--limit", "1") == [RUNNING, QUEUED]
    assert "There is more than these 2 rows; --limit shows more." in status("--limit", "1")[1]
    assert document("--limit", "1")["truncated"]
    assert "There is more" not in status("--limit", "2")[1]


def test_what_was_not_looked_at_may_be_old_or_a_problem(memory):
    """Of more locks than the limit nothing is said that only all of them could tell."""
    take_before(memory, a=0, b=0, c=0, old=5000)
    put(memory, "partial", f"{A}:123:web-1", 0, 1)
    for asked, says in {
        ("--older-than", "60"): "No lock is held for 60 s",
        ("--problems",): "Nothing needs attention",
    }.items():
        _, out = status(*asked, "--limit", "3")
        assert says not in out
        assert "More locks are held than were looked at; --limit looks at more." in out
        _, out = status(*asked, "--limit", "5")
        assert len(locks(out)) == 1
        assert "More locks" not in out


def test_locks_that_are_held_for_long(memory):
    """--older-than shows them, the oldest first; what nobody holds is none of them."""
    take_before(memory, a=90, b=5000, c=30)
    put(memory, "partial", f"{A}:123:web-1", 0, 1)
    put(memory, "another", "no fence", *range(5))
    assert locks(status("--older-than", "0")[1]) == ["b", "a", "c"]
    _, out = status("--older-than", "60")
    assert locks(out) == ["b", "a"]
    assert re.search(r"b +web-1 +1 h 23 min +5 of 5", out)
    for age_given in ("6000", "6000s", "100m", "6e3"):
        assert "No lock is held for 6000 s or longer." in status("--older-than", age_given)[1]
    for age_given, shown in (("2h", "7200 s"), ("1d", "86400 s")):
        assert f"No lock is held for {shown} or longer." in status("--older-than", age_given)[1]
    (lock,) = document("--older-than", "4000")["locks"]
    since = datetime.fromisoformat(lock["since"]).timestamp()
    assert time.time() - since == pytest.approx(5000, abs=60)


def test_only_what_needs_attention(memory):
    """--problems leaves out nodes that vote, locks that are held and tasks that wait and run."""
    put(memory, "held", f"{A}:123:web-1", *range(5))
    assert status("--problems") == (
        0,
        "default: healthy (5 of 5 nodes vote, 3 are needed)\n\nNothing needs attention.\n",
    )
    put(memory, "partial", f"{A}:123:web-1", 0, 1)
    some_tasks(memory)
    memory.down = {4}
    code, out = status("--problems")
    assert code == 3
    lines = [words(line) for line in out.splitlines()]
    assert [line[1] for line in lines if line[0].startswith("memory:")] == ["down: down"]
    assert locks(out) == ["partial", "account:9"]  # the lock and the mark
    assert not {"held", "id-running", "id-queued"} & {word for line in lines for word in line}


# -- --watch -------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """Where somebody looks, and presses Ctrl-C at the third screen."""

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        size = super().write(text)
        if self.getvalue().count(CLEAR) == 3:
            raise KeyboardInterrupt
        return size


def test_watching_in_a_terminal(memory, monkeypatch):
    """The screen is cleared and printed again, after a pause, until Ctrl-C, which is no error."""
    slept: list[float] = []
    monkeypatch.setattr(redlock_status, "time", SimpleNamespace(sleep=slept.append))
    call_command("redlock_status", "--watch=0.1", stdout=(terminal := Terminal()))
    before, *screens = terminal.getvalue().split(CLEAR)
    assert (before, slept) == ("", [0.1] * 2)
    assert all("every 0.1 s; Ctrl-C ends." in each for each in screens)
    assert all("No lock is held." in each for each in screens)


def test_json(memory):
    """--json prints one document whose keys are those of the documentation."""
    stop_clocks(memory)
    put(memory, "x", f"{A}:123:web-1", 0, 1, 2)
    memory.down = {4}
    code, out = status("--json")
    whole = json.loads(out)
    assert code == 3
    assert set(whole) == {"health", "aliases"}
    found = whole["aliases"]["default"]
    assert set(found) == {"health", "majority", "truncated", "beyond", "waiting", "nodes", "locks"}
    assert (whole["health"], found["health"]) == ("degraded", "degraded")
    assert (found["majority"], found["truncated"], found["beyond"]) == (3, False, 0)
    *_, up, down = found["nodes"]
    assert re.fullmatch(r"memory://status-\d+", up.pop("node"))
    assert up == {
        "voting": True,
        "answered": True,
        "why": "",
        "code": "",
        "version": "memory",
        "role": "master",
        "uptime": None,
        "round_trip": None,
        "guard_left": 0,
        "maxmemory": 0,
        "maxmemory_policy": "noeviction",
        "evicted_keys": 0,
        "evicts": False,
    }
    assert (down["voting"], down["answered"], down["why"]) == (False, False, "down")
    assert down["code"] == "down"
    assert (down["maxmemory_policy"], down["evicts"]) == (None, None)
    (lock,) = found["locks"]
    cells = lock.pop("cells")
    assert (lock.pop("lowest"), lock.pop("highest")) == (600, 600)
    assert lock == {
        "name": "x",
        "slot": None,
        "limit": None,
        "kind": "held",
        "holder": "web-1",
        "task": "",
        "id": "",
        "fence": 123,
        "since": "1970-01-01T00:00:00.000123+00:00",
        "on": 3,
        "of": 5,
    }
    assert [set(cell) for cell in cells] == [{"node", "left", "owner", "holder"}] * 3
    assert A[:12] not in out


@pytest.mark.slow
def test_json_alone_on_stdout():
    """Run as a command, nothing but the document is on standard output; a pipe has no colour."""
    command = [sys.executable, "-m", "django", "redlock_status", "--settings", "tests.settings"]
    run = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True)
    assert json.loads(run.stdout)["health"] == "ok"
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "No lock is held." in run.stdout
    assert "\x1b" not in run.stdout


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.9, "59 s"), (60, "1 min"), (3700, "1 h 1 min"), (90_000, "1 d 1 h")],
)
def test_age(seconds, text):
    """An uptime is told in the units that people use."""
    assert age(seconds) == text


# -- tasks ---------------------------------------------------------------------------------------


def rows(*args: str) -> list[list[str]]:
    """The rows of the table of locks: the name, the holder and what it is."""
    table = status(*args)[1].rpartition("\nlock ")[2].splitlines()[2:]
    cells = [words(line) for line in table if " of 5 " in line]
    return [[each[0], each[1], each[5]] for each in cells]


RUNNING = ["account:7", "host:1(reports.sync):id-running", "held"]
QUEUED = ["account:8", "reports.sync, id id-queued", "queued"]
PARTIAL = ["account:9", "reports.sync, id id-partial", "partial"]
FINISHED = [
    "run:reports.sync:number-of-id-finished",
    "host:1(reports.sync):id-finished",
    "finished",
]
CLEARS = "manage.py redlock_release --task ID removes its mark"


def test_tasks_are_rows_beside_the_locks(memory):
    """A row for what runs and what waits, with its id; finished ones if asked for."""
    some_tasks(memory)
    assert rows() == [RUNNING, QUEUED, PARTIAL]
    assert rows("--finished") == [RUNNING, QUEUED, PARTIAL, FINISHED]
    out, found = status("--finished")[1], status("--finished", "--json")[1]
    assert CLEARS in out
    assert not any(nonce[:12] in each for nonce in (A, B) for each in (out, found))
    listed = json.loads(found)["aliases"]["default"]["locks"]
    assert [(each["kind"], each["task"], each["id"]) for each in listed] == [
        ("held", "reports.sync", "id-running"),
        ("queued", "reports.sync", "id-queued"),
        ("partial", "reports.sync", "id-partial"),
        ("finished", "reports.sync", "id-finished"),
    ]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (["id-queued"], [QUEUED]),
        (["account:7"], [RUNNING]),
        (["reports.sync"], [RUNNING, QUEUED, PARTIAL]),
        (["reports.*"], [RUNNING, QUEUED, PARTIAL]),
        (["account:[78]", "id-partial"], [RUNNING, QUEUED, PARTIAL]),
        (["*-finished", "--finished"], [FINISHED]),
    ],
)
def test_tasks_are_asked_for_by_name_id_and_lock(memory, asked, found):
    """Whole, or by a pattern; a part of a name is another name."""
    some_tasks(memory)
    assert rows(*asked) == found
    assert rows("sync") == [["sync", "-", "free"]]


# -- real nodes -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_pattern_is_searched_for_on_all_pages_of_the_index(patient_nodes):
    """Thousands of locks, a good many of them due in the same millisecond, are all looked at."""
    due = int((time.time() + 60) * 1000)
    together = {f"n{i}": due for i in range(1500)}
    later = {f"n{i}": due + i for i in range(1500, 4000)}
    with clients(patient_nodes) as each:
        for client in each:
            client.mset({f"redlock:lock:{name}": f"{A}:5:a" for name in together | later})
            client.zadd("redlock:held", together | later)
        _, out = status("n*7?", "--limit", "10000")
    assert sorted(locks(out)) == sorted(f"n{i}" for i in range(4000) if i % 100 // 10 == 7)
    assert "looked at" not in out


@pytest.mark.parametrize(
    ("policy", "limit", "warned"),
    [
        ("allkeys-lru", "200mb", True),
        ("volatile-ttl", "200mb", True),
        ("noeviction", "200mb", False),
        ("allkeys-lru", "0", False),  # without a limit nothing is evicted
    ],
)
def test_a_node_that_may_evict_locks_is_warned_of(patient_nodes, policy, limit, warned):
    """A node with a limit and a policy other than noeviction votes, and the status warns of it."""
    with evicting(patient_nodes[1], policy, limit):
        code, out = status("--force-color")
        found = document()["nodes"]
        _, plain = status("some-name")
    assert code == 0
    assert (f"\x1b[33;1mup: {policy}" in out) == warned
    assert out.count("\x1b[32;1mup") == 5 - warned
    advice = f"{policy}: with this maxmemory-policy a full node deletes locks that are held"
    assert (advice in plain) == warned
    assert [node["evicts"] for node in found] == [False, warned, False, False, False]
    assert found[1]["maxmemory_policy"] == policy
    assert (found[1]["maxmemory"] > 0) == (limit != "0")
    assert found[1]["voting"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "reader", "down"),
    [
        ("", "head -1", 0),
        pytest.param("", "true", 1, marks=pytest.mark.nightly),
        pytest.param("'report:*' --force-color", "head -1", 1, marks=pytest.mark.nightly),
        pytest.param("--json", "head -c 10", 0, marks=pytest.mark.nightly),
        ("--json", "true", 1),
    ],
)
def test_who_reads_only_the_beginning(patient_nodes, tmp_path, reader, options, down):
    """With a reader that stops early the command ends without a complaint, by its own status."""
    with clients(patient_nodes) as each:
        for client in each:  # more than a pipe takes at once
            due = (time.time() + 60) * 1000
            names = [f"report:{number}" for number in range(800)]
            client.mset({f"redlock:lock:{name}": f"{A}:5:a" for name in names})
            client.zadd("redlock:held", dict.fromkeys(names, due))
    alias = patient_nodes.settings(NODE_TIMEOUT=10, RESTART_GUARD=False)
    if down:
        alias["NODES"] = [*patient_nodes.urls[:4], "redis://127.0.0.1:1/0"]
    settings = f"from tests.settings import *\nREDLOCK = {{'default': {alias!r}}}\n"
    (tmp_path / "piped.py").write_text(settings)
    command = f"{sys.executable} -m django redlock_status --settings piped {options}"
    run = subprocess.run(
        ["bash", "-c", f'{command} | {reader}; echo "${{PIPESTATUS[0]}}"'],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{Path.cwd()}", "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stderr == ""
    assert run.stdout.split()[-1][-1] == ("3" if down else "0")


@pytest.mark.slow
def test_a_hung_node_costs_nothing_once_it_is_known(patient_nodes):
    """In a process that lives on, a node known to hang is not waited for."""
    alias = patient_nodes.settings(NODE_TIMEOUT=1.5, RESTART_GUARD=False)
    with override_settings(REDLOCK={"default": alias}):
        eventually(lambda: status()[0] == 0, what="connected to every node")
        patient_nodes.pause(1)
        with waiting_for_silent_nodes(conf.backend("default").group, requests=1):
            assert status()[0] == 3  # finds out
            code, out = status()
        patient_nodes.resume(1)
    assert code == 3
    assert "down: no answer" in out


@pytest.mark.django_db
def test_no_password_anywhere(patient_nodes):
    """Neither a right nor a wrong password is in what the command prints, or on the admin page."""
    viewer = browser("view_lock")
    with with_passwords(patient_nodes):
        printed = [status(), status("--json"), status("x", force_color=True)]
        pages = [look(viewer), look(viewer, q="x"), look(viewer, alias="nope")]
    assert [code for code, _ in printed] == [4, 4, 4]
    assert "2 of 5 nodes vote" in pages[0]
    for out in [out for _, out in printed] + pages:
        assert SECRET not in out
        assert USER not in out
        assert "redis://" not in out
    assert all(f"127.0.0.1:{patient_nodes[0].port}/0" in out for _, out in printed)


def test_no_nonce_anywhere(patient_nodes):
    """The nonce, the power to release, is not in what the command prints."""
    with redlock("invoice:42", renew=False) as lease:
        printed = status()[1] + status("--json")[1] + status("invoice:42")[1]
    assert printed.count("invoice:42") == 3
    assert lease.grant.nonce[:12] not in printed


@pytest.mark.alone
@pytest.mark.parametrize(("count", "most"), [(1, 340), (200, 91)])
def test_a_row_costs_few_calls(memory, count, most):
    """The table of many locks is made by some dozens of calls for each."""
    take(memory, *(f"n{number}" for number in range(count)))
    calls = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        file = Path(frame.f_code.co_filename)
        calls += event == "call" and file.is_relative_to(HOME) and file.name != "memory.py"

    sys.setprofile(note)
    try:
        status()
    finally:
        sys.setprofile(None)
    assert calls / count < most  # for one lock half, for each of many a twentieth of the first


def test_an_output_that_lacks_the_characters_gets_escapes(memory):
    """What a command has done must not be an error because of a name."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    redlock.using(label="web-1")("予約:42").acquire()
    call_command("redlock_status", stdout=out)
    call_command("redlock_release", "予約:42", "--yes", stdout=out)
    out.seek(0)
    assert out.read().count(r"\u4e88\u7d04:42") == 3

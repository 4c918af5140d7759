"""The on-call drill: each question of the page "Runbook" is answered by the two commands alone.

A fault is made on real nodes, the command of the page is run as a user runs it, and what it prints
must name the node and have the words that the page promises. Where the page says how to end the
fault, that is done, and the command must see that it is over.
"""

from __future__ import annotations

import io
import re
import shlex
import time
from contextlib import closing, suppress
from typing import Any, NamedTuple

import pytest
from django.core.management import call_command
from django.test import override_settings

from django_redlock import conf, redlock
from django_redlock.core import completion
from django_redlock.testing import EmbeddedNode, EmbeddedNodes
from tests.docs.test_runbook_page import RUNBOOK
from tests.nodes import odd_node
from tests.support.looked_at import A
from tests.support.servers import redis_version
from tests.support.waiting import eventually

BAD = 1  # the index of the node with the fault
ALIAS = {"NODE_TIMEOUT": 0.5, "MAX_TTL": 60, "TTL": 30, "RESTART_GUARD": False}


class Row(NamedTuple):
    """A question of the page.

    Attributes:
        command: the command with its arguments.
        says: words that its output has.
    """

    command: str
    says: str


def row(question: str) -> Row:
    """The row of the page's table with this question."""
    cells = re.search(rf"^\| {re.escape(question)} \| `(.+?)` \| `(.+?)` \| ", PAGE, re.MULTILINE)
    assert cells, question
    return Row(cells[1], cells[2])


PAGE = RUNBOOK.read_text(encoding="utf-8")
QUESTIONS = re.findall(r"^\| (.+?\?) \| `redlock_", PAGE, re.MULTILINE)


@pytest.fixture
def nodes(redlock_embedded: EmbeddedNodes) -> EmbeddedNodes:
    """Five real nodes in order, on which nothing is held, waited for or recorded."""
    for node in redlock_embedded:
        node.start()  # a test may have left it dead
        with closing(node.client()) as client:
            left = set(client.scan_iter("redlock:*")) - {b"redlock:fences"}
            if left:
                client.delete(*left)
    return redlock_embedded


def asked(command: str, entries: list[Any]) -> str:
    """What a command prints, run anew for an alias with these nodes."""
    name, *arguments = shlex.split(command)
    out = io.StringIO()
    settings = {"default": ALIAS | {"NODES": entries}}
    with override_settings(REDLOCK=settings), suppress(SystemExit):
        call_command(name, *arguments, stdout=out)
    return out.getvalue()


def answer(question: str, entries: list[Any], node: EmbeddedNode | None = None) -> str:
    """What the command of a question prints: it has the words of the page, and names the node."""
    command, says = row(question)
    out = asked(command, entries)
    assert says in out, out
    if node is not None:
        line = next(each for each in out.splitlines() if each.startswith(f"{label(node)} "))
        assert re.search(r" (error|down|warning)\b", line), line
    return out


def silent(question: str, entries: list[Any]) -> None:
    """See that the command does not say so where all is well."""
    command, says = row(question)
    assert says not in asked(command, entries)


def label(node: EmbeddedNode) -> str:
    """How a node is called in tables."""
    return f"127.0.0.1:{node.port}/0"


def test_a_user_that_lacks_a_right(nodes):
    """The command that the user may not run, and what to give it."""
    question, node = "May the nodes' user do all that locks need?", nodes[BAD]
    if redis_version(node) < (7, 0):
        pytest.skip("Redis before 7.0 does not name the command")
    entry = {"URL": node.url, "USERNAME": "few", "PASSWORD": "p"}
    entries = [*nodes.urls[:BAD], entry, *nodes.urls[BAD + 1 :]]
    rules = ["ACL", "SETUSER", "few", "on", ">p", "~redlock:*", "+@all"]
    with closing(node.client()) as admin:
        try:
            admin.execute_command(*rules)
            silent(question, entries)
            admin.execute_command(*rules, "-zadd")
            out = answer(question, entries, node)
        finally:
            admin.execute_command("ACL", "DELUSER", "few")
    assert "give the user the rights and the keys of the ACL line in https://" in out


def test_a_node_whose_memory_is_full(nodes):
    """It says OOM itself, and votes again when it has memory."""
    question, node = "Does a node take no more writes?", nodes[BAD]
    with closing(node.client()) as admin:
        try:
            admin.config_set("maxmemory", "1")
            answer(question, nodes.urls, node)
        finally:
            admin.config_set("maxmemory", "0")
    silent(question, nodes.urls)


def test_a_full_node_that_may_delete_locks(nodes):
    """By its policy, which is another one only while it is set; the page's command sets it."""
    question, node = "May a full node delete locks?", nodes[BAD]
    fix = "CONFIG SET maxmemory-policy noeviction"
    assert f"`{fix}`" in PAGE
    with closing(node.client()) as admin:
        admin.config_set("maxmemory", "200mb")
        try:
            admin.config_set("maxmemory-policy", "allkeys-lru")
            answer(question, nodes.urls, node)
            admin.execute_command(*fix.split())
            silent(question, nodes.urls)
        finally:
            admin.config_set("maxmemory-policy", "noeviction")
            admin.config_set("maxmemory", "0")


def test_a_wrong_password(nodes):
    """The node knows the user by another one."""
    question, node = "Does a node refuse the password?", nodes[BAD]
    entry = {"URL": node.url, "USERNAME": "shop", "PASSWORD": "old"}
    entries = [*nodes.urls[:BAD], entry, *nodes.urls[BAD + 1 :]]
    with closing(node.client()) as admin:
        admin.execute_command("ACL", "SETUSER", "shop", "on", ">new", "~redlock:*", "+@all")
        try:
            answer(question, entries, node)
            admin.execute_command("ACL", "SETUSER", "shop", ">old")
            silent(question, entries)
        finally:
            admin.execute_command("ACL", "DELUSER", "shop")


@pytest.mark.slow
def test_a_replica(nodes):
    """Both commands say that it is one, and what to put there."""
    question, node = "Is a node a replica?", nodes[BAD]
    with EmbeddedNodes(1) as others, closing(others[0].client()) as replica:
        replica.replicaof("127.0.0.1", node.port)
        entries = [*nodes.urls[:BAD], others[0].url, *nodes.urls[BAD + 1 :]]
        answer(question, entries, others[0])
        assert "is a replica" in asked("redlock_check", entries)
    silent(question, nodes.urls)


def test_a_server_that_is_too_old(nodes, monkeypatch):
    """A node that says that it is Redis 6.0."""
    question = "Is a server too old?"
    server = odd_node.INFO[b"server"]
    old = re.sub(rb"redis_version:[\d.]+", b"redis_version:6.0.16", server)
    monkeypatch.setitem(odd_node.INFO, b"server", old)
    quiet = next(each for each in odd_node.UNECHOED if each.name == "a status")
    with odd_node.OddNode(quiet, "NOTHING") as odd:
        entries = [*nodes.urls[:BAD], odd.url, *nodes.urls[BAD + 1 :]]
        out = answer(question, entries)
        port = odd.url.rpartition(":")[2].partition("/")[0]
    assert re.search(rf"^127.0.0.1:{port}/1 +warning +runs redis 6.0.16; ", out, re.MULTILINE)
    silent(question, nodes.urls)


@pytest.mark.slow
def test_a_node_that_hangs(nodes):
    """It is named as down; the others go on."""
    question, node = "Does a node hang?", nodes[BAD]
    nodes.pause(BAD)
    try:
        out = answer(question, nodes.urls, node)
        assert label(node) in asked("redlock_check", nodes.urls)
    finally:
        nodes.resume(BAD)
    assert "degraded (4 of 5 nodes vote, 3 are needed)" in out
    silent(question, nodes.urls)


def test_a_lock_that_is_stuck(nodes):
    """Who holds it and for how long; it is taken away by the words of the command."""
    question, name = "Who has held a lock for too long?", "report:2026-03"
    since = int((time.time() - 3 * 3600) * 1e6)
    for node in nodes:
        with closing(node.client()) as client:
            client.set(f"redlock:lock:{name}", f"{A}:{since}:web-9:4711", px=30_000)
            client.zadd("redlock:held", {name: time.time() * 1000 + 30_000})
    out = answer(question, nodes.urls)
    assert re.search(rf"^{name} +web-9:4711 +3 h 0 min +5 of 5 +[\d.]+.* held$", out, re.MULTILINE)
    asked(f"redlock_release {name} --yes --reason drill", nodes.urls)
    out = asked("redlock_status", nodes.urls)
    assert re.search(rf"^{name} .*drill.* revoked$", out, re.MULTILINE)
    silent(question, nodes.urls)


def test_a_mark_that_is_stuck(nodes):
    """Which task, by name and id; its mark is removed by the id that the row shows."""
    question = "Which task waits, and never runs?"
    with override_settings(REDLOCK={"default": ALIAS | {"NODES": nodes.urls}}):
        backend = conf.backend("default")
        key = completion.mark_key(backend.policy, "reports.sync", ["account:7"])
        steps = completion.set_mark(
            backend.policy, key, task="reports.sync", task_id="id-7", ttl=3600
        )
        assert backend.run(steps).certain
    out = answer(question, nodes.urls)
    (task_id,) = re.findall(r"^account:7 +reports.sync, id (\S+) .* queued$", out, re.MULTILINE)
    asked(f"redlock_release --task {task_id} --yes", nodes.urls)
    silent(question, nodes.urls)
    eventually(lambda: "account:7" not in asked("redlock_status", nodes.urls))


def test_work_that_is_done_once(nodes):
    """How long ago it was done; by the words of the command it is done again."""
    question = "Was work of `once` done, and when?"
    settings = {"default": ALIAS | {"NODES": nodes.urls}}
    with override_settings(REDLOCK=settings), redlock("digest").once(keep=3600) as run:
        assert run.fresh
    out = answer(question, nodes.urls)
    assert re.search(r"^digest +\S+ +\d+ s ago +5 of 5 .* done$", out, re.MULTILINE)
    asked("redlock_release digest --yes", nodes.urls)
    silent(question, nodes.urls)


DRILLED = {
    "May the nodes' user do all that locks need?",
    "Does a node take no more writes?",
    "May a full node delete locks?",
    "Does a node refuse the password?",
    "Is a node a replica?",
    "Is a server too old?",
    "Does a node hang?",
    "Who has held a lock for too long?",
    "Was work of `once` done, and when?",
    "Which task waits, and never runs?",
}


def test_each_question_of_the_page_is_drilled():
    """A new row of the page needs a drill of its own."""
    assert set(QUESTIONS) == DRILLED

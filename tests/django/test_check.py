"""``manage.py redlock_check``, on real servers and on what pretends to be one."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import redis
from django.test import override_settings
from redis.exceptions import ResponseError

from django_redlock import redlock
from django_redlock.inspection import probe
from django_redlock.nodes import background
from django_redlock.testing import EmbeddedNodes
from tests.docs.test_acl import PASSWORD, acl_rules
from tests.nodes.odd_node import UNECHOED, Oddity, OddNode
from tests.support.looked_at import check, clients, evicting
from tests.support.passwords import SECRET, USER, with_passwords
from tests.support.proxy import Proxy
from tests.support.servers import redis_version
from tests.support.waiting import eventually

PATIENT = {"NODE_TIMEOUT": 10, "MAX_TTL": 2, "TTL": 2, "CLOCK_SKEW": 0.1}  # as redlock_nodes


@contextmanager
def configured(nodes: list[Any], **options: Any) -> Iterator[None]:
    """The alias ``default`` with these nodes."""
    with override_settings(REDLOCK={"default": {"NODES": nodes} | PATIENT | options}):
        yield


def document(nodes: list[Any], **options: Any) -> dict[str, Any]:
    """The JSON about the alias with these nodes; the text of each finding says what to do."""
    with configured(nodes, **options):
        code, out = check("--json")
    found: dict[str, Any] = json.loads(out)["aliases"]["default"]
    assert code == {"ok": 0, "degraded": 3, "no_majority": 4, "not_yet": 5}[found["health"]]
    return found


def problems(node: dict[str, Any], *levels: str) -> list[dict[str, Any]]:
    """What is found at a node, of these levels; else without notes."""
    wanted = levels or ("warning", "error")
    return [each for each in node["findings"] if each["level"] in wanted]


def codes(nodes: list[Any], **options: Any) -> list[str]:
    """The codes that are found at the last of these nodes, without notes."""
    return [each["code"] for each in problems(document(nodes, **options)["nodes"][-1])]


@pytest.fixture(scope="module")
def single() -> Iterator[EmbeddedNodes]:
    """One node, for tests that change its users and settings."""
    with EmbeddedNodes(1) as nodes:
        yield nodes


# -- what it prints -------------------------------------------------------------------------------


def test_nodes_in_order(redlock_nodes):
    """Exit status 0, a row for each node with what it told, and nothing is left on a node."""
    with clients(redlock_nodes) as each:
        before = [set(client.keys("*")) for client in each]  # an earlier test's may go meanwhile
        with configured(redlock_nodes.urls):
            code, out = check()
        for client, had in zip(each, before, strict=True):
            assert set(client.keys("*")) <= had
    assert code == 0
    assert "default: ready (5 of 5 nodes vote, 3 are needed)" in out
    row = r"^127.0.0.1:\d+/0 +(well|note) +\w+ [\d.]+ +master +[\d.]+ ms +[+-]\d\.\d{3} s +no limit"
    assert len(re.findall(row + " +nothing +all", out, re.MULTILINE)) == 5


def test_the_keys_of_the_document(redlock_nodes):
    """They are those of the documentation."""
    found = document(redlock_nodes.urls)
    assert set(found) == {
        *("health", "majority", "usable", "voting", "votes_in", "findings", "nodes")
    }
    assert (found["health"], found["majority"], found["usable"]) == ("ok", 3, 5)
    assert (found["voting"], found["votes_in"]) == (5, 0)
    node = found["nodes"][0]
    assert node.pop("node") == f"127.0.0.1:{redlock_nodes[0].port}/0"
    assert 0 < node.pop("round_trip") < 5
    assert abs(node.pop("clock_ahead")) < 5
    assert node.pop("uptime") >= 0
    assert node.pop("version")
    node.pop("findings")
    assert node == {
        "reached": True,
        "voting": True,
        "guard_left": 0,
        "role": "master",
        "maxmemory": 0,
        "maxmemory_policy": "noeviction",
        "evicted_keys": 0,
        "append_only": False,
        "snapshots": False,
        "rights": True,
    }


def test_several_aliases(redlock_nodes):
    """All of them, or those that are asked for; the worst decides."""
    bad = {"NODES": ["redis://127.0.0.1:1"]} | PATIENT
    good = {"NODES": redlock_nodes.urls} | PATIENT
    with override_settings(REDLOCK={"default": good, "payments": bad}):
        assert check("--alias", "default")[0] == 0
        code, out = check()
        assert code == 4
        assert "default: ready" in out
        assert "payments: no lock can be taken (its node does not vote)" in out
        assert "127.0.0.1:1/0  error  connection refused; start the server, or correct its" in out
        assert list(json.loads(check("--json")[1])["aliases"]) == ["default", "payments"]


def test_nodes_in_memory(memory):
    """They are for tests, and a deployment that has them is told so."""
    code, out = check()
    assert code == 3
    assert re.search(r"^all nodes +warning +the nodes are memory:// nodes, ", out, re.MULTILINE)


@pytest.mark.slow
def test_as_a_command_of_a_pipeline(redlock_nodes, monkeypatch, tmp_path):
    """Only the document is on standard output, and the status of the process is the verdict."""
    alias = {"NODES": [*redlock_nodes.urls[:2], "redis://127.0.0.1:1"]} | PATIENT
    (tmp_path / "deployed.py").write_text(
        f"from tests.settings import *\nREDLOCK = {{'default': {alias!r}}}\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:.")
    command = [sys.executable, "-m", "django", "redlock_check", "--settings", "deployed", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (3, "")
    assert json.loads(run.stdout)["health"] == "degraded"


# -- the server -----------------------------------------------------------------------------------


def test_eviction(patient_nodes):
    """A node with a limit that may delete locks."""
    with evicting(patient_nodes[2], "volatile-ttl"):
        found = document(patient_nodes.urls)
    warned = [problems(node, "warning") for node in found["nodes"]]  # a young one has a note, too
    ((finding,),) = filter(None, warned)
    assert (warned[2], finding["code"]) == ([finding], "evicts")
    assert "set noeviction, or, if it is a cache, name another server" in finding["text"]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"appendonly": "yes", "save": ""}, (True, False)),
        ({"appendonly": "no", "save": "60 1000"}, (False, True)),
    ],
)
def test_persistence(config, told):
    """How a node keeps its data, by its own words; snapshots are noted."""
    with EmbeddedNodes(1, config=config) as nodes:
        (node,) = document(nodes.urls)["nodes"]
    assert (node["append_only"], node["snapshots"]) == told
    assert ("snapshots" in [each["code"] for each in node["findings"]]) == told[1]


def test_a_server_that_keeps_other_data_is_left_as_it_is():
    """A broker's, say, in another database: who took its persistence away would lose it."""
    with (
        EmbeddedNodes(1, config={"save": "60 1000"}) as nodes,
        configured([f"redis://127.0.0.1:{nodes[0].port}/3"]),
    ):
        _, alone = check()
        with closing(redis.Redis(port=nodes[0].port, db=7)) as broker:
            broker.set("a queue", "its messages")
        _, shared = check()
    assert 'if it holds nothing but locks, set save ""' in alone
    assert "and holds other data (db7): leave its persistence as it is" in shared
    assert "set save" not in shared


def test_what_one_node_without_the_guard_is_told():
    """The page of one Redis tells people to switch it off; the command does not take that back."""
    with EmbeddedNodes(1) as nodes, configured(nodes.urls, RESTART_GUARD=False):
        out = check()[1]
    assert "unless your work may run twice now and then, remove RESTART_GUARD" in out


@pytest.mark.parametrize("ahead", [100, -100])
def test_a_wrong_clock(redlock_nodes, ahead):
    """It is an error of the node, and the offset is told."""
    with Proxy(redlock_nodes[0].port) as proxy:
        proxy.clock = ahead
        nodes = [*redlock_nodes.urls[1:3], proxy.url]
        found = document(nodes)
        assert codes(nodes) == ["clock"]
    assert found["nodes"][2]["clock_ahead"] == pytest.approx(ahead, abs=5)


@pytest.mark.parametrize(("timeout", "code"), [(0.02, "too_slow"), (0.15, "slow"), (30, None)])
def test_the_round_trip(redlock_nodes, timeout, code):
    """Beside NODE_TIMEOUT: too long for it, or for ten of it."""
    with Proxy(redlock_nodes[0].port) as proxy:
        proxy.delay = 0.03
        found = document([proxy.url], NODE_TIMEOUT=timeout)["nodes"][0]
    assert 0.03 <= found["round_trip"] < 10
    told = [each["code"] for each in problems(found)]
    if code == "slow" and found["round_trip"] >= timeout:
        code = "too_slow"  # a machine that stalls
    assert told == ([code] if code else [])


# -- the user -------------------------------------------------------------------------------------


def rules(node: Any) -> list[str]:
    """The ACL line of the documentation, as this server takes it."""
    found = acl_rules()
    if (7, 0) <= redis_version(node) < (7, 2):
        found.remove("+client|setinfo")
    return found


@contextmanager
def user(node: Any, rules: list[str]) -> Iterator[dict[str, str]]:
    """A user with these rules; an entry of NODES that logs in as it."""
    with closing(node.client()) as admin:
        admin.execute_command("ACL SETUSER", "redlock", *rules)
        try:
            yield {"URL": node.url, "USERNAME": "redlock", "PASSWORD": PASSWORD}
        finally:
            admin.execute_command("ACL DELUSER", "redlock")


def test_the_acl_line_suffices(single):
    """The user of the documentation lacks nothing, but it may not ask for the configuration."""
    with user(single[0], rules(single[0])) as node, closing(single[0].client()) as admin:
        admin.execute_command("ACL LOG", "RESET")
        found = document([node])["nodes"][0]
        denied = {each["object"] for each in admin.acl_log()}
        assert admin.keys("*") == []
    assert (found["rights"], found["append_only"], found["snapshots"]) == (True, False, None)
    assert {each.split("|")[0] for each in denied} == {"config"}
    assert PASSWORD not in json.dumps(found)


REFUSED_TO_IT = [
    *(["FLUSHALL"], ["KEYS", "*"], ["CONFIG", "GET", "*"], ["GET", "session:1"]),
    *(["SET", "session:1", "x"], ["EVAL", "return redis.call('KEYS', '*')", "0"]),
]


def test_the_user_of_the_documentation_locks_and_does_nothing_else(single):
    """It takes, renews and frees a lock; other commands and other keys are refused."""
    with (
        user(single[0], rules(single[0])) as node,
        configured([node], RESTART_GUARD=False, MAX_TTL=60, TTL=60),
        closing(single[0].client()) as admin,
        closing(single[0].client(username="redlock", password=PASSWORD)) as confined,
    ):
        admin.execute_command("ACL LOG", "RESET")
        with redlock("acl", ttl=30) as lease:
            lease.extend(60)
        assert redlock("acl").state().held is False
        assert admin.execute_command("ACL LOG") == []
        for words in REFUSED_TO_IT:
            # Redis before 7.0 says the last in a script.
            with pytest.raises(ResponseError, match=r"(?i)permission|ACL|executing .* can't"):
                confined.execute_command(*words)
        assert admin.keys("session:*") == []
        admin.flushdb()


# redis-py and a database of its own need these, where logging in tells.
AT_LOGIN = {"client|setname", "client|setinfo", "select"}
COMMANDS = {rule[1:] for rule in acl_rules() if rule.startswith("+")} - AT_LOGIN


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_a_right_that_is_missing(single, command):
    """The node's own words name the command, and nothing is left on the node."""
    allowed = [each for each in rules(single[0]) if each != f"+{command}"]
    with user(single[0], allowed) as node, closing(single[0].client()) as admin:
        found = document([node])["nodes"][0]
        eventually(lambda: not admin.keys("*"))
        names_it = redis_version(single[0]) >= (7, 0)
    (finding,) = problems(found, "error")
    assert finding["code"] == "rights_missing"
    text = finding["text"]
    assert text.startswith("NOPERM: ")
    assert "the ACL line in" in text
    assert f"'{command}' command" in text or not names_it
    assert "redlock has" not in text  # the name of the user
    assert found["rights"] is False


def test_keys_that_the_user_may_not_use(single):
    """The node says so, and the finding names the line of the documentation."""
    others = [each if each[0] != "~" else "~others:*" for each in rules(single[0])]
    with user(single[0], others) as node:
        found = document([node])["nodes"][0]
    (finding,) = problems(found, "error")
    assert finding["code"] == "rights_missing"
    assert "key" in finding["text"]


def test_passwords(patient_nodes):
    """Wrong ones are told as that, and none is printed."""
    with with_passwords(patient_nodes):
        printed = [check(), check("--json"), check(force_color=True)]
    nodes = json.loads(printed[1][1])["aliases"]["default"]["nodes"]
    told = [[each["code"] for each in problems(node, "error")] for node in nodes]
    assert told[0] == told[1] == []
    assert told[2][0] in {"no_password_there", "login_refused"}
    assert told[3:] == [["login_refused"], ["connection_refused"]]
    for code, out in printed:
        assert code == 4
        assert SECRET not in out
        assert USER not in out


# -- another server -------------------------------------------------------------------------------


@pytest.mark.slow
def test_tls(redlock_nodes, tls):
    """In order with its CA; without it, without TLS, and with TLS where there is none."""
    context, crt = tls
    with Proxy(redlock_nodes[0].port, context) as proxy:
        url = f"rediss://127.0.0.1:{proxy.port}/0"
        assert codes([url], OPTIONS={"ssl_ca_certs": str(crt)}) == []
        (finding,) = document([url])["nodes"][0]["findings"]
        assert finding["code"] == "untrusted"
        assert "name its CA in OPTIONS['ssl_ca_certs']" in finding["text"]
        assert codes([proxy.url])[0] in {"tls", "perhaps_tls"}
    plain = redlock_nodes.urls[1].replace("redis://", "rediss://")
    assert codes([plain])[0] in {"not_tls", "perhaps_not_tls"}


def test_a_web_server():
    """What is there is told, and where to correct it."""
    odd = next(each for each in UNECHOED if each.name == "a web server")
    with OddNode(odd, "AUTH") as node:
        assert codes([node.url]) == ["web_server"]


SLOWLY = [pytest.param(step, marks=pytest.mark.nightly) for step in ("GREETING", "TIME", "CONFIG")]


@pytest.mark.parametrize("step", ["INFO", "EVALSHA", *SLOWLY])
@pytest.mark.parametrize("odd", UNECHOED, ids=lambda odd: odd.name)
def test_whatever_a_node_says(odd: Oddity, step: str, monkeypatch):
    """No answer is an error of the command, none is believed blindly, and it ends."""
    monkeypatch.setattr(probe, "PATIENCE", 0.3)
    with OddNode(odd, step) as node:
        found = document([node.url], NODE_TIMEOUT=0.3)["nodes"][0]
        assert node.said or step == "GREETING"
    if step in {"TIME", "INFO"} and odd.name != "a redirection to nowhere":
        assert problems(found, "error")
    if found["reached"]:
        assert found["version"] == "redis 7.2.0"


# -- it ends --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_nodes_that_hang(redlock_nodes, monkeypatch):
    """They are asked at the same time: no conversation waits until another one is over."""
    monkeypatch.setattr(probe, "PATIENCE", 3600.0)
    together = threading.Barrier(5)

    ask = probe.probe

    def met(*asked: Any) -> probe.NodeReport:
        together.wait(60)  # much longer than the command waits for them
        return ask(*asked)

    monkeypatch.setattr(probe, "probe", met)
    for place in range(5):
        redlock_nodes.pause(place)
    found = document(redlock_nodes.urls, NODE_TIMEOUT=0.05)
    for place in range(5):
        redlock_nodes.resume(place)
    assert (together.n_waiting, together.broken) == (0, False)
    assert {node["findings"][0]["code"] for node in found["nodes"]} == {"connect_timeout"}


@pytest.mark.slow
def test_a_name_service_that_hangs(redlock_nodes, monkeypatch):
    """Looking a name up has no timeout, so the command does not wait for it."""
    monkeypatch.setattr(probe, "PATIENCE", 0.3)
    ended, looked_up, came_back = threading.Event(), [], []
    look_up = socket.getaddrinfo

    def hang(host: str, *args: Any, **options: Any) -> Any:
        if host == "nowhere.example.com":
            looked_up.append(host)
            ended.wait(60)
            came_back.append(host)
            raise OSError("too late")
        return look_up(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    found = document([redlock_nodes.urls[0], "redis://nowhere.example.com"], NODE_TIMEOUT=0.3)
    assert (looked_up, came_back) == (["nowhere.example.com"], [])
    ended.set()
    assert [node["reached"] for node in found["nodes"]] == [True, False]


def test_where_no_thread_can_be_started(redlock_nodes, monkeypatch):
    """The nodes are asked one after the other."""

    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(background, "_thread", SimpleNamespace(start_new_thread=refuse))
    with configured(redlock_nodes.urls):
        code, out = check()
    assert code == 0
    assert "default: ready (5 of 5 nodes vote, 3 are needed)" in out

"""Nodes that restart with so much data that loading it takes seconds."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

import pytest
from django.test import override_settings

from django_redlock import NodesUnavailable, conf, redlock
from django_redlock.core.protocol import Answer
from django_redlock.core.reasons import ReasonCode
from django_redlock.testing import EmbeddedNode, EmbeddedNodes, server
from tests.support.looked_at import check, counted_votes, status
from tests.support.servers import redis_version
from tests.support.waiting import eventually

ENDLESS = 200_000  # microseconds for each of the keys: nobody waits for the end
KEYS = 1000
SLOW = {
    "enable-debug-command": "yes",
    "loading-process-events-interval-bytes": 1024,  # it answers between two keys
    "rdbcompression": "no",
}
KEPT = {"snapshot": {}, "append-only file": {"appendonly": "yes"}}
PATIENCE = 20.0
FOREVER = 600.0  # seconds: for a test


@pytest.fixture(scope="module")
def two() -> Iterator[EmbeddedNodes]:
    """The other nodes."""
    with EmbeddedNodes(2) as nodes:
        yield nodes


@pytest.fixture
def slow(request: pytest.FixtureRequest) -> Iterator[EmbeddedNodes]:
    """A node that keeps its data."""
    with EmbeddedNodes(1) as same:
        if redis_version(same[0]) < (7,):
            pytest.skip("before 7.0 a node answers only once for 2 MB that it has loaded")
    with EmbeddedNodes(1, config=SLOW | KEPT[getattr(request, "param", "snapshot")]) as nodes:
        yield nodes


@contextmanager
def in_force(two: EmbeddedNodes, slow: EmbeddedNodes, **options: Any) -> Iterator[EmbeddedNode]:
    """The default alias, of which the last node is the slow one; connected."""
    alias = {"MAX_TTL": 60, "NODE_TIMEOUT": PATIENCE, "RESTART_GUARD": False} | options
    slow.settings(**alias)
    settings = two.settings(**alias)
    with override_settings(REDLOCK={"default": settings | {"NODES": [*two.urls, *slow.urls]}}):
        eventually(lambda: attempted() and votes() == ["", "", ""])
        yield slow[0]
        conf.forget()


def attempted() -> bool:
    """Whether a lock can be had."""
    with suppress(NodesUnavailable), redlock("other"):
        return True
    return False


def votes() -> list[str]:
    """Why each node has no vote, as far as this process knows."""
    return [state.code for state in conf.backend("default").group.states()]


def told(command: Any) -> Any:
    """What a command says of the default alias."""
    return json.loads(command("--json")[1])["aliases"]["default"]


@contextmanager
def loading(node: EmbeddedNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kill the node and start it with its data, which it loads until the end of the block."""
    monkeypatch.setattr(server, "START_SECONDS", 3600.0)
    with closing(node.client()) as admin:
        pipeline = admin.pipeline(transaction=False)
        for number in range(KEYS):
            pipeline.set(f"filler:{number}", "x" * 2000)
        pipeline.execute()
        admin.config_set("key-load-delay", ENDLESS)
        admin.config_rewrite()
        if admin.config_get("appendonly")["appendonly"] == "yes":
            admin.bgrewriteaof()
            eventually(lambda: not rewriting(node))
        else:
            admin.save()
    node.kill()
    starting = threading.Thread(target=node.start)
    starting.start()
    try:
        eventually(lambda: is_loading(node), every=0.02)
        yield
    finally:
        eventually(lambda: hurried(node))
        starting.join(120)
    assert not starting.is_alive()


def rewriting(node: EmbeddedNode) -> bool:
    """Whether it writes its append-only file anew."""
    with closing(node.client()) as admin:
        said = admin.info("persistence")
    return bool(said["aof_rewrite_in_progress"] or said["aof_rewrite_scheduled"])


def is_loading(node: EmbeddedNode) -> bool:
    """Whether it loads its data."""
    with suppress(Exception), closing(node.client()) as admin:
        return bool(admin.info("persistence")["loading"])
    return False


def hurried(node: EmbeddedNode) -> bool:
    """Let it load the rest at once; whether it has heard that."""
    with suppress(Exception), closing(node.client()) as admin:
        return bool(admin.config_set("key-load-delay", 0))
    return False


def keys(node: EmbeddedNode) -> list[str]:
    """The locks that it stores."""
    with closing(node.client(decode_responses=True)) as admin:
        return sorted(map(str, admin.keys("redlock:lock:*")))


@pytest.mark.slow
@pytest.mark.parametrize("slow", KEPT, indirect=True)
def test_a_node_that_loads_its_data(two, slow, monkeypatch):
    """It has no vote and is named; what was released meanwhile is free there when it is back."""
    with in_force(two, slow) as node:
        kept, given = redlock("kept", ttl=60).acquire(), redlock("given", ttl=60).acquire()
        eventually(lambda: keys(node) == ["redlock:lock:given", "redlock:lock:kept"])
        with loading(node, monkeypatch):
            eventually(lambda: attempted() and votes() == ["", "", "loading"])
            with redlock("other") as lease:
                assert lease.grant.votes[2].code == ReasonCode.LOADING
            given.release()
            kept.extend()
            shown = told(status)
            assert (shown["health"], shown["nodes"][2]["code"]) == ("degraded", "loading")
            assert "LOADING: still loading its data; look again when it has" in status()[1]
            examined = told(check)
            assert (examined["health"], examined["usable"]) == ("degraded", 2)
            errors = [e for e in examined["nodes"][2]["findings"] if e["level"] == "error"]
            assert [e["code"] for e in errors] == ["loading"]
            assert errors[0]["text"].endswith("; look again when it has loaded them")
            assert counted_votes(afresh=False) == (2, 2, 2)
        eventually(lambda: keys(node) == ["redlock:lock:kept"], what="the release of before")
        eventually(lambda: attempted() and votes() == ["", "", ""])
        kept.extend()
        kept.release()
        assert keys(node) == []


@pytest.mark.slow
def test_a_node_that_loads_its_data_costs_a_lock_nothing(two, slow, monkeypatch):
    """No lock waits for it, while its handshake goes on, or asks it again too soon."""
    going_on = threading.Event()
    tried: list[float] = []  # and for how many seconds it is then left alone

    with in_force(two, slow, NODE_TIMEOUT=FOREVER) as node, loading(node, monkeypatch):
        group: Any = conf.backend("default").group
        loads = group.nodes[2]  # of this group alone: others have threads that connect, too
        connect = loads._connect

        def late(progress: Any) -> Any:
            progress()
            tried.append(0.0)
            assert going_on.wait(60)
            connection = connect(progress)
            tried[-1] = loads._retry_at - loads._failed_at
            loads._retry_at += FOREVER
            return connection

        eventually(lambda: attempted() and votes() == ["", "", "loading"])
        monkeypatch.setattr(loads, "_connect", late)
        eventually(lambda: attempted() and tried)
        for _ in range(100):
            with redlock("other") as lease:
                assert lease.grant.votes[2].code == ReasonCode.LOADING
        going_on.set()
        eventually(lambda: attempted() and not loads._attempts)
        assert min(tried) > 0
        before = len(tried)
        for _ in range(100):
            with redlock("other"):
                pass
        assert len(tried) == before


@pytest.mark.slow
def test_a_node_that_has_loaded_its_data_may_have_forgotten_the_last_locks(two, slow, monkeypatch):
    """What was granted after its snapshot is gone: it has no vote before that is over."""
    with in_force(two, slow, MAX_TTL=1, CLOCK_SKEW=0.1, TTL=1, RESTART_GUARD=True) as node:
        with loading(node, monkeypatch):
            pass
        seen = set()
        while True:
            with redlock("other", renew=False, wait=PATIENCE) as lease:
                vote = lease.grant.votes[2]
            if vote.answer is Answer.YES:
                break
            seen.add(vote.code)
        assert node.uptime() >= 2  # of 2.1: it tells whole seconds
        assert "emptied" not in seen

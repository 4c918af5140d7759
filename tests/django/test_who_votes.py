"""``redlock_check``, ``redlock_status`` and the admin page count the same nodes as voting."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import pytest
from django.test import override_settings

from django_redlock import redlock
from django_redlock.inspection import probe
from django_redlock.nodes.handshake import Admission
from django_redlock.testing import EmbeddedNodes
from tests.support.looked_at import check, counted_votes
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

FENCES = "redlock:fences"
# The guard is over on nodes that are as old as those of ``redlock_nodes``.
AGED = {"MAX_TTL": 2, "TTL": 2, "CLOCK_SKEW": 0.1, "NODE_TIMEOUT": 10}
HOUR = {"MAX_TTL": 3600, "NODE_TIMEOUT": 10}  # a guard that no test outlasts


def told() -> dict[str, Any]:
    """What ``redlock_check`` says of the default alias; its exit status as ``code``."""
    code, out = check("--json")
    return {"code": code, **json.loads(out)["aliases"]["default"]}


@contextmanager
def configured(nodes: list[Any], **options: Any) -> Iterator[None]:
    """The alias ``default`` with these nodes, which this process does not know yet."""
    with override_settings(REDLOCK={"default": {"NODES": nodes} | options}):
        yield


@pytest.fixture
def new() -> Iterator[EmbeddedNodes]:
    """Three nodes that were started a moment ago and that nobody has seen."""
    with EmbeddedNodes(3) as nodes:
        yield nodes


# -- nodes that do not vote yet -------------------------------------------------------------------


def test_new_nodes_that_nobody_has_seen(new):
    """No lock can be taken, and no time begins to count until a process has seen them."""
    with configured(new.urls, **HOUR):
        found = told()
        assert (found["code"], found["health"], found["usable"]) == (5, "not_yet", 3)
        assert (found["voting"], found["votes_in"]) == (0, None)
        for node in found["nodes"]:
            assert (node["voting"], node["guard_left"]) == (False, None)
            assert [each["code"] for each in node["findings"]] == ["unseen"]
        out = " ".join(check()[1].split())
        assert "default: not yet, no lock can be taken until 3611 s after redlock_status" in out
        assert "(0 of 3 nodes vote, 2 are needed)" in out
        with closing(new[0].client()) as client:
            assert client.keys("*") == []
        assert counted_votes() == (0, 0, 0)


@pytest.mark.slow
def test_ready_means_that_a_lock_can_be_taken(new, monkeypatch, tmp_path):
    """As a pipeline does it: real processes, until the status is 0; then there is a lock."""
    alias = {"NODES": new.urls} | AGED
    (tmp_path / "deployed.py").write_text(
        f"from tests.settings import *\nREDLOCK = {{'default': {alias!r}}}\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:.")

    def ran(command: str) -> int:
        words = [sys.executable, "-m", "django", command, "--settings", "deployed"]
        return subprocess.run(words, capture_output=True, check=False).returncode

    assert ran("redlock_check") == 5
    ran("redlock_status")
    with configured(new.urls, **AGED):
        statuses: list[int] = []

        def is_ready() -> bool:
            statuses.append(ran("redlock_check"))
            return statuses[-1] == 0

        eventually(is_ready, within=60)
        redlock("x").acquire().release()
    assert set(statuses) <= {0, 5}


# -- each reason ----------------------------------------------------------------------------------


class Faults:
    """What may be wrong with one node; each returns its entry of ``NODES``."""

    def __init__(self, aged: EmbeddedNodes, new: EmbeddedNodes, stack: ExitStack) -> None:
        self.aged, self.new, self.stack = aged, new, stack

    def well(self) -> Any:
        return self.aged[2].url

    def restarted(self) -> Any:
        with closing(self.new[0].client()) as client:  # with the data of its file
            client.hset(FENCES, "epoch", "kept")
        return self.new[0].url

    def emptied(self) -> Any:
        client = self.stack.enter_context(closing(self.aged[2].client()))
        kept: Any = client.hgetall(FENCES)
        client.delete(FENCES)
        self.stack.callback(client.hset, FENCES, mapping=kept)
        self.stack.callback(client.delete, FENCES)
        return self.aged[2].url

    def dead(self) -> Any:
        self.new.kill(0)
        return self.new[0].url

    def replica(self) -> Any:
        with closing(self.new[0].client()) as client:
            client.replicaof("127.0.0.1", self.new[1].port)
        return self.new[0].url

    def promoted(self) -> Any:
        master = self.stack.enter_context(EmbeddedNodes(1))[0]  # of the same kind as its replica
        with closing(self.new[0].client()) as client:
            client.replicaof("127.0.0.1", master.port)
            eventually(lambda: client.info("replication")["master_link_status"] == "up")
            client.replicaof("NO", "ONE")
        return self.new[0].url

    def cluster(self) -> Any:
        config = {"cluster-enabled": "yes"}
        return self.stack.enter_context(EmbeddedNodes(1, config=config))[0].url

    def ahead(self) -> Any:
        proxy = self.stack.enter_context(Proxy(self.aged[2].port))
        proxy.clock = 100
        return proxy.url

    def duplicate(self) -> Any:
        return f"redis://localhost:{self.aged[1].port}"

    def unknown_user(self) -> Any:
        return f"redis://no:no@127.0.0.1:{self.aged[2].port}"

    def confined_user(self) -> Any:
        admin = self.stack.enter_context(closing(self.aged[2].client()))
        admin.execute_command("ACL SETUSER", "few", "on", ">p", "~*", "+@all", "-script")
        self.stack.callback(admin.execute_command, "ACL DELUSER", "few")
        return {"URL": self.aged[2].url, "USERNAME": "few", "PASSWORD": "p"}

    def of_another_type(self) -> Any:
        client = self.stack.enter_context(closing(self.new[0].client()))
        client.set(FENCES, "somebody else's")
        return self.new[0].url


# What redlock_check calls it, where that is an error; the others are waited for, or well.
CODES = {
    "dead": "connection_refused",
    "replica": "replica",
    "promoted": "promoted",
    "cluster": "cluster",
    "duplicate": "duplicate",
    "confined_user": "rights_missing",
    "of_another_type": "wrong_type",
}
EACH = [name for name, value in vars(Faults).items() if name[0] != "_" and callable(value)]


FAULTS = [  # a promotion takes seconds
    pytest.param(each, marks=pytest.mark.slow if each == "promoted" else ()) for each in EACH
]


@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("fault", FAULTS)
def test_each_place_counts_the_same(redlock_nodes, new, fault, guard):
    """Three nodes, the last one with a fault: one number in three places, with and without guard.

    Once before anybody has seen the nodes by the other command, and once after.
    """
    with ExitStack() as stack:
        entry = getattr(Faults(redlock_nodes, new, stack), fault)()
        with configured([*redlock_nodes.urls[:2], entry], RESTART_GUARD=guard, **AGED):
            by_age = {"restarted", "emptied", "ahead"}  # what the guard is there for
            votes = 3 if fault == "well" or (fault in by_age and not guard) else 2
            found = told()
            assert found["voting"] == votes
            codes = [each["code"] for each in found["nodes"][2]["findings"]]
            assert CODES.get(fault, "") in ["", *codes]
            assert counted_votes() == (votes, votes, votes)


def test_a_node_emptied_under_a_process_that_uses_it(redlock_nodes, new):
    """The process of the admin page has a connection from before, and counts as the others do."""
    with ExitStack() as stack, configured(redlock_nodes.urls[:3], **AGED):
        assert counted_votes(afresh=False) == (3, 3, 3)
        Faults(redlock_nodes, new, stack).emptied()
        assert counted_votes(afresh=False) == (2, 2, 2)


# -- the tests can fail ---------------------------------------------------------------------------


def test_a_check_that_knows_only_the_age_of_a_node_is_noticed(redlock_nodes, new, monkeypatch):
    """What was wrong: an emptied node, old enough, was taken for one that votes."""

    class OnlyByAge(Admission):
        def read(self, _: object) -> tuple[float, bytes]:
            return 0.0, b""

    monkeypatch.setattr(probe, "Admission", OnlyByAge)
    with pytest.raises(AssertionError):
        test_each_place_counts_the_same(redlock_nodes, new, "emptied", guard=True)

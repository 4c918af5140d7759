"""``redlock_status --prometheus``, read as Prometheus reads it."""

from __future__ import annotations

import json
import threading
import time

import pytest
from django.core.management import CommandError, call_command

from django_redlock import redlock
from django_redlock.inspection.rows import exposition
from django_redlock.inspection.survey import Report
from tests.support.looked_at import A, evicting, in_memory, put, some_tasks, status
from tests.support.passwords import SECRET, USER, with_passwords
from tests.support.scraped import gauges, read
from tests.support.waiting import eventually


def test_gauges_of_real_nodes(patient_nodes):
    """What is held, since when, and each node; with one that is down, and the same exit status."""
    ours = [f"{node.host}:{node.port}/0" for node in patient_nodes]
    with redlock("free"):
        pass
    code, found = gauges()
    assert code == 0
    assert found["redlock_names_held"] == {("default",): 0}
    assert "redlock_names_oldest_hold_seconds" not in found
    began = time.time()
    with redlock("invoice:42"), redlock(["invoice:43", "invoice:44"]):
        patient_nodes.kill(4)
        code, found = gauges()
        assert code == status()[0] == 3
        held_for = time.time() - began
    assert found["redlock_majority"] == {("default",): 3}
    assert found["redlock_names_held"] == {("default",): 3}
    assert 0 <= found["redlock_names_oldest_hold_seconds"]["default",] <= held_for
    for gauge in ("redlock_node_up", "redlock_node_voting"):
        assert found[gauge] == {("default", node): node != ours[4] for node in ours}
    trips = found["redlock_node_round_trip_seconds"]
    assert set(trips) == {("default", node) for node in ours[:4]}
    assert all(0 < seconds < 10 for seconds in trips.values())


def test_names_that_somebody_waits_for(patient_nodes):
    """Two waiters for one name are one name, until they have had it; the JSON tells the same."""

    def wait() -> None:
        with redlock("name", wait=60):
            pass

    def names() -> float:
        count = gauges()[1]["redlock_names_waited_for"]["default",]
        assert count in {0, 1}
        return count

    assert names() == 0
    waiters = [threading.Thread(target=wait) for _ in range(2)]
    with redlock("name"), redlock("other"):
        for each in waiters:
            each.start()
        eventually(names)
        assert json.loads(status("--json")[1])["aliases"]["default"]["waiting"] == 1
    for each in waiters:
        each.join()
    eventually(lambda: names() == 0)


def test_a_node_that_evicts(patient_nodes):
    """The exit status does not tell of it, so a gauge does."""
    with evicting(patient_nodes[0], "allkeys-lru"):
        code, found = gauges()
    assert code == 0
    assert list(found["redlock_node_evicts"].values()) == [1, 0, 0, 0, 0]


def test_tasks_and_names_that_nobody_holds(memory):
    """Tasks are counted by their state; of names, those that somebody holds, and the others."""
    some_tasks(memory)
    put(memory, "partial", f"{A}:5:web-1", 0, 1)
    _, found = gauges()
    assert found["redlock_tasks"] == {("default", "queued"): 1, ("default", "running"): 1}
    assert found["redlock_names_held"] == {("default",): 1}  # by the task that runs
    assert found["redlock_names_unsettled"] == {("default",): 1}
    assert found["redlock_truncated"] == {("default",): 0}


def test_what_too_few_nodes_could_tell(memory):
    """Without a majority nothing is said of locks: 0 would mean that none is held."""
    with redlock("held"):
        memory.down = {0, 1, 2}
        code, found = gauges()
    assert code == 4
    assert {each for each in found if "_node_" not in each} == {"redlock_majority"}
    assert sum(found["redlock_node_voting"].values()) == 2


def test_more_than_the_limit(memory):
    """It is told where not everything was counted."""
    with redlock(["a", "b", "c"]):
        _, found = gauges("--limit", "2")
        assert found["redlock_names_held"] == {("default",): 2}
        assert found["redlock_truncated"] == {("default",): 1}
        assert gauges("--limit", "3")[1]["redlock_truncated"] == {("default",): 0}


def test_each_alias_has_its_samples():
    """A gauge is told once, with the samples of all aliases below it."""
    with in_memory("default", "payments"), redlock("a"):
        _, found = gauges()
        assert found["redlock_names_held"] == {("default",): 1, ("payments",): 0}
        assert set(gauges("--alias", "payments")[1]["redlock_names_held"]) == {("payments",)}


@pytest.mark.parametrize("alias", ['a"b', "a\\b", "a\\n", 'a\\"', "zürich", "a b{}"])
def test_labels_are_escaped(alias):
    """An alias is read back as it is."""
    with in_memory(alias):
        assert gauges()[1]["redlock_names_held"] == {(alias,): 0}


def test_a_label_has_one_row():
    """Line breaks are made visible, of whatever kind: a row ends where the format says."""
    text = exposition([Report("a\nb\r\u2028c", (), (), 1)])
    assert read(text)["redlock_majority"] == {("a\\nb\\r\\u2028c",): 1}


def test_neither_names_nor_passwords_are_labels(patient_nodes):
    """A node's label has its address; no row has the name of a lock or its holder."""
    with with_passwords(patient_nodes):
        _, out = status("--prometheus")
    assert f":{patient_nodes[0].port}/0" in out
    assert SECRET not in out
    assert USER not in out
    with redlock("a-name"):
        _, out = status("--prometheus")
    assert read(out)["redlock_names_held"] == {("default",): 1}
    assert "a-name" not in out


@pytest.mark.parametrize(
    "args",
    [
        ["--json"],
        ["--watch"],
        ["--older-than=0"],
        ["--problems"],
        ["--finished"],
        ["a-name"],
    ],
)
def test_what_does_not_go_with_it(memory, args):
    """The error names the option to leave out, and nothing is printed."""
    wanted = args[0].partition("=")[0] if args[0].startswith("--") else "NAME"
    with pytest.raises(CommandError, match=f"^--prometheus counts everything: leave {wanted} out$"):
        call_command("redlock_status", "--prometheus", *args)

"""Marks and completion records as rows of a survey, from nodes in memory and real ones."""

from __future__ import annotations

import importlib
import math
from typing import Any, NamedTuple

import pytest

from django_redlock import conf, redlock
from django_redlock.backend import Backend
from django_redlock.core import completion
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Command, Request
from django_redlock.inspection import HeldLock, Report
from django_redlock.inspection.survey import Wanted, clear_task
from django_redlock.leases.lease import Lease
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.memory import MemoryNode, MemoryNodes
from django_redlock.work.run import record
from tests.support.loops import group_of
from tests.support.proxy import Proxy

SURVEYS = importlib.import_module("django_redlock.inspection.survey")  # its name is a function's
NOW = 1_000_000_000  # milliseconds


class Run(NamedTuple):
    """A run of a message: the lease of its key, and that of its run name if it has one."""

    key: Lease
    own: Lease | None


class Place:
    """An alias whose tasks are listed, and what publishers and runs leave on its nodes."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.asked = 0

    def publish(self, task: str, name: str | list[str], task_id: str, ttl: float = 60) -> str:
        """Mark a queued task; return the nonce."""
        names = [name] if isinstance(name, str) else name
        key = completion.mark_key(self.backend.policy, task, names)
        steps = completion.set_mark(self.backend.policy, key, task=task, task_id=task_id, ttl=ttl)
        outcome = self.backend.run(steps)
        assert outcome.certain
        return outcome.nonce

    def run(self, task: str, names: str | list[str], task_id: str, number: str = "") -> Run:
        """Begin a run, with a run name if it has a number."""
        template = LockTemplate(lambda _: self.backend).using(
            label=f"host:12({task}):{task_id}", renew=False, ttl=30
        )
        own = template(f"run:{task}:{number}").acquire() if number else None
        return Run(template(names).acquire(), own)

    def finish(self, run: Run, life: float = 90) -> None:
        """End a run, and leave a record of its run name."""
        assert run.own is not None
        assert record(run.own, life)
        run.key.release()

    def look(self, *texts: str, limit: int = 1000, finished: bool = False) -> Report:
        """Survey, and note how many pages and looks that takes, besides the one at the memory."""
        self.asked = 0
        ask = self.backend.group.ask

        def counting(request: Request) -> Any:
            self.asked += request.command is Command.SURVEY
            return ask(request)

        self.backend.group.ask = counting  # type: ignore[method-assign,assignment]
        try:
            return Wanted(texts, finished=finished).survey(self.backend, limit)
        finally:
            del self.backend.group.ask

    def rows(self, *texts: str, finished: bool = False) -> list[tuple[str, str, str, str]]:
        """The name, what it is, the task and its id, of each row that has a task."""
        found = Wanted(texts, finished=finished).survey(self.backend)
        assert not found.truncated
        return [
            (row.name, row.kind.value, row.task, row.task_id) for row in found.locks if row.task_id
        ]

    def only(self, *, finished: bool = False) -> HeldLock:
        """The one row that there is."""
        (row,) = self.look(finished=finished).locks
        return row


@pytest.fixture
def place() -> Place:
    """Five nodes in memory whose clocks stand still."""
    group = MemoryNodes([MemoryNode(clock=lambda: NOW) for _ in range(5)])
    return Place(Backend("default", group, Policy(size=5)))


def nodes_of(place: Place) -> tuple[MemoryNode, ...]:
    """The nodes in memory."""
    assert isinstance(place.backend.group, MemoryNodes)
    return place.backend.group.nodes


def test_a_task_from_the_queue_to_its_end(place):
    """Queued; held, and queued no more; its run name, while the result is stored; finished."""
    nonce = place.publish("reports.sync", "account:7", "id-1")
    queued = place.only()
    assert (queued.name, queued.kind, queued.on, queued.lowest) == ("account:7", "queued", 5, 60)
    assert (queued.task, queued.task_id) == ("reports.sync", "id-1")
    assert queued.holder == "reports.sync, id id-1"
    run = place.run("reports.sync", "account:7", "id-1", "n-1")
    held = [
        (name, "held", "reports.sync", "id-1") for name in ("account:7", "run:reports.sync:n-1")
    ]
    assert place.rows() == held
    key = completion.mark_key(place.backend.policy, "reports.sync", ["account:7"])
    place.backend.run(completion.remove(place.backend.policy, key, nonce))
    assert place.rows() == held
    place.finish(run)
    assert place.rows() == []
    record = place.only(finished=True)
    assert (record.kind, record.on, record.lowest) == ("finished", 5, 90)
    assert (record.task, record.task_id) == ("reports.sync", "id-1")
    place.publish("reports.sync", "account:7", "id-1")  # a retry that waits, under the same id
    assert [row[1] for row in place.rows(finished=True)] == ["queued", "finished"]


def test_unusual_names_of_tasks_are_shown_as_they_are(place):
    """A mark has the whole name, with its colons; of several locks it has the first."""
    place.publish("a:b%3A", "account:7", "id-1")
    assert place.rows() == [("account:7", "queued", "a:b%3A", "id-1")]
    place.publish("sync", ["x", "y"], "id-2")
    ((name, *_),) = place.rows("sync")
    assert name.startswith("x+1~")


def test_what_is_gone_meanwhile_is_not_listed(place):
    """A name in an index whose key is gone, and a key that somebody else has overwritten."""
    for name in ("gone", "foreign"):
        place.publish("sync", name, "id-1")
    for node in nodes_of(place):
        del node.keys["redlock:mark:sync:gone"]
        node.keys["redlock:mark:sync:foreign"] = ("foreign", None)
    assert place.look().locks == ()


# -- many ---------------------------------------------------------------------------------------


def publish_many(place: Place, count: int) -> None:
    """Queue so many tasks."""
    for number in range(count):
        place.publish("sync", f"account:{number:04}", f"id-{number:04}", ttl=60 + number)


@pytest.mark.parametrize("count", [1, 300])
def test_the_number_of_requests_does_not_grow_with_tasks(place, count):
    """One request for all indexes, for up to 333 names in each."""
    publish_many(place, count)
    assert len(place.look().locks) == count
    assert place.asked == 1


def test_a_search_reads_all_pages(place, monkeypatch):
    """Without one, no more pages than the limit needs, and that is told."""
    monkeypatch.setattr(SURVEYS, "PAGE", 7)
    publish_many(place, 30)
    assert not place.look(limit=30).truncated
    found = place.look(limit=7)
    assert (len(found.locks), found.beyond, found.truncated) == (7, 0, True)
    assert place.asked == 1 + 1  # the first page of each index, and one of marks
    found = place.look("id-0029")
    assert [row.name for row in found.locks] == ["account:0029"]
    assert not found.truncated
    # The name, the first page of each index, and the other marks.
    assert place.asked == 1 + 1 + math.ceil((30 - 7 // 3) / 7)
    found = place.look("id-*", limit=10)
    assert (len(found.locks), found.beyond) == (10, 20)
    monkeypatch.setattr(SURVEYS, "PAGES", 2)
    found = place.look("id-0029")
    assert (found.unsearched, found.truncated, len(found.heard)) == (True, True, 5)


# -- real nodes ---------------------------------------------------------------------------------


@pytest.fixture
def both(place, patient_nodes) -> list[Place]:
    """Nodes in memory, and real ones."""
    real = conf.backend("default")
    with redlock("warm"):
        pass
    return [place, Place(real)]


def test_real_nodes_tell_what_nodes_in_memory_tell(both, patient_nodes):
    """The same publishers and runs leave the same tasks, and no reply has a nonce."""
    found, nonces = [], []
    for place in both:
        publish_many(place, 70)
        place.publish("ünusual:name", ["x", "y"], "id-1")
        nonces.append(place.publish("sync", "running", "id-2"))
        nonces += [
            lease.grant.nonce for lease in place.run("sync", "running", "id-2", "n-2") if lease
        ]
        place.finish(place.run("sync", "ended", "id-3", "n-3"))
        listed = Wanted(finished=True).survey(place.backend)
        found.append(place.rows(finished=True))
        assert not any(nonce in repr(listed) for nonce in nonces)
    assert found[0] == found[1]
    assert len(found[0]) == 70 + 1 + 2 + 1


@pytest.mark.slow
def test_who_clears_a_task_hears_of_a_node_that_is_late(patient_nodes):
    """A majority would do, but a person reads how many nodes have replied."""
    *prompt, last = patient_nodes
    with Proxy(last.port) as late:
        group = group_of([*(node.url for node in prompt), late.url], 10.0)
        place = Place(Backend("default", group, Policy(size=5)))
        place.publish("sync", "account:7", "id-1")
        late.delay = 1.0
        assert clear_task(place.backend, "id-1") == 5
        late.delay = 0.0
        assert place.rows() == []
        group.close()

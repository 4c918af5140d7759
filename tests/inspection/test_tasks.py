"""Which tasks wait, run and have finished: what is listed, from nodes in memory and real ones."""

from __future__ import annotations

import math
from contextlib import closing
from typing import Any, NamedTuple

import pytest

from django_redlock import conf, redlock
from django_redlock.backend import Backend
from django_redlock.celery.redelivery import record
from django_redlock.core import completion
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Command, Request
from django_redlock.inspection import Task, TaskList, index, list_tasks, tasks
from django_redlock.leases.lease import Lease
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.memory import MemoryNode, MemoryNodes
from tests.support.loops import group_of
from tests.support.proxy import Proxy

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
        steps = completion.publish(self.backend.policy, key, task=task, task_id=task_id, ttl=ttl)
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

    def list(self, *, heard: frozenset[int] | None = None, **options: Any) -> TaskList:
        """List the tasks, of all nodes, and note how many requests that takes."""
        self.asked = 0
        ask = self.backend.group.ask

        def counting(request: Request) -> Any:
            assert request.command is Command.TASKS
            self.asked += 1
            return ask(request)

        self.backend.group.ask = counting  # type: ignore[method-assign,assignment]
        try:
            return list_tasks(self.backend, heard or self.backend.policy.everyone, **options)
        finally:
            del self.backend.group.ask

    def only(self, **options: Any) -> Task:
        """The one task that there is."""
        found = self.list(**options)
        assert (found.truncated, found.beyond) == (False, 0)
        (task,) = found.tasks
        return task


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
    """Queued, running beside its mark, running without its key, finished."""
    nonce = place.publish("reports.sync", "account:7", "id-1")
    queued = place.only()
    assert queued == ("reports.sync", "id-1", "queued", ("account:7",), 5, 5, 60, 60)
    run = place.run("reports.sync", "account:7", "id-1", "n-1")
    running = ("reports.sync", "id-1", "running", ("account:7",), 5, 5, 30, 30)
    assert place.only() == running
    key = completion.mark_key(place.backend.policy, "reports.sync", ["account:7"])
    place.backend.run(completion.remove(place.backend.policy, key, nonce))
    assert place.only() == running
    place.finish(run)
    assert place.list().tasks == ()
    assert place.only(finished=True) == ("reports.sync", "id-1", "finished", (), 5, 5, 90, 90)


def test_a_run_that_stores_its_result_is_running(place):
    """The key is free, and the run name is not yet a record."""
    place.run("sync", "account:7", "id-1", "n-1").key.release()
    assert place.only()[:4] == ("sync", "id-1", "running", ())


def test_tasks_without_marks_and_without_records(place):
    """A lock that a task left its name in is enough."""
    place.run("sync", ["a", "b"], "id-1")
    assert place.only()[:4] == ("sync", "id-1", "running", ("a", "b"))


def test_a_retry_that_waits_is_queued(place):
    """Its first try has left a record under the same id."""
    place.finish(place.run("sync", "account:7", "id-1", "n-1"))
    place.publish("sync", "account:7", "id-1")
    assert place.only(finished=True).state == "queued"


def test_unusual_names_of_tasks_are_shown_as_they_are(place):
    """A mark has the whole name, with its colons; of several locks it has the first."""
    place.publish("a:b%3A", "account:7", "id-1")
    assert place.only()[:4] == ("a:b%3A", "id-1", "queued", ("account:7",))
    place.publish("sync", ["x", "y"], "id-2")
    (task,) = place.list(matching=lambda task: task.task == "sync").tasks
    assert task.names[0].startswith("x+1~")


# -- nodes that lack something ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("on", "heard", "state"),
    [(3, 5, "queued"), (2, 5, "partial"), (2, 4, "unclear"), (1, 4, "partial"), (3, 3, "queued")],
)
def test_a_majority_decides(place, on, heard, state):
    """A mark of fewer nodes counts for nothing, unless those that did not reply have it."""
    place.publish("sync", "account:7", "id-1")
    for node in nodes_of(place)[on:]:
        node.keys.clear()
        node.marks.clear()
    task = place.only(heard=frozenset(range(heard)))
    assert (task.state, task.on, task.of) == (state, on, 5)


def test_one_record_is_enough(place):
    """A copy that meets it does not run."""
    place.finish(place.run("sync", "account:7", "id-1", "n-1"))
    for node in nodes_of(place)[1:]:
        node.keys.clear()
        node.records.clear()
    assert place.only(finished=True)[2:6] == ("finished", (), 1, 5)


@pytest.mark.parametrize(("count", "left"), [(1, (60, None)), (5, (None, None))])
def test_a_key_that_never_expires_somewhere_has_no_highest_time(place, count, left):
    """As of a lock: the lowest time is that of the nodes where it expires, if there are any."""
    place.publish("sync", "account:7", "id-1")
    for node in nodes_of(place)[:count]:
        node.keys = {key: (value, None) for key, (value, _) in node.keys.items()}
    task = place.only()
    assert (task.lowest, task.highest) == left


@pytest.mark.parametrize("broken", [False, True], ids=["", "broken"])
def test_what_is_in_few_indexes_is_looked_up_on_all_nodes(place, broken, monkeypatch):
    """An index may lack a name; without the look a queued task would be called partial."""
    place.publish("sync", "account:7", "id-1")
    place.run("sync", "account:8", "id-2")
    for node in nodes_of(place)[1:]:
        node.marks.clear()
        node.held.clear()
    if broken:
        monkeypatch.setattr(tasks._Reader, "_complete", lambda *_, **__: iter(()))
    found = place.list().tasks
    assert {task.on for task in found} == ({1} if broken else {5})
    assert {task.state for task in found} == ({"partial"} if broken else {"queued", "running"})


def test_what_is_gone_meanwhile_is_not_listed(place):
    """A name in an index whose key is gone, and a key that somebody else has overwritten."""
    for name in ("gone", "foreign"):
        place.publish("sync", name, "id-1")
    for node in nodes_of(place):
        del node.keys["redlock:mark:sync:gone"]
        node.keys["redlock:mark:sync:foreign"] = ("foreign", None)
    assert place.list().tasks == ()


# -- many ---------------------------------------------------------------------------------------


def publish_many(place: Place, count: int) -> None:
    """Queue so many tasks."""
    for number in range(count):
        place.publish("sync", f"account:{number:04}", f"id-{number:04}", ttl=60 + number)


@pytest.mark.parametrize("count", [1, 300])
def test_the_number_of_requests_does_not_grow_with_tasks(place, count):
    """One request for each index, for up to a thousand names."""
    publish_many(place, count)
    assert len(place.list().tasks) == count
    assert place.asked == 2


def test_a_limit_is_told(place):
    """How many more were read, and whether there may be more than that."""
    publish_many(place, 30)
    found = place.list(limit=10)
    assert (len(found.tasks), found.beyond, found.truncated) == (10, 20, False)


def test_a_search_reads_all_pages(place, monkeypatch):
    """Without one, no more pages than the limit needs, and that is told."""
    monkeypatch.setattr(index, "PAGE", 7)
    publish_many(place, 30)
    found = place.list(limit=7)
    assert (len(found.tasks), found.beyond, found.truncated) == (7, 0, True)
    assert place.asked == 2
    found = place.list(matching=lambda task: "id-0029" in task.texts)
    assert [task.names for task in found.tasks] == [("account:0029",)]
    assert not found.truncated
    assert place.asked == math.ceil(30 / 7) + 1
    monkeypatch.setattr(index, "PAGES", 2)
    found = place.list(matching=lambda task: "id-0029" in task.texts)
    assert found == TaskList((), truncated=True, replied=5)


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
        listed = list_tasks(place.backend, place.backend.policy.everyone, finished=True)
        found.append([task._replace(lowest=0, highest=0) for task in listed.tasks])
        assert not any(nonce in repr(listed) for nonce in nonces)
    assert found[0] == found[1]
    assert len(found[0]) == 73


def test_real_nodes_with_strange_keys(both, patient_nodes):
    """Another type, a text that is no mark, and names that are no UTF-8 are passed over."""
    place = both[1]
    place.publish("sync", "account:7", "id-1")
    for node in patient_nodes:
        with closing(node.client()) as client:
            seconds, _ = client.time()
            due = (seconds + 100) * 1000
            client.lpush("redlock:mark:list", "x")
            client.set("redlock:mark:text", "no mark")
            client.set(b"redlock:mark:\xff\x00", f"{'a' * 32}:id-2")
            names = {"list": due, "text": due, b"\xff\x00": due, "gone": due}
            client.zadd("redlock:marks", names)
    listed = list_tasks(place.backend, place.backend.policy.everyone)
    assert [(task.task, task.task_id) for task in listed.tasks] == [
        ("\\xff\x00", "id-2"),
        ("sync", "id-1"),
    ]


@pytest.mark.slow
def test_who_clears_a_task_hears_of_a_node_that_is_late(patient_nodes):
    """A majority would do, but a person reads how many nodes have replied."""
    *prompt, last = patient_nodes
    with Proxy(last.port) as late:
        group = group_of([*(node.url for node in prompt), late.url], 10.0)
        place = Place(Backend("default", group, Policy(size=5)))
        place.publish("sync", "account:7", "id-1")
        late.delay = 1.0
        assert tasks.clear_task(place.backend, "id-1") == 5
        late.delay = 0.0
        assert place.list().tasks == ()
        group.close()

"""What the garbage collector runs in the middle of other code: it stops no thread."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import pytest

from django_redlock.backend import Backend
from django_redlock.core.policy import Policy
from django_redlock.interruption import collector
from django_redlock.leases.lease import Lease
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.memory import MemoryNode, MemoryNodes
from tests.support.loops import unguarded
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
INNERMOST = {"Lease", "LocalQueue", "WorkerThreads"}  # whose locks the collector may want


def played(play: str, variant: str = "") -> dict[str, Any]:
    """What a process says that plays this; see ``collected``."""
    with unguarded(3) as nodes:
        command = [sys.executable, "-m", "tests.nodes.collected", ",".join(nodes.urls), play]
        done = subprocess.run(
            [*command, variant], cwd=ROOT, capture_output=True, text=True, check=False
        )
    assert done.stdout, done.stderr
    said: dict[str, Any] = json.loads(done.stdout)
    return said


# -- no thread waits for another ------------------------------------------------------------------


@pytest.mark.slow
def test_a_collection_waits_for_no_lock_that_another_thread_has():
    """Blocks of a generator and a task, a `__del__`, and a finalizer of the package.

    The leases end at once, the names are free once the locks are, and nothing is told meanwhile.
    """
    said = played("held")
    assert len(said["locks"]) > 14
    assert said["returned"]
    assert said["ended"]
    assert len(said["told"]) >= 3
    assert not any(said["told"])


@pytest.mark.slow
def test_a_collection_that_releases_itself_is_noticed():
    """It waits for the other thread."""
    assert not played("held", "in-place")["returned"]


def taken_inside(variant: str = "") -> dict[str, set[str]]:
    """Which locks are taken inside of which, by their owners."""
    inside: dict[str, set[str]] = {}
    for outer, inner in played("order", variant)["pairs"]:
        inside.setdefault(outer, set()).add(inner)
    return inside


@pytest.mark.slow
def test_inside_the_innermost_locks_no_other_is_taken():
    """A thread gives a lock that the collector wants back. All other locks have an order."""
    inside = taken_inside()
    assert inside
    assert not INNERMOST & inside.keys()
    TopologicalSorter(inside).prepare()


@pytest.mark.slow
def test_a_lock_inside_an_innermost_one_is_noticed():
    """The check above can fail."""
    assert "Watchdog" in taken_inside("nested")["Lease"]
    with pytest.raises(CycleError):
        TopologicalSorter({"a": {"b"}, "b": {"a"}}).prepare()


@pytest.mark.slow
def test_a_child_collects_garbage_also_where_its_parent_did():
    """Another thread of the parent was in the middle of a collection."""
    assert played("fork") == {"worked": True}


# -- what is possible there -----------------------------------------------------------------------


@pytest.fixture
def redlock() -> LockTemplate:
    """What makes locks on nodes in memory."""
    group = MemoryNodes([MemoryNode() for _ in range(3)])
    backend = Backend("collected", group, Policy(size=3))
    return LockTemplate(lambda _: backend)


def collected(redlock: LockTemplate, last: Callable[[Lease], object]) -> Lease:
    """Leave to the collector a block whose body ends with ``last``; return its lease."""

    def work(me: list[Any]) -> Iterator[Lease]:
        with redlock("name") as lease:
            try:
                yield lease
            finally:
                me.clear()
                last(lease)

    cycle: list[Any] = []
    generator = work(cycle)
    cycle.append(generator)
    lease = next(generator)
    del cycle, generator
    gc.collect()
    return lease


def is_free(redlock: LockTemplate) -> bool:
    """Whether nobody has the name."""
    lease = redlock("name").try_acquire()
    if lease is not None:
        lease.release()
    return lease is not None


WAYS: dict[str, Callable[[LockTemplate, Lease], object]] = {
    "acquire": lambda redlock, _: redlock("other").acquire(),
    "block": lambda redlock, _: redlock("other").__enter__(),
    "look": lambda redlock, _: redlock("name").state(),
    "extend": lambda _, lease: lease.extend(),
}


@pytest.mark.parametrize("way", WAYS)
def test_all_but_a_release_is_refused(redlock, way):
    """By an error that says what to do; the block's own release is carried out."""
    errors: list[str] = []

    def last(lease: Lease) -> None:
        assert lease.held
        try:
            WAYS[way](redlock, lease)
        except RuntimeError as error:
            errors.append(str(error))

    assert not collected(redlock, last).held
    assert len(errors) == 1
    assert "contextlib.closing" in errors[0]
    eventually(lambda: is_free(redlock))


def test_a_block_that_is_closed_by_hand_is_released_before_that_returns(redlock):
    """Also by counting references: no collector runs there."""

    def work() -> Iterator[None]:
        with redlock("name"):
            yield

    for end in (lambda each: each.close(), lambda _: None):
        generator = work()
        next(generator)
        end(generator)
        del generator
        assert is_free(redlock)


def test_where_no_thread_can_be_started_the_ttl_frees_the_name(redlock, monkeypatch):
    """The lease ends all the same."""
    monkeypatch.setattr(collector, "hand_over", lambda _: False)
    assert not collected(redlock, lambda _: None).held
    assert not is_free(redlock)

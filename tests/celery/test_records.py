"""The lock of a run name, which becomes a completion record in the end."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextvars import Context
from typing import Any

import pytest
from django.test import override_settings

from django_redlock import LockTaken, conf, redlock
from django_redlock.core import completion
from django_redlock.core.protocol import LockKeys
from django_redlock.core.reasons import ReasonCode
from django_redlock.inspection import survey
from django_redlock.leases.lease import Lease
from django_redlock.nodes.memory import MemoryNode, MemoryNodes
from django_redlock.work.run import record
from tests.simulation.mutants import Patch, with_edits

LIFE = 3600.0


@pytest.fixture(autouse=True)
def nodes() -> Iterator[MemoryNodes]:
    """Five fresh nodes in memory."""
    urls = [f"memory://{uuid.uuid4().hex}" for _ in range(5)]
    with override_settings(REDLOCK={"default": {"NODES": urls}}):
        group = conf.backend("default").group
        assert isinstance(group, MemoryNodes)
        yield group


@pytest.fixture(params=["memory", "real"])
def either(request: pytest.FixtureRequest) -> None:
    """Nodes in memory, or real ones."""
    if request.param == "real":
        request.getfixturevalue("patient_nodes")


def lock(ttl: float = 10.0) -> Any:
    """The lock of a run name, as a copy asks for it."""
    return redlock.using(thorough=True)("run", ttl=ttl)


def run(ttl: float = 10.0) -> Lease:
    """A run whose body has ended."""
    lease: Lease = lock(ttl).acquire()
    return lease


def is_free(name: str) -> bool:
    """Whether somebody else gets a name at once."""
    lease = Context().run(redlock(name).try_acquire)
    if lease is not None:
        lease.release()
    return lease is not None


def code_of_a_copy() -> str:
    """Why a copy is refused, or ""."""
    try:
        Context().run(lock().acquire).release()
    except LockTaken as taken:
        return taken.code
    return ""


def test_a_record_ends_a_copy():
    """The run name becomes a record in one step; a copy is told so."""
    own = run()
    assert record(own, LIFE)
    assert code_of_a_copy() == ReasonCode.RECORDED
    assert not is_free("run")
    assert own.remaining() <= 0
    assert survey(conf.backend("default")).locks == ()


def test_a_record_is_written_to_all_nodes(nodes):
    """Also to those that are not needed for a majority; one that is left has it for all."""
    assert record(run(), LIFE)
    for node in nodes.nodes[:4]:
        node.keys.clear()
    assert code_of_a_copy() == ReasonCode.RECORDED


def test_a_record_on_a_majority_alone_is_caught(nodes):
    """Broken: the record goes to a majority. When these restart empty a copy runs."""

    def to_a_majority(real: Any) -> Any:
        return lambda *fields, to, **named: real(*fields, to=frozenset(range(3)), **named)

    with with_edits(Patch(completion, "Complete", to_a_majority)):
        record(run(), LIFE)
    for node in nodes.nodes[:3]:
        node.keys.clear()
    for node in nodes.nodes[3:]:  # the run name ends there with its ttl
        node.clock = lambda clock=node.clock: clock() + 20_000
    assert code_of_a_copy() == ""


def lost(nodes: MemoryNodes) -> tuple[Lease, Lease]:
    """A run whose lease is gone at the nodes before it knows, and the copy that runs instead."""
    first = run()
    for node in nodes.nodes:
        node.keys.clear()
    return first, Context().run(lock().acquire)


def test_nothing_is_recorded_where_the_name_is_somebody_elses(nodes):
    """The run that took over is not disturbed, and its message is not taken for done."""
    first, second = lost(nodes)
    assert not record(first, LIFE)
    second.extend()
    second.release()
    assert code_of_a_copy() == ""


def test_a_record_that_overwrites_is_caught(nodes):
    """Broken: the record is written although the name is another run's, which loses it."""
    first, second = lost(nodes)

    def anybodys(self: MemoryNode, target: LockKeys, _: str) -> Iterator[tuple[str, str]]:
        names = zip(target.keys, target.entries, strict=True)
        return ((key, name) for key, name in names if key in self.keys)

    with with_edits(Patch(MemoryNode, "_own", lambda _: anybodys)):
        assert record(first, LIFE)
    second.release()
    assert code_of_a_copy() == ReasonCode.RECORDED


def test_a_run_that_is_over_records_nothing():
    """After its end a lease proves nothing."""
    own = run()
    own.release()
    assert not record(own, LIFE)
    assert code_of_a_copy() == ""

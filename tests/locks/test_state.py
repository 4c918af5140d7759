"""``Lock.state`` and ``Lock.astate``: what they tell, over nodes in memory and real ones."""

from __future__ import annotations

import asyncio
import importlib
import pickle
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from django.template import Context, Template
from django.test import override_settings

from django_redlock import LockTaken, NodesUnavailable, conf, redlock, redlocks
from django_redlock.inspection import LockState, LockStatus, NodeReport
from django_redlock.locks.lock import Lock
from django_redlock.testing import EmbeddedNodes
from tests.support.looked_at import A, B, in_memory, put
from tests.support.loops import owing
from tests.support.waiting import eventually

SURVEYS = importlib.import_module("django_redlock.inspection.survey")  # its name is a function's
Look = Callable[[Lock], LockState]


@pytest.fixture(params=["threads", "asyncio"])
def look(request: pytest.FixtureRequest) -> Look:
    """The way to look: by a blocking call, or in a task."""
    if request.param == "threads":
        return Lock.state
    return lambda lock: asyncio.run(lock.astate())


@pytest.mark.usefixtures("nodes")
def test_by_whom_since_when_and_for_how_long(look):
    """A lock that is held is told as its holder knows it, and one that is free as free."""
    lock = redlock("invoice:42", ttl=30, renew=False)
    assert look(lock) == LockState("invoice:42", LockStatus.FREE)
    before = datetime.now(UTC)
    with lock as lease:
        after, state = datetime.now(UTC), look(lock)
        assert lease.remaining() <= state.remaining <= 30
    assert (state.name, state.kind, state.held, state.known) == ("invoice:42", "held", True, True)
    assert state.holder == conf.backend("default").label()
    assert state.fence == lease.fence
    assert before <= state.since <= after
    assert not look(lock).held


@pytest.mark.usefixtures("nodes")
def test_renewing_changes_no_since(look):
    """It is when the holder got the name; a new holder is a new one."""
    lock = redlock("invoice:42", ttl=10, renew=False)
    with lock as lease:
        first = look(lock)
        lease.extend(30)
        later = look(lock)
        assert later.since == first.since
        assert later.remaining > 10
        heir = redlock.adopt(lease.handle())
        assert look(lock).since > first.since
        heir.release()


@pytest.mark.usefixtures("nodes")
def test_a_name_that_rests(look):
    """Nobody holds it, and nobody gets it before its seconds are over."""
    redlock("x", ttl=5, min_hold=20).acquire().release()
    state = look(redlock("x"))
    assert (state.kind, state.held, state.holder, state.since) == ("resting", False, "", None)
    assert 5 < state.remaining <= 20


@pytest.mark.usefixtures("nodes")
def test_several_names(look):
    """The lock is held if one of its names is; of several holders, it tells of the longest."""
    lock = redlock(["a", "b", "c", "b"])
    assert look(lock) == LockState(
        ("a", "b", "c"),
        LockStatus.FREE,
        each=tuple(LockState(name, LockStatus.FREE) for name in "abc"),
    )
    with redlock("a", ttl=10, renew=False), redlock("c", ttl=40, renew=False) as longest:
        state = look(lock)
        assert [each.held for each in state.each] == [True, False, True]
        assert (state.held, state.name, state.fence) == (True, ("a", "b", "c"), longest.fence)
        assert state.remaining == state.each[2].remaining > 10
    assert [each.name for each in state.each] == ["a", "b", "c"]


@pytest.mark.usefixtures("nodes")
def test_more_names_than_go_into_one_request(look):
    """All of them are looked up."""
    names = [f"n{number}" for number in range(100)]
    with redlock("n99", renew=False):
        state = look(redlock(names))
    assert [each.name for each in state.each if each.held] == ["n99"]
    assert len(state.each) == 100


def test_looking_changes_nothing(patient_nodes, look):
    """A node has the same keys as before, and a waiter is not disturbed."""

    def stored() -> list[dict[bytes, Any]]:
        found = []
        for node in patient_nodes:
            with closing(node.client()) as client:
                found.append({key: client.dump(key) for key in client.keys("redlock:*")})
        return found

    with redlock("taken", renew=False):
        with suppress(LockTaken):
            redlock("taken").acquire(wait=0.05)  # leaves the mark of somebody who waited
        real: Any = conf.backend("default").group
        eventually(lambda: owing(real.nodes) == [0] * 5)  # a majority had replied, now all have
        before = stored()
        look(redlock(["taken", "free"]))
        assert stored() == before
    assert before[0]


@pytest.mark.parametrize("down", [3, 4, 5])
def test_without_a_majority_it_is_unknown(memory, look, down):
    """Then it raises, as taking the lock does, and says why for each node."""
    put(memory, "x", f"{A}:5:web-1", *range(5))
    memory.down = set(range(down))
    with pytest.raises(NodesUnavailable) as caught:
        look(redlock("x"))
    assert (caught.value.name, caught.value.code) == ("x", "no_majority")
    assert caught.value.data == {"votes": 5 - down, "size": 5, "needed": 3}
    assert [vote.code for vote in caught.value.votes].count("down") == down
    with pytest.raises(NodesUnavailable) as caught:
        look(redlock(["x", "y"]))
    assert caught.value.name == ("x", "y")


@pytest.mark.slow
def test_a_majority_that_may_not_vote_is_none(redlock_nodes, look):
    """New nodes reply that they have no such key; under the restart guard this says nothing."""
    # For days: these nodes are as old as the run of all tests, so a guard of 600 s may be over.
    alias = redlock_nodes.settings(NODE_TIMEOUT=10) | {"MAX_TTL": 10**6}
    with (
        override_settings(REDLOCK={"default": alias}),
        pytest.raises(NodesUnavailable, match="restart guard") as caught,
    ):
        look(redlock("x"))
    assert {vote.code for vote in caught.value.votes} == {"restart_guard"}


def found_after_a_restart(nodes: EmbeddedNodes, look: Look) -> LockState:
    """Look at a lock that three of five nodes have granted, and one of these has forgotten."""
    for node in (nodes[0], nodes[1], nodes[2]):
        with closing(node.client()) as client:
            client.set("redlock:lock:x", f"{A}:5:web-1", px=60_000)
    real: Any = conf.backend("default").group
    real.nodes[2]._guard = 3600.0  # it lasts, however long this machine takes
    nodes.restart(2)
    return look(redlock("x"))


@pytest.fixture
def guarded(redlock_nodes: EmbeddedNodes) -> Iterator[EmbeddedNodes]:
    """Five nodes that vote, each with ten seconds for a reply."""
    with override_settings(REDLOCK={"default": redlock_nodes.settings(NODE_TIMEOUT=10)}):
        yield redlock_nodes


@pytest.mark.slow
def test_a_node_that_may_have_forgotten_the_lock_does_not_deny_it(guarded, look):
    """Its holder may go on: two nodes have the key, and the third lost it when it restarted."""
    state = found_after_a_restart(guarded, look)
    assert (state.kind, state.known, state.held) == ("unclear", False, False)


@pytest.mark.slow
def test_a_look_that_believes_such_a_node_is_noticed(guarded, look, monkeypatch):
    """The check can fail."""
    judge = SURVEYS.judge

    def believing(name: bytes, cells: Any, nodes: list[NodeReport], *more: Any) -> Any:
        return judge(name, cells, [replace(each, voting=each.heard) for each in nodes], *more)

    monkeypatch.setattr(SURVEYS, "judge", believing)
    assert found_after_a_restart(guarded, look).kind == "partial"


def test_keys_of_several_attempts(memory, look):
    """Who has no majority holds nothing, and is not named."""
    put(memory, "x", f"{A}:5:web-1", 0, 1)
    assert look(redlock("x")) == LockState("x", LockStatus.PARTIAL)
    put(memory, "x", f"{B}:5:web-2", 2, 3)
    assert look(redlock("x")) == LockState("x", LockStatus.SPLIT)
    put(memory, "y", f"{A}:5:web-1", 0, 1, 2)
    assert look(redlock(["x", "y"])).holder == "web-1"


def test_since_is_nearest_to_the_holders_clock(memory, look):
    """A node whose counter was ahead has a higher number; it is no time."""
    asked = datetime(2026, 3, 1, 12, tzinfo=UTC)
    number = int(asked.timestamp()) * 1_000_000
    put(memory, "x", f"{A}:{number}:web-1", 0, 1, 3, 4)
    put(memory, "x", f"{A}:{number + 3_000_000}:web-1", 2)
    assert look(redlock("x")).since == asked


def test_it_is_neither_true_nor_false(memory):
    """An object would always be true: `if lock.state():` is a mistake that is told at once."""
    state = redlock("x").state()
    for use in (bool, lambda state: not state, lambda state: state and 1):
        with pytest.raises(TypeError, match=r"ask state\.held.*try_acquire"):
            use(state)
    with pytest.raises(TypeError, match=r"ask state\.held"):
        Template("{% if x %}held{% endif %}").render(Context({"x": state}))
    assert state == redlock("x").state()
    assert pickle.loads(pickle.dumps(state)) == state  # noqa: S301 - our own
    with pytest.raises(AttributeError):
        setattr(state, "kind", "held")  # noqa: B010 - mypy knows that it is frozen


def test_what_cannot_be_looked_at(memory, look):
    """A template of a name, as where it is taken."""
    with pytest.raises(ValueError, match="has braces"):
        look(redlock("report:{year}"))
    assert look(redlock("report:{year}").filled({"year": "{x}"})).name == "report:{x}"


def test_an_alias(look):
    """The nodes of the lock's alias are asked."""
    with in_memory("default", "payments"), redlocks["payments"]("x"):
        assert look(redlocks["payments"]("x")).held
        assert look(redlock.using("payments")("x")).held
        assert not look(redlock("x")).held

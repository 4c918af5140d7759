"""The connections to a node, where what a call interrupts, a signal handler, takes some as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from django_redlock.nodes.connection import Connection
from django_redlock.nodes.group import NodeGroup
from django_redlock.nodes.node import Node
from django_redlock.testing import EmbeddedNodes
from tests.faults.handlers import read_then_remove
from tests.support.loops import group_of, template, unguarded
from tests.support.sets import LONG, NONCE, connected, sets_of


@pytest.fixture(scope="module")
def three() -> Iterator[EmbeddedNodes]:
    """Three nodes, without the guard."""
    with unguarded(3) as nodes:
        yield nodes


@pytest.fixture
def group(three: EmbeddedNodes) -> Iterator[NodeGroup]:
    """A group with two idle connections to each node, in no set."""
    group = group_of(three.urls, LONG)
    connected(group)
    connected(group, more=True)
    sets_of(group).close()
    yield group
    group.close()


def once(function: Callable[..., object], errand: Callable[[], object]) -> Callable[..., object]:
    """Return the function, in whose first call something else happens at first."""
    errands = [errand]

    def interrupted(*args: object) -> object:
        if errands:
            errands.pop()()
        return function(*args)

    return interrupted


@pytest.mark.parametrize("broken", [False, True], ids=["well", "broken"])
def test_a_handler_takes_a_stalled_connection_while_it_is_read(group, broken, monkeypatch):
    """Both find that the node is back, and neither raises."""
    node, redlock = group.nodes[2], template(group)
    node._stalled.append(node._free.pop())
    if broken:
        monkeypatch.setattr(Node, "_read_stalled", read_then_remove)

    def locks() -> None:
        with redlock("handler") as lease:
            lease.extend()

    monkeypatch.setattr(Connection, "read", once(Connection.read, locks))
    try:
        assert node.is_back()
    except ValueError:
        assert broken
    else:
        assert not broken
        assert not node._stalled


@pytest.mark.parametrize("broken", [False, True], ids=["well", "broken"])
def test_a_handler_runs_an_event_loop_while_its_connections_are_looked_through(
    group, broken, monkeypatch
):
    """A set may not grow while it is looked through."""
    node = group.nodes[2]
    one, other = node._free

    def look(pool: Node, nonce: str, mine: Connection | None = None) -> Connection | None:
        every = set(pool.lent)
        monkeypatch.setattr(Connection, "owes", once(Connection.owes, lambda: every.add(other)))
        return next(
            (each for each in every if each is not mine and each.owes(nonce.encode())), None
        )

    if broken:
        monkeypatch.setattr(Node, "_lent_owing", look)
    node.check_out(one)
    monkeypatch.setattr(Connection, "owes", once(Connection.owes, lambda: node.check_out(other)))
    try:
        assert not node.has_unanswered(NONCE)
    except RuntimeError:
        assert broken
    else:
        assert not broken
        assert set(node.lent) == {one, other}
    for each in (one, other):
        node.check_in(each)

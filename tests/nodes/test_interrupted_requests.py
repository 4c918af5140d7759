"""What an interrupted request leaves: its undo, and no connection that nobody asks for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from django_redlock.core.quorum import all_heard
from django_redlock.nodes import background
from django_redlock.nodes.faults import CLOSED
from django_redlock.nodes.group import NodeGroup
from django_redlock.nodes.sets import ConnectionSet
from django_redlock.nodes.threads import PollDriver
from django_redlock.testing import EmbeddedNodes
from tests.simulation.mutants import Edit, with_edits
from tests.support.loops import group_of, keys_on
from tests.support.sets import LONG, connected, grant, release, sets_of
from tests.support.waiting import eventually

LAST = frozenset({2})
# A connection for each node, also where nothing is to be undone.
FOR_ALL = Edit(PollDriver, "_give_back", " and asking.is_unanswered(place)", "")
# Whatever the release is to undo, a node without a reply keeps the name.
FOR_NONE = Edit(PollDriver, "_give_back", "asking.keep_unanswered()", "pass")


class Interruption(Exception):  # noqa: N818 - it is one
    """What a signal handler raises."""


def interrupted(three: EmbeddedNodes, *, by_set: bool) -> NodeGroup:
    """Interrupt a release that has something to undo on one node, and was sent to all."""
    group = group_of(three.urls, LONG)
    group.ask(replace(grant(), to=LAST, decided=all_heard))
    connected(group)

    def interrupt(*_: object) -> bool:
        raise Interruption

    if not by_set:
        sets_of(group).close()
    owner = ConnectionSet if by_set else PollDriver
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, "listen", interrupt)
        with pytest.raises(Interruption):
            group.ask(replace(release(), touched=LAST))
    return group


@pytest.mark.parametrize("by_set", [True, False], ids=["a set", "no set"])
def test_an_interrupted_release_is_repeated_and_keeps_no_connection(three, by_set):
    """Not even to the nodes on which it had nothing to undo: no undo asks for that connection."""
    group = interrupted(three, by_set=by_set)
    assert [len(node.unanswered) for node in group.nodes] == [0, 0, 0]
    eventually(lambda: keys_on(three) == [[]] * 3)
    group.close()


@pytest.mark.parametrize("by_set", [True, False], ids=["a set", "no set"])
@pytest.mark.parametrize("edit", [FOR_ALL, FOR_NONE], ids=["for all", "for none"])
def test_a_connection_that_is_kept_for_nobody_is_noticed(three, edit, by_set):
    """To two nodes without the rule; to the third one, if the undo is not repeated."""
    with with_edits(edit):
        group = interrupted(three, by_set=by_set)
    kept = [len(node.unanswered) for node in group.nodes]
    assert kept == ([1, 1, 0] if edit is FOR_ALL else [0, 0, 1])
    group.close()


def test_a_try_whose_thread_was_never_started_keeps_no_call_from_trying(three, monkeypatch):
    """One call at a time tries a node in trouble: an interruption must not make that nobody."""
    group = group_of(three.urls, LONG)
    node = group.nodes[0]
    node.down_reason = node.unconnected

    def interrupt(*_: object) -> None:
        raise Interruption

    with monkeypatch.context() as patch:
        patch.setattr(background, "start_thread", interrupt)
        with pytest.raises(Interruption):
            node.open(0.0, urgent=False)
    attempt = node.open(0.0, urgent=False)
    assert attempt is not None
    eventually(attempt.done.is_set)
    assert attempt.connection is not None
    attempt.connection.close(CLOSED)
    group.close()

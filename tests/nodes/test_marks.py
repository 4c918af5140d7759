"""Marks over real connections, to nodes that are late, and removed behind themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

from django_redlock.core import completion
from django_redlock.core.commands import Mark
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Request, Vote
from django_redlock.core.quorum import NO, YES, with_majority
from django_redlock.core.reasons import ReasonCode
from django_redlock.nodes.group import NodeGroup
from django_redlock.nodes.link import Link
from django_redlock.testing import EmbeddedNodes
from tests.simulation.mutants import Edit, with_edits
from tests.support.links import (
    LONG,
    connected,
    generally,
    has_run,
    links_of,
    note_scripts,
    settled,
    threads_of,
)
from tests.support.loops import group_of, owing
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

POLICY = Policy(size=3)
KEY = completion.mark_key(POLICY, "app.send", ["name"])
NONCE = "0123456789abcdef" * 2


def mark(nonce: str = NONCE, task_id: str = "one") -> Request:
    """A mark as the algorithm asks for it."""
    decided = with_majority(completion.marked_or_not, 2)
    return Mark(nonce, decided, POLICY.marks, KEY, (), 60_000, "send", task_id)


def marked(nodes: EmbeddedNodes) -> list[bool]:
    """Which nodes have the mark."""
    return [bool(node.client().exists(KEY)) for node in nodes]


@pytest.mark.parametrize("way", [nullcontext, generally])
def test_marks_are_set_and_removed_either_way(three, way):
    """With the same votes; another message is told which one has the mark."""
    group = group_of(three.urls, LONG)
    requests = [
        mark(),
        mark("f" * 32, "two"),
        completion.unmark(POLICY, KEY, NONCE),
        completion.unmark(POLICY, KEY, NONCE),
    ]
    said = []
    for request in requests:
        connected(group)
        with way():
            votes = group.ask(request)
        said.append(Counter((vote.answer, vote.holder) for vote in votes).most_common(1)[0])
        eventually(lambda: owing(group.nodes) == [0] * 3)
    assert [each for each, _ in said] == [(YES, ""), (NO, "one"), (YES, ""), (NO, "")]
    assert all(count >= POLICY.majority for _, count in said)
    group.close()


def test_a_mark_leaves_the_link_to_the_next_request(three):
    """None of twenty publishers and runs goes the general way."""
    group = group_of(three.urls, LONG)
    for request in (mark(), completion.unmark(POLICY, KEY, NONCE)):
        group.ask(request)  # from here on the nodes have the scripts
        eventually(lambda: owing(group.nodes) == [0] * 3)
    link = connected(group)
    for number in range(20):
        nonce = f"{number:032x}"
        for request in (mark(nonce), completion.unmark(POLICY, KEY, nonce)):
            group.ask(request)
            eventually(lambda: settled(link))
            assert links_of(group) == [link]
    assert marked(three) == [False] * 3
    group.close()


@contextmanager
def late(three: EmbeddedNodes) -> Iterator[tuple[NodeGroup, Proxy]]:
    """A mark on its way to the third node."""
    with Proxy(three[2].port) as proxy:
        group = group_of([*three.urls[:2], proxy.url], LONG)
        connected(group)
        connected(group, more=True)
        proxy.holding = 1
        group.ask(mark())
        eventually(lambda: proxy.held == 1)
        yield group, proxy
        proxy.let_go()
        group.close()
        for node in three:
            node.client().flushdb()


def removed_behind(three: EmbeddedNodes, *, overtakes: bool = False) -> bool:
    """Remove a mark that is on its way to a node; whether it is removed there, too.

    Args:
        overtakes: whether the removal goes by any link, and is there first.
    """
    with late(three) as (group, proxy):
        note_scripts(three[2])
        if overtakes:
            threads_of(group).late.clear()
        group.ask(completion.unmark(POLICY, KEY, NONCE))
        if overtakes:
            eventually(lambda: has_run(three[2], NONCE))
        proxy.let_go()
        eventually(lambda: owing(group.nodes) == [0] * 3)
        return marked(three) == [False] * 3


def test_a_removal_goes_behind_its_mark(three):
    """A publisher that could not send removes its mark at once: also where it has not arrived."""
    assert removed_behind(three)


def test_a_removal_that_overtakes_its_mark_is_noticed(three):
    """The check can fail."""
    assert not removed_behind(three, overtakes=True)


def last_vote(three: EmbeddedNodes) -> Vote:
    """What the third node says to a mark; it replies once nobody else is waited for."""
    with Proxy(three[2].port) as proxy:
        group = group_of([*three.urls[:2], proxy.url], LONG)
        lent: Any = connected(group)
        poll = lent._poll_of

        def noting(places: tuple[int, ...]) -> Any:
            if places == (2,):
                proxy.let_go()
            return poll(places)

        lent._poll_of = noting
        proxy.holding = 1
        votes = group.ask(mark())
        proxy.let_go()
        group.close()
    for node in three:
        node.client().flushdb()
    return votes[2]


def test_a_mark_waits_for_a_majority_only(three, monkeypatch):
    """Unlike an undo, which waits a moment for prompt nodes."""
    monkeypatch.setattr("django_redlock.nodes.link.LEAST_LINGER", LONG)
    assert last_vote(three).code == ReasonCode.NOT_WAITED_FOR
    with with_edits(
        Edit(
            Link,
            "_hear_usual",
            "LEAST_LINGER if undoing else",
            "LEAST_LINGER if True else",
        )
    ):
        assert last_vote(three).answer is YES

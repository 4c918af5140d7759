"""Marks and completion records over real connections, to nodes that are late, and met by a copy."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import nullcontext
from typing import Any

import pytest

from django_redlock import LockTaken
from django_redlock.core import completion
from django_redlock.core.commands import Complete, Mark
from django_redlock.core.policy import Policy
from django_redlock.core.protocol import Request
from django_redlock.core.quorum import NO, YES, heard, with_majority
from django_redlock.core.reasons import ReasonCode
from django_redlock.testing import EmbeddedNodes
from tests.support.links import LONG, NONCE, TARGET, connected, generally, grant
from tests.support.loops import group_of, owing, template
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

POLICY = Policy(size=3)
KEY = completion.mark_key(POLICY, "app.send", ["name"])


def mark(nonce: str = NONCE, task_id: str = "one") -> Request:
    """A mark as the algorithm asks for it."""
    decided = with_majority(completion.marked_or_not, 2)
    return Mark(nonce, decided, POLICY.marks, KEY, (), 60_000, "send", task_id)


def complete() -> Request:
    """A completion record as the algorithm asks for it."""
    return Complete(NONCE, with_majority(heard, 2), TARGET, 60_000, lasts=60.0)


def recorded(nodes: EmbeddedNodes) -> bool:
    """Whether all nodes have the record."""
    return all(node.client().get("redlock:lock:name") == b"done::label" for node in nodes)


@pytest.fixture(autouse=True)
def emptied(three):
    """The nodes are as they were before."""
    yield
    for node in three:
        node.client().flushdb()


@pytest.mark.parametrize("way", [nullcontext, generally])
def test_marks_and_records_are_written_either_way(three, way):
    """With the same votes, on all nodes; another message is told which one has the mark."""
    group = group_of(three.urls, LONG)
    removal = completion.unmark(POLICY, KEY, NONCE)
    said = []
    for request in (
        mark(),
        mark("f" * 32, "two"),
        removal,
        removal,
        grant(),
        complete(),
        complete(),
    ):
        connected(group)
        with way():
            votes = group.ask(request)
        said.append(Counter((vote.answer, vote.holder) for vote in votes).most_common(1)[0])
        eventually(lambda: owing(group.nodes) == [0] * 3)
    answers = [(YES, ""), (NO, "one"), (YES, ""), (NO, ""), (YES, ""), (YES, ""), (NO, "")]
    assert [each for each, _ in said] == answers
    assert all(count >= POLICY.majority for _, count in said)
    assert recorded(three)
    group.close()


def test_a_mark_waits_for_a_majority_only(three, monkeypatch):
    """Unlike an undo, which waits a moment for prompt nodes: the last one would reply in it."""
    monkeypatch.setattr("django_redlock.nodes.link.LEAST_LINGER", LONG)
    with Proxy(three[2].port) as proxy:
        group = group_of([*three.urls[:2], proxy.url], LONG)
        lent: Any = connected(group)
        poll = lent._poll_of

        def noting(places: tuple[int, ...]) -> Any:
            if places == (2,):  # nobody else is waited for
                proxy.let_go()
            return poll(places)

        lent._poll_of = noting
        proxy.holding = 1
        votes = group.ask(mark())
        proxy.let_go()
        group.close()
    assert votes[2].code == ReasonCode.NOT_WAITED_FOR


def test_a_copy_waits_for_a_node_that_may_have_a_record(three):
    """A majority grants at once, and the last node knows better."""
    gone_on = threading.Event()
    with Proxy(three[2].port) as proxy:
        group = group_of([*three.urls[:2], proxy.url], LONG)
        three[2].client().set("redlock:lock:run", "done::x", px=60_000)
        connected(group)
        proxy.holding = 1

        def let_go() -> None:
            eventually(lambda: proxy.held == 1)
            gone_on.wait(0.3)  # seconds in which a copy that does not wait has gone on
            proxy.let_go()

        thread = threading.Thread(target=let_go)
        thread.start()
        try:
            with pytest.raises(LockTaken) as refused:
                template(group).using(thorough=True)("run").acquire().release()
        finally:
            gone_on.set()
            thread.join()
            group.close()
    assert refused.value.code == ReasonCode.RECORDED

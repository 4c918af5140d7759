"""Completion records over real connections, to nodes that are late, and met by a copy."""

from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest

from django_redlock import LockTaken
from django_redlock.core.commands import Complete
from django_redlock.core.protocol import Answer, Request
from django_redlock.core.quorum import heard, with_majority
from django_redlock.core.reasons import ReasonCode
from django_redlock.nodes.link import Link
from django_redlock.testing import EmbeddedNodes
from tests.simulation.mutants import Edit, with_edits
from tests.support.links import LONG, NONCE, TARGET, connected, generally, grant, overdue
from tests.support.loops import group_of, template
from tests.support.proxy import Proxy
from tests.support.waiting import eventually


def complete() -> Request:
    """A completion record as the algorithm asks for it."""
    return Complete(NONCE, with_majority(heard, 2), TARGET, 60_000, lasts=60.0)


def recorded(nodes: EmbeddedNodes) -> bool:
    """Whether all nodes have the record."""
    return all(node.client().get("redlock:lock:name") == b"done::label" for node in nodes)


@pytest.mark.parametrize("way", [nullcontext, generally])
def test_a_record_is_written_either_way(three, way):
    """It is on all nodes, and the link serves for the next request."""
    group = group_of(three.urls, LONG)
    connected(group)
    group.ask(grant())
    with way():
        votes = group.ask(complete())
    assert [vote.answer for vote in votes].count(Answer.YES) >= 2
    eventually(lambda: recorded(three))
    connected(group)
    votes = group.ask(complete())
    assert [vote.answer for vote in votes].count(Answer.NO) >= 2
    group.close()
    for node in three:
        node.client().flushdb()


def test_a_node_that_hangs_gets_the_record_later(three):
    """The record waits for the nodes that are prompt, and is on its way to the others."""
    group = group_of(three.urls, LONG)
    connected(group)
    group.ask(grant())
    overdue(group, 2, 0.5)
    three[2].pause()
    try:
        votes = group.ask(complete())
        assert [vote.answer for vote in votes] == [Answer.YES, Answer.YES, Answer.UNKNOWN]
    finally:
        three[2].resume()
    eventually(lambda: recorded(three))
    group.close()
    for node in three:
        node.client().flushdb()


def meet_a_late_record(three: EmbeddedNodes, moment: float = 0.3) -> str:
    """Ask for a name of which one node has a record, and is late; why it is refused, or "".

    Args:
        moment: seconds in which a copy that does not wait has gone on; then the record comes.
    """
    gone_on = threading.Event()
    with Proxy(three[2].port) as proxy:
        group = group_of([*three.urls[:2], proxy.url], LONG)
        three[2].client().set("redlock:lock:run", "done::x", px=60_000)
        connected(group)
        proxy.holding = 1

        def let_go() -> None:
            eventually(lambda: proxy.held == 1)
            gone_on.wait(moment)
            proxy.let_go()

        thread = threading.Thread(target=let_go)
        thread.start()
        try:
            lock = template(group).using(thorough=True)("run")
            lock.acquire().release()
        except LockTaken as taken:
            return taken.code
        finally:
            gone_on.set()
            thread.join()
            group.close()
            for node in three:
                node.client().flushdb()
    return ""


def test_a_copy_waits_for_a_node_that_may_have_a_record(three):
    """A majority grants at once, and the last node knows better."""
    assert meet_a_late_record(three) == ReasonCode.RECORDED


def test_a_copy_that_goes_the_usual_way_is_caught(three):
    """Broken: a majority is enough for a copy, as for any other grant."""
    with with_edits(Edit(Link, "_is_usual", "request.thorough or ", "")):
        assert meet_a_late_record(three, moment=LONG) == ""

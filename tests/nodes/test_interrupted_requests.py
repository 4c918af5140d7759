"""What an interrupted request leaves: its undo, and no link that nobody asks for."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from django_redlock.core.quorum import all_heard
from django_redlock.nodes import background
from django_redlock.nodes import threads as threads_module
from django_redlock.nodes.exchange import Exchange
from django_redlock.nodes.faults import CLOSED
from django_redlock.nodes.group import NodeGroup
from django_redlock.nodes.link import Link
from tests.support.links import LONG, connected, generally, grant, links_of, release, threads_of
from tests.support.loops import group_of, keys_on
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

WAYS = pytest.mark.parametrize("way", [nullcontext, generally])


class Interruption(Exception):  # noqa: N818 - it is one
    """What a signal handler raises."""


def interrupt(*_: object) -> None:
    """Interrupt the caller."""
    raise Interruption


def interrupted(group: NodeGroup, way: Any) -> None:
    """Interrupt a grant that was written to all nodes."""
    with pytest.MonkeyPatch.context() as patch, way():
        patch.setattr(Link, "_hear_usual" if way is nullcontext else "_listen", interrupt)
        with pytest.raises(Interruption):
            group.ask(grant())


@WAYS
def test_the_undo_goes_behind_the_interrupted_grant_and_the_link_ends(three, way):
    """The replies may be out of step: no other request gets one that is not its own."""
    with Proxy(three[2].port) as proxy:
        group = group_of([*three.urls[:2], proxy.url], LONG)
        link = connected(group)
        proxy.holding = 1
        interrupted(group, way)
        assert links_of(group) == []
        group.ask(release())
        assert link.connections == {}
        proxy.let_go()
        eventually(lambda: keys_on(three) == [[]] * 3)
        assert not threads_of(group).torn
        group.close()


@WAYS
def test_a_release_that_is_interrupted_twice_is_done_all_the_same(three, way):
    """Nobody asks a third time: a thread closes the link, and a new connection carries the undo."""
    group = group_of(three.urls, LONG)
    group.ask(replace(grant(), decided=all_heard))
    connected(group)
    with pytest.MonkeyPatch.context() as patch, way():
        patch.setattr(Link, "_hear_usual", interrupt)
        patch.setattr(Link, "_listen", interrupt)
        for _ in range(2):
            with pytest.raises(Interruption):
                group.ask(release())
    eventually(lambda: keys_on(three) == [[]] * 3)
    eventually(lambda: not threads_of(group).torn)
    group.close()


def test_an_undo_that_took_the_link_is_not_sent_once_more(three, monkeypatch):
    """The first one was interrupted, and the second one has undone everything."""
    kept: list[Exchange] = []

    def note(exchange: Exchange) -> None:
        kept.append(exchange)

    monkeypatch.setattr(Exchange, "keep_unanswered", note)
    group = group_of(three.urls, LONG)
    group.ask(replace(grant(), decided=all_heard))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Link, "_listen", interrupt)
        patch.setattr(Link, "_hear_usual", interrupt)
        with pytest.raises(Interruption):
            group.ask(release())
    group.ask(replace(release(), decided=all_heard))
    assert kept == []
    assert keys_on(three) == [[]] * 3
    group.close()


def test_a_link_for_an_undo_that_never_comes_is_closed(three, monkeypatch):
    """An interruption where nobody undoes costs connections for about a second, not for ever."""
    monkeypatch.setattr(threads_module, "LONGEST_TORN", 0.0)
    group = group_of(three.urls, LONG)
    link = connected(group)
    interrupted(group, nullcontext)
    eventually(lambda: not threads_of(group).torn and not link.connections)
    group.close()
    for node in three:
        node.client().flushdb()


def test_a_try_whose_thread_was_never_started_keeps_no_call_from_trying(three, monkeypatch):
    """One call at a time tries a node in trouble: an interruption must not make that nobody."""
    group = group_of(three.urls, LONG)
    node = group.nodes[0]
    node.down_reason = node.unconnected
    with monkeypatch.context() as patch:
        patch.setattr(background, "start_thread", interrupt)
        with pytest.raises(Interruption):
            node.open(0.0, urgent=False)
    attempt = node.open(0.0, urgent=False)
    assert attempt is not None
    eventually(attempt.done.is_set)
    connection = attempt.take()
    assert connection is not None
    connection.close(CLOSED)
    group.close()

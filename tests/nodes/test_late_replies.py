"""Links over which some replies are late: who may use them, and what becomes of them."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

from django_redlock import events
from django_redlock.core.protocol import Command
from django_redlock.core.reasons import ReasonCode
from django_redlock.leases.lease import Lease
from django_redlock.nodes import connection as connection_module
from django_redlock.nodes import link as link_module
from django_redlock.nodes.link import Link
from tests.support.links import LONG, Held, links_of, overdue, settled, threads_of
from tests.support.loops import group_of, in_links, keys_on, template
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

OVERDUE = 0.2  # seconds


@pytest.fixture
def general(monkeypatch) -> list[object]:
    """Gets the requests that go the general way."""
    found: list[object] = []
    listen = Link._listen

    def noting(link: Link, asking: Any) -> None:
        found.append(asking)
        listen(link, asking)

    monkeypatch.setattr(Link, "_listen", noting)
    return found


def locks(redlock: Any, count: int = 20) -> None:
    """Take so many locks, one after the other; prompt nodes are waited for, however long."""
    with patch.object(link_module, "LEAST_LINGER", LONG):
        for number in range(count):
            with redlock(f"meanwhile:{number}"):
                pass


def only_owing(held: Held) -> Link:
    """Dissolve all links but the one with the late reply."""
    threads = threads_of(held.group)
    while threads.idle:
        threads.idle.popitem()[1].dissolve()
    (link,) = threads.owing.values()
    return link


# -- a node that owes replies costs nothing -----------------------------------------------------


def test_locks_go_on_in_the_usual_way_while_a_node_owes_replies(held, general):
    """They are written to the node that is late, and wait for the others; nested ones, too."""
    link = only_owing(held)
    locks(held.redlock, 10)
    held.lease.release()
    locks(held.redlock, 10)
    assert general == []
    assert len(link.connections[2].owed) == 2 + 2 * 20
    assert held.all_free()


def test_who_watches_the_nodes_is_told_of_a_release_behind_a_late_grant(held, monkeypatch):
    """The watcher came between the two; the node that is late is not timed."""
    figures: list[events.NodeTiming] = []
    monkeypatch.setattr(events, "node_watchers", {figures.append: None})
    held.lease.release()
    assert {each.node for each in figures} >= {node.label for node in held.group.nodes[:2]}
    assert held.all_free()


def test_a_late_reply_that_is_another_is_settled(held, general):
    """The node refuses the grant: its name has gone to another client meanwhile."""
    link = only_owing(held)
    held.lease.release()
    held.nodes[2].client().set("redlock:lock:late", "foreign", px=60_000)
    held.proxy.let_go()
    eventually(lambda: settled(link))
    locks(held.redlock)
    assert general == []
    held.nodes[2].client().delete("redlock:lock:late")
    assert links_of(held.group) == [link]
    assert held.all_free()


def test_a_node_that_owes_more_than_a_backlog_is_left_out(held, general, monkeypatch):
    """Locks go on in the usual way, and nothing of theirs waits at that node, or stays there."""
    monkeypatch.setattr(connection_module, "BACKLOG", 2_000)
    monkeypatch.setattr(link_module, "BACKLOG", 2_000)
    link = only_owing(held)
    held.lease.release()
    locks(held.redlock)
    late = link.connections[2]
    owed = len(late.owed)
    with held.redlock("meanwhile") as lease:
        assert lease.grant.votes[2].code == ReasonCode.BACKLOG
    assert [each.command for each in late.owed][owed:] == [Command.RELEASE]  # undos have room
    assert general == []
    assert held.all_free()


# -- a node that never replies ------------------------------------------------------------------


def late_over(group: Any, proxy: Proxy, redlock: Any) -> Lease:
    """A lease with one grant on its way."""

    def has_a_link() -> object:
        with redlock("warm"):
            pass
        return in_links(group.nodes[2])

    eventually(has_a_link)
    proxy.holding = 1
    lease: Lease = redlock("late").acquire()
    eventually(lambda: proxy.held == 1)
    return lease


@pytest.mark.slow
def test_an_undo_that_gets_no_reply_is_sent_again(three):
    """No request follows; a thread finds the node silent, and a new connection carries it."""
    with Proxy(three[2].port) as proxy:
        group = group_of([*three.urls[:2], proxy.url], LONG)
        lease = late_over(group, proxy, template(group))
        overdue(group, 2, OVERDUE)
        lease.release()
        eventually(lambda: group.nodes[2].down_reason)
        three[2].client().set("redlock:lock:late", f"{lease.grant.nonce}:1:late", px=60_000)
        proxy.cut()
        proxy.heal()
        eventually(lambda: keys_on(three) == [[]] * 3)
        group.close()

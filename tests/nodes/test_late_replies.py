"""Sets of connections over which some replies are late: who may use them, and when they end."""

from __future__ import annotations

import threading
import time
from typing import Any
from unittest.mock import patch

import pytest

from django_redlock import events
from django_redlock.leases.lease import Lease
from django_redlock.nodes import sets as connection_set
from django_redlock.nodes import threads
from django_redlock.nodes.sets import ConnectionSet, ConnectionSets
from tests.simulation.mutants import Edit, with_edits
from tests.support.loops import group_of, in_sets, keys_on, owing, template
from tests.support.proxy import Proxy
from tests.support.sets import LONG, Held, is_whole, overdue, sets_of
from tests.support.waiting import eventually

OVERDUE = 0.2  # seconds
ONE_CONNECTION = 3  # what a set of three nodes has
HALF_OF_TTL = 15.0  # seconds: what is free by then was released


@pytest.fixture
def one_by_one(monkeypatch) -> list[object]:
    """Gets the requests that go the general way."""
    found: list[object] = []
    kind = threads.PollDriver

    def noting(*args: Any) -> Any:
        found.append(args[0])
        return kind(*args)

    monkeypatch.setattr(threads, "PollDriver", noting)
    return found


def locks(redlock: Any, count: int = 20) -> None:
    """Take so many locks, one after the other; prompt nodes are waited for, however long."""
    with patch.object(connection_set, "LEAST_LINGER", LONG):
        for number in range(count):
            with redlock(f"meanwhile:{number}"):
                pass


def only_owing(held: Held) -> ConnectionSet:
    """Dissolve all sets but the one with the late reply."""
    sets = sets_of(held.group)
    while sets._free:
        sets.dissolve(sets._free.pop())
    (lent,) = sets._owing.values()
    return lent


# -- a node that owes replies costs nothing -----------------------------------------------------


def test_locks_go_on_by_the_set_while_a_node_owes_replies(held, one_by_one):
    """They are written to the node that is late, and wait for the others."""
    lent = only_owing(held)
    held.lease.release()
    locks(held.redlock)
    assert one_by_one == []
    assert len(lent.connections[2].owed) == 2 + 2 * 20
    assert held.all_free()


def test_a_set_that_is_of_no_use_while_a_node_owes_replies_is_noticed(held, one_by_one):
    """The check can fail."""
    only_owing(held)
    never = Edit(ConnectionSets, "give", "request.command not in TAKING", "False")
    with with_edits(never):
        held.lease.release()
        locks(held.redlock)
    assert one_by_one
    assert held.all_free()


def test_the_set_goes_on_when_the_replies_have_come(held, one_by_one):
    """Each late reply was expected, and is no longer owed."""
    lent = only_owing(held)
    held.lease.release()
    locks(held.redlock)
    held.proxy.let_go()
    eventually(lambda: lent.is_well(LONG) and not lent.owing)
    with held.redlock("after") as lease:
        assert lease.fence > 0
    assert one_by_one == []
    sets = sets_of(held.group)
    assert lent in (*sets._free, *sets._owing.values())  # the last reply to "after" may be late
    assert held.all_free()


def test_who_watches_the_nodes_is_told_of_a_release_behind_a_late_grant(held, monkeypatch):
    """The watcher came between the two; the node that is late is not timed."""
    figures: list[events.NodeTiming] = []
    monkeypatch.setattr(events, "node_watchers", {figures.append: None})
    held.lease.release()
    assert {each.node for each in figures} >= {node.label for node in held.group.nodes[:2]}
    assert held.all_free()


def test_a_nested_lock_ends_a_set_that_owes_the_reply_to_a_grant(held):
    """The undo of that grant must come next on its connections."""
    lent = only_owing(held)
    locks(held.redlock, 3)
    assert not is_whole(lent)
    held.lease.release()
    assert held.all_free()


def test_a_late_reply_that_is_another_is_settled(held, one_by_one):
    """The node refuses the grant: its name has gone to another client meanwhile."""
    lent = only_owing(held)
    held.lease.release()
    held.nodes[2].client().set("redlock:lock:late", "foreign", px=60_000)
    held.proxy.let_go()
    eventually(lambda: lent.is_well(LONG) and not lent.owing)
    locks(held.redlock)
    assert one_by_one == []
    held.nodes[2].client().delete("redlock:lock:late")
    assert held.all_free()


def test_more_than_a_backlog_ends_the_set(held, one_by_one, monkeypatch):
    """The general way decides what a connection takes that owes much."""
    monkeypatch.setattr(connection_set, "BACKLOG", 2_000)
    lent = only_owing(held)
    held.lease.release()
    locks(held.redlock)
    assert one_by_one
    assert not is_whole(lent)
    assert held.all_free()


# -- a node that never replies ------------------------------------------------------------------


def late_over(group: Any, proxy: Proxy, redlock: Any) -> Lease:
    """A lease by a set, with one grant on its way."""

    def has_a_set() -> object:
        with redlock("warm"):
            pass
        return in_sets(group.nodes[2])

    eventually(has_a_set)
    proxy.holding = 1
    lease: Lease = redlock("late").acquire()
    eventually(lambda: proxy.held == 1)
    return lease


@pytest.mark.slow
def test_an_undo_that_gets_no_reply_is_sent_again(three):
    """No request follows; a thread ends the set, and another connection carries the release."""
    with Proxy(three[2].port) as proxy:
        group = group_of([*three.urls[:2], proxy.url], LONG)
        lease = late_over(group, proxy, template(group))
        overdue(group, 2, OVERDUE)
        lease.release()
        eventually(lambda: not sets_of(group)._owing)
        three[2].client().set("redlock:lock:late", f"{lease.grant.nonce}:1:late", px=60_000)
        proxy.cut()
        proxy.heal()
        eventually(lambda: keys_on(three) == [[]] * 3)
        group.close()


def test_a_set_that_nobody_attends_to_is_noticed(three, monkeypatch):
    """The check can fail: without the thread the set stays."""
    with Proxy(three[2].port) as proxy:
        group = group_of([*three.urls[:2], proxy.url], LONG)
        lease = late_over(group, proxy, template(group))
        offered: list[Any] = []
        threads_of_sets = sets_of(group).threads
        monkeypatch.setattr(threads_of_sets, "offer", lambda *args, **_: offered.append(args))
        lease.release()
        assert [args[0] for args in offered] == ["late"]
        assert sets_of(group)._owing
        proxy.let_go()
        eventually(lambda: keys_on(three) == [[]] * 3)
        group.close()


@pytest.mark.nightly
def test_many_threads_while_a_node_stops_and_goes_on(three):
    """Sets that owe replies serve all threads; no name stays taken, and no request fails."""
    group = group_of(three.urls, LONG)
    redlock, failures, over = template(group), [], threading.Event()

    def work(number: int) -> None:
        try:
            while not over.is_set():
                with redlock(f"of:{number}"), redlock(f"nested:{number}"):
                    pass
        except Exception as error:  # noqa: BLE001 - told below
            failures.append(error)

    workers = [threading.Thread(target=work, args=[number]) for number in range(8)]
    for each in workers:
        each.start()
    for _ in range(10):
        three.pause(2)
        time.sleep(0.03)
        three.resume(2)
        time.sleep(0.03)
    over.set()
    for each in workers:
        each.join()
    assert failures == []
    eventually(lambda: owing(group.nodes) == [0] * 3)
    eventually(lambda: keys_on(three) == [[]] * 3)
    group.close()

"""More threads than links, and a broken variant of a link that chance shows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_redlock.core.protocol import Vote
from django_redlock.nodes.exchange import Exchange
from django_redlock.nodes.link import Link
from tests.nodes.test_links import freed_with_a_waiter
from tests.simulation.mutants import Patch, with_edits
from tests.support.links import (
    LONG,
    links_of,
)
from tests.support.loops import group_of, keys_on, owing, template
from tests.support.waiting import eventually


def not_usual(read: Callable[..., Any]) -> Callable[..., Any]:
    """A node that has woken somebody is one for the general way."""

    def reading(link: Link, exchange: Exchange, missing: tuple[int, ...]) -> Any:
        found = read(link, exchange, missing)
        return None if any(vote and vote.woken for vote in exchange.votes) else found

    return reading


def not_counted(result: Callable[..., list[Vote]]) -> Callable[..., list[Vote]]:
    """Nobody was woken."""
    return lambda exchange: [vote._replace(woken=0) for vote in result(exchange)]


@pytest.mark.parametrize(
    "edit",
    [Patch(Link, "_read_usual", not_usual), Patch(Exchange, "result", not_counted)],
    ids=["not-usual", "not-counted"],
)
def test_a_release_that_forgets_whom_it_woke_is_noticed(three, edit):
    """The checks in ``tests/nodes/test_links.py`` can fail; by chance a reply comes before it."""
    right = freed_with_a_waiter(three, gone=False)
    with with_edits(edit):
        assert any(freed_with_a_waiter(three, gone=False) != right for _ in range(50))


def test_more_threads_than_links(three):
    """Each has connections for itself, and all names are free at the end."""
    group = group_of(three.urls, LONG)
    redlock, failures = template(group), []

    def locks(number: int) -> None:
        try:
            for turn in range(60):
                with redlock(f"thread:{number}:{turn % 7}"):
                    pass
        except Exception as error:  # noqa: BLE001 - told below
            failures.append(error)

    threads = [threading.Thread(target=locks, args=[number]) for number in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    connections = [each for link in links_of(group) for each in link.connections.values()]
    # Ten threads, and the one that attends to late replies: it takes a link while it looks at it,
    # and a thread that asks at that moment may find no other (``Threads._attend``).
    assert len(connections) == len(set(connections)) <= 3 * (10 + 1)
    eventually(lambda: owing(group.nodes) == [0] * 3)
    eventually(lambda: keys_on(three) == [[]] * 3)
    group.close()

"""What the question of a thread waits for: a majority, whichever nodes make it, and no longer."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple, TypeVar

import pytest

from django_redlock.core.protocol import Answer
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.exchange import Exchange
from django_redlock.testing import EmbeddedNodes
from tests.support.links import generally, links_of, settled
from tests.support.loops import group_of, idle, keys_on, owing, template, unguarded
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

select_poll = select.poll
STEP = 0.02  # seconds from one node's answer to the next one's, of the first three
LATE = 15.0  # seconds until the others', longer than any test is held up
T = TypeVar("T")


class Spread(NamedTuple):
    """Five nodes whose answers can be made to come one after the other."""

    nodes: EmbeddedNodes
    proxies: list[Proxy]
    redlock: LockTemplate

    @property
    def known(self) -> Any:
        """The nodes, as the process knows them."""
        group: Any = self.redlock._source("default").group
        return group.nodes

    def ranked(self, ranks: list[int], late: float = LATE) -> None:
        """Let the nodes answer in this order: 1 is the first; 0 is at once; 4 and 5 are late."""
        for proxy, rank in zip(self.proxies, ranks, strict=True):
            proxy.delay = late if rank > 3 else STEP * rank

    def settle(self) -> None:
        """Wait until all nodes are free, and all answers have arrived."""
        self.ranked([0] * 5)
        eventually(lambda: keys_on(self.nodes) == [[]] * 5)
        eventually(lambda: owing(self.known) == [0] * 5)

    @contextmanager
    def in_order(self, ranks: list[int]) -> Iterator[None]:
        """Let two nodes answer, and when it can be read, a third one; the others are late."""
        first, second, third = (ranks.index(rank) for rank in (1, 2, 3))
        poll = select_poll()
        for place in (first, second):
            poll.register(idle(self.known[place])[-1].fileno, select.POLLIN)
            self.proxies[place].delay = 0
        self.proxies[third].delay = LATE

        def go_on() -> None:
            eventually(lambda: len(poll.poll(0)) == 2)
            self.proxies[third].delay = 0

        thread = threading.Thread(target=go_on)
        thread.start()
        yield
        thread.join()


@pytest.fixture(scope="module")
def nodes() -> Iterator[EmbeddedNodes]:
    """Five nodes, without the guard."""
    with unguarded(5) as nodes:
        yield nodes


@pytest.fixture(params=["general", "usual"])
def spread(nodes: EmbeddedNodes, request: pytest.FixtureRequest) -> Iterator[Spread]:
    """The nodes, each behind a proxy, and a process that is connected to all."""
    with ExitStack() as stack:
        if request.param == "general":
            stack.enter_context(generally())
        proxies = [stack.enter_context(Proxy(node.port)) for node in nodes]
        redlock = template(group := group_of([proxy.url for proxy in proxies], 2 * LATE))
        with redlock("warm"):
            pass
        eventually(lambda: all(state.voting for state in group.states()))
        spread = Spread(nodes, proxies, redlock)
        spread.settle()
        if request.param == "usual":
            with redlock("link"):
                pass
            eventually(lambda: all(map(settled, links_of(group))))
        yield spread
        spread.settle()


def heard_to_acquire(spread: Spread, ranks: list[int], late: float = LATE) -> tuple[int, float]:
    """How many answers it takes when the nodes answer in this order, and how long."""
    spread.ranked(ranks, late)
    start = time.monotonic()
    lease = spread.redlock("ranked").acquire()
    took = time.monotonic() - start
    spread.ranked([0] * 5)
    lease.release()
    return sum(vote.answer is Answer.YES for vote in lease.grant.votes), took


def as_written(spread: Spread, ranks: list[T]) -> list[T]:
    """What is said in the order in which the nodes are written to, in the order of the nodes."""
    first = spread.redlock._source("default").policy.target(["ranked"]).queue_nodes[0]
    return ranks[-first:] + ranks[:-first]


@pytest.mark.parametrize("ranks", [[1, 2, 3, 4, 5], [5, 4, 3, 2, 1], [3, 5, 1, 4, 2]], ids=str)
def test_the_third_of_five_answers_ends_the_waiting(spread, ranks):
    """In whatever order the nodes answer: not before it, and not with the fourth."""
    heard, took = heard_to_acquire(spread, ranks)
    assert heard == 3
    assert took >= 3 * STEP


@pytest.mark.parametrize("spread", ["general"], indirect=True)
def test_a_thread_sleeps_once_for_a_majority_and_once_for_the_rest(spread, monkeypatch):
    """Nodes that answer one after the other do not wake it each; that would cost the more."""
    slept = []
    sleeper = threading.current_thread()

    class Counting:
        def __init__(self) -> None:
            self._poll: Any = select_poll()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._poll, name)

        def poll(self, milliseconds: float) -> Any:
            slept.append(milliseconds > 0 and threading.current_thread() is sleeper)
            return self._poll.poll(milliseconds)

    ranks = as_written(spread, [1, 2, 3, 4, 5])
    spread.ranked(ranks)
    monkeypatch.setattr(select, "poll", Counting)
    with spread.in_order(ranks):
        lease = spread.redlock("ranked").acquire()
    to_acquire = sum(slept)
    with spread.in_order(ranks):
        lease.release()
    # One more for the two that still owe their answers to the grant.
    assert (to_acquire, sum(slept)) == (1, 3)


def test_a_release_waits_for_the_prompt_not_for_who_hangs_beside_them(spread, monkeypatch):
    """Also if the one that hangs was written to last: it ends with the last prompt answer."""
    lease = spread.redlock("ranked").acquire()
    spread.ranked(as_written(spread, [0, 0, 0, 0, 5]), late=4 * LATE)
    with spread.redlock("owed"):  # from now on the last one owes an answer
        pass
    eventually(lambda: owing(spread.known) == as_written(spread, [0, 0, 0, 0, 1]))
    for proxy, seconds in zip(
        spread.proxies, as_written(spread, [0.05, 0.1, 0.15, 0.2, 4 * LATE]), strict=True
    ):
        proxy.delay = seconds
    # Whom it waits for, not for how long: a prompt node may be held up, too.
    monkeypatch.setattr(Exchange, "linger", lambda *_: 4 * LATE)
    start, thread = time.monotonic(), threading.Thread(target=lease.release)
    thread.start()
    eventually(lambda: not thread.is_alive(), within=LATE)
    assert time.monotonic() - start >= 0.2
    assert owing(spread.known) == as_written(spread, [0, 0, 0, 0, 1])

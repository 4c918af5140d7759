"""What the question of a thread waits for: a majority, whichever nodes make it, and no longer."""

from __future__ import annotations

import random
import select
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from django_redlock.locks import LockTemplate
from django_redlock.rounds import Round
from django_redlock.testing import EmbeddedNodes

from .loops import group_of, keys_on, template
from .proxy import Proxy
from .waiting import eventually
from .worlds.mutants import Edit, Mutant, broken

STEP = 0.1  # seconds from one node's answer to the next one's


class Spread(NamedTuple):
    """Five nodes whose answers can be made to come one after the other."""

    nodes: EmbeddedNodes
    proxies: list[Proxy]
    redlock: LockTemplate

    def ranked(self, ranks: list[int]) -> None:
        """Let the nodes answer in this order: 1 is the first; 0 is at once."""
        for proxy, rank in zip(self.proxies, ranks, strict=True):
            proxy.delay = STEP * rank


@pytest.fixture(scope="module")
def nodes() -> Iterator[EmbeddedNodes]:
    """Five nodes, without the guard."""
    with EmbeddedNodes(5) as nodes:
        nodes.settings(RESTART_GUARD=False)
        yield nodes


@pytest.fixture
def spread(nodes: EmbeddedNodes) -> Iterator[Spread]:
    """The nodes, each behind a proxy, and a process that is connected to all."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(node.port)) for node in nodes]
        redlock = template(group := group_of([proxy.url for proxy in proxies], 5))
        with redlock("warm"):
            pass
        eventually(lambda: all(state.voting for state in group.states()))
        spread = Spread(nodes, proxies, redlock)
        yield spread
        spread.ranked([0] * 5)
        eventually(lambda: keys_on(nodes) == [[]] * 5)


def seconds_to_acquire(spread: Spread, ranks: list[int]) -> float:
    """How long it takes when the nodes answer in this order."""
    spread.ranked(ranks)
    start = time.monotonic()
    lease = spread.redlock("ranked").acquire()
    took = time.monotonic() - start
    spread.ranked([0] * 5)
    lease.release()
    eventually(lambda: keys_on(spread.nodes) == [[]] * 5)
    return took


@pytest.mark.parametrize("seed", range(4))
def test_the_third_of_five_answers_ends_the_waiting(spread, seed):
    """In whatever order the nodes answer: not before it, and not with the fourth."""
    ranks = [[1, 2, 3, 4, 5], [5, 4, 3, 2, 1]][seed] if seed < 2 else [1, 2, 3, 4, 5]
    if seed >= 2:
        random.Random(seed).shuffle(ranks)
    assert 3 * STEP <= seconds_to_acquire(spread, ranks) < 4 * STEP


def test_sleeping_for_too_few_nodes_is_noticed(spread):
    """The check above fails if one of the nodes that may make the majority is left out."""
    edit = Edit(Round, "_ready", "max(0, needed - 1)", "max(0, needed)")
    with broken(Mutant("", "", "", 0, (edit,))):
        slowest = max(
            seconds_to_acquire(spread, [*range(turn, 6), *range(1, turn)]) for turn in range(1, 6)
        )
    assert slowest >= 4 * STEP


def test_a_thread_sleeps_once_for_a_majority_and_once_for_the_rest(spread, monkeypatch):
    """Nodes that answer one after the other do not wake it each; that would cost the more."""
    slept = []

    class Counting:
        def __init__(self) -> None:
            self._poll: Any = select_poll()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._poll, name)

        def poll(self, milliseconds: float) -> Any:
            start = time.monotonic()
            ready = self._poll.poll(milliseconds)
            slept.append(time.monotonic() - start >= STEP / 2)
            return ready

    select_poll = select.poll
    order = spread.redlock("ranked")._source("default").policy.target(["ranked"]).queue_place(5)
    ranks = [1, 2, 3, 4, 5]  # in the order in which they are written to
    spread.ranked(ranks[-order:] + ranks[:-order])
    monkeypatch.setattr(select, "poll", Counting)
    lease = spread.redlock("ranked").acquire()
    assert sum(slept) == 1
    slept.clear()
    lease.release()
    assert sum(slept) <= 3  # the answers to the grant that were not waited for come first

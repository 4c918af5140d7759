"""When refused messages come back, in a hundred plays of many."""

from __future__ import annotations

import heapq
import random

from django_redlock.work import backoff as shared_backoff


def play(seed: int, *, for_slot: bool) -> tuple[float, float]:
    """Forty runs of 3 s, two at a time, by four workers, in time that is only counted.

    Returns the time that they take, where 1 is ideal, and how often each was delivered.
    """
    random.seed(seed)
    queue = [(0.0, number, 0) for number in range(40)]  # when, which, and how often it came back
    workers, slots, deliveries = [0.0] * 4, [0.0] * 2, 0
    while queue:
        free = heapq.heappop(workers)
        at, number, times = heapq.heappop(queue)
        at, deliveries = max(at, free), deliveries + 1
        if slots[0] <= at:
            heapq.heapreplace(slots, at + 3.0)
            free = at + 3.0
        else:
            free = at + 0.05
            later = free + shared_backoff.pause(times, for_slot=for_slot)
            heapq.heappush(queue, (later, number, times + 1))
        heapq.heappush(workers, free)
    return max(slots) / 60.0, deliveries / 40.0


def test_the_pause_for_a_slot_uses_the_limit():
    """A hundred plays: none takes longer by more than a quarter, or ten deliveries of a message.

    Broken: a pause that grows to a minute takes twice as long.
    """
    plays = [play(seed, for_slot=True) for seed in range(100)]
    assert sum(took > 1.25 for took, _ in plays) <= 2
    assert max(deliveries for _, deliveries in plays) <= 10
    growing = [play(seed, for_slot=False)[0] for seed in range(100)]
    assert sum(growing) / 100 > 2

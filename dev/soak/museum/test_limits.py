"""How many get in where each server admits up to k: what the room says, and all that may happen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, combinations_with_replacement

import pytest

from dev.museum.rooms.counter import majority, most, schedule

SIZES = [
    (servers, quorum, limit)
    for servers in range(1, 8)
    for quorum in range(1, servers + 1)
    for limit in range(1, 6)
]
SMALL = [  # enough to look at all plays of many clients
    (servers, quorum, limit)
    for servers, quorum, limit in SIZES
    if servers <= 4 and quorum >= majority(servers) and limit <= 3
]


def plays(servers: int, limit: int, clients: int) -> Iterator[Sequence[Sequence[int]]]:
    """Whom the servers admit: each the ``limit`` clients of which it has heard first.

    Servers are alike, so which one it is that admits these does not matter.
    """
    admitted = combinations(range(clients), limit)
    return combinations_with_replacement(tuple(admitted), servers)


def can_all_enter(servers: int, quorum: int, limit: int, clients: int) -> bool:
    """Whether all of these clients have a quorum in some play: all plays are looked at."""
    return any(
        all(sum(client in some for some in admitted) >= quorum for client in range(clients))
        for admitted in plays(servers, limit, clients)
    )


@pytest.mark.parametrize(("servers", "quorum", "limit"), SIZES)
def test_k_is_kept_only_if_k_and_one_more_quorums_need_more_votes_than_there_are(
    servers, quorum, limit
):
    """No play lets k + 1 in where the formula says so, and some play does where it does not."""
    is_kept = (limit + 1) * quorum > limit * servers
    assert can_all_enter(servers, quorum, limit, limit + 1) == (not is_kept)


@pytest.mark.parametrize(("servers", "quorum", "limit"), SMALL)
def test_as_many_get_in_as_the_room_says_and_no_more(servers, quorum, limit):
    """So many get in in some play, and one more in none."""
    clients = most(servers, quorum, limit)
    assert can_all_enter(servers, quorum, limit, clients)
    assert not can_all_enter(servers, quorum, limit, clients + 1)


@pytest.mark.parametrize(
    ("servers", "limit", "clients"),
    [(3, 1, 1), (2, 2, 2), (3, 2, 3), (5, 2, 3), (5, 5, 8), (5, 10, 16), (10, 10, 16)],
)
def test_the_schedule_lets_so_many_in(servers, limit, clients):
    """Each has a majority, and no server admits more than it may; three servers are the fewest."""
    admitted = schedule(servers, majority(servers), limit)
    assert len(admitted) == clients
    assert all(len(each) == majority(servers) for each in admitted)
    assert all(sum(index in each for each in admitted) <= limit for index in range(servers))

"""A node with failover, searched exhaustively; each rule, broken on purpose, is found out."""

from __future__ import annotations

import pytest

from .failover_model import GUARD, TTL, Failing
from .heal_model import search


def test_a_promoted_replica_lets_no_second_holder_in():
    """The search has every lag of the replica, two failovers, and every order of clients."""
    _, way, states = search(Failing())
    assert way == ()
    assert states > 20_000  # the search goes somewhere


@pytest.mark.parametrize(
    "rules",
    [
        Failing(notices=False),
        Failing(by_id=False),
        Failing(anew=False),
        Failing(guards=False),
        Failing(forgets=TTL - 1),
    ],
    ids=["a copied mark", "noted for ever", "its master's guard", "a short guard", "forgets soon"],
)
def test_each_broken_rule_is_found_out(rules):
    """Without one of these there are two holders."""
    assert search(rules)[0] == "two holders"
    assert TTL < GUARD

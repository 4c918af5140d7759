"""A node with failover, searched exhaustively; each rule, broken on purpose, is found out."""

from __future__ import annotations

import pytest

from .failover import GUARD, TTL, Failing, Remembering
from .heal import search


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


# -- connections that stay open -------------------------------------------------------------------


@pytest.mark.parametrize("failover", [True, False])
@pytest.mark.parametrize("looks", ["history", "id"])
def test_a_server_that_came_and_went_lets_no_second_holder_in(failover, looks):
    """Each grant looks at its history; a renewal need not, for it finds its own key or none."""
    for at_renewals in (False, True):
        rules = Remembering(failover, looks, at_renewals, promotions=2)
        _, way, states = search(rules)
        assert way == ()
        assert states > (4_000 if failover else 300)


def test_three_failovers_let_no_second_holder_in():
    """A server is promoted a second time, and so is no stranger to its history."""
    _, way, states = search(Remembering(promotions=3))
    assert way == ()
    assert states > 20_000


FLAP = ("B is promoted", "client 0 takes", "A becomes a replica", "A is in step", "A is promoted")


@pytest.mark.parametrize("failover", [True, False])
@pytest.mark.parametrize("looks", ["nothing", "role", "refusals"])
def test_a_look_at_the_handshake_is_too_few(failover, looks):
    """A client that asks nothing meanwhile, and was refused nothing, has the old connection."""
    found, way, _ = search(Remembering(failover, looks))
    assert (found, way) == ("two holders", (*FLAP, "client 1 takes"))


@pytest.mark.parametrize("rule", ["notices", "by_id", "anew", "guards"])
def test_each_broken_rule_of_a_new_connection_is_found_out(rule):
    """Looking at each grant is no help where a new connection is admitted too soon."""
    assert search(Remembering(admits=Failing(**{rule: False})))[0] == "two holders"

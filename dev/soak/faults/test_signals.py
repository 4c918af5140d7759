"""A storm of signal handlers that raise: what it leaves of a lock."""

from __future__ import annotations

import pytest

from dev.soak import verdict
from dev.soak.faults.signals import (
    Wanted,
    play,
    played,
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("body", [0.0, 0.03])
def test_a_storm_of_signals_is_within_the_contract(body):
    """Never two believers, no hang; fences rise; a name stays taken in 1 % of plays at most."""
    found = play(Wanted(200, 2, body))
    assert (found["plays"], found["problems"]) == (200, [])
    if few := verdict.missing(*played(found, 200)):
        pytest.skip(verdict.TOO_LITTLE + few)


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("variant", "problem"),
    [("careless", "names stayed taken too often"), ("early", "two believed at a time")],
)
def test_the_storm_catches(variant, problem):
    """Steps that are not told of the interruption, and a lease that ends before its body."""
    assert problem in play(Wanted(60, 3, 0.03 * (variant == "early"), variant))["problems"]

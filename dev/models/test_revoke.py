"""Taking a lock away, searched exhaustively; each rule, broken on purpose, is found out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from .heal import search
from .revoke import Revoking

WITHOUT_RIVAL = Revoking(rivals=False, rounds=2)


@pytest.mark.parametrize(
    ("rules", "least"),
    [
        (Revoking(rounds=0), 2_000),
        pytest.param(Revoking(), 300_000, marks=pytest.mark.nightly),
        (WITHOUT_RIVAL, 50_000),
    ],
    ids=["a rival", "a rival and a renewal", "two renewals"],
)
def test_there_is_no_second_believer_and_success_ends_the_lease(rules, least):
    """Nor is anything taken from the next holder; and no renewal begun later prolongs the lease."""
    _, way, states = search(rules)
    assert way == ()
    assert states > least  # the search goes somewhere


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        (Revoking(deletes=True), "two holders"),
        (Revoking(by_name=True), "the next holder's"),
        (replace(WITHOUT_RIVAL, revives=True), "prolonged after success"),
        (replace(WITHOUT_RIVAL, heals=True), "prolonged after success"),
        (replace(WITHOUT_RIVAL, enough=1), "prolonged after success"),
        (replace(WITHOUT_RIVAL, lasts=False), "prolonged after success"),
    ],
    ids=["deletes", "by name", "an extension revives", "a heal revives", "a minority", "marks end"],
)
def test_each_broken_rule_is_found_out(rules, found):
    """A revoke without one of these breaks a promise."""
    assert search(rules, found)[0] == found

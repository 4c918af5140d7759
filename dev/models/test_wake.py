"""What one nonce may do, searched exhaustively; each rule, broken on purpose, is found out."""

from __future__ import annotations

import pytest

from .heal import search
from .wake import DESTROYED, OPENED, SHORT, STAYS, TWO, Waking

ALONE = Waking(adopters=0)  # nobody adopts what is given away
RESTS = Waking(adopters=0, rests=True)
REVOKED = Waking(adopters=0, revokes=1)
OPENS_NOTHING = Waking(adopters=0, rollback_wakes="always", opens="nothing")


@pytest.mark.parametrize(
    ("rules", "least"),
    [
        (ALONE, 5_000),
        (Waking(waiters=0), 2_000),
        (RESTS, 5_000),
        (RESTS._replace(waiters=0, revokes=1), 5_000),
        pytest.param(Waking(), 40_000, marks=pytest.mark.slow),
    ],
    ids=["a waiter", "an adopter", "min_hold", "min_hold and a revoke", "a waiter and an adopter"],
)
def test_a_nonce_opens_nothing_that_lives(rules, least):
    """Nobody believes beside another, no handle is opened or destroyed, and no name stays taken."""
    _, way, states = search(rules)
    assert way == ()
    assert states > least  # the search goes somewhere


def differs(rules: Waking) -> str:
    """Return what these rules have that is not the default."""
    ours = Waking()._asdict()
    return ", ".join(
        f"{key} {value}" for key, value in rules._asdict().items() if value != ours[key]
    )


@pytest.mark.nightly
@pytest.mark.parametrize(
    "rules",
    [
        Waking(wide=True),
        Waking(revokes=1, heals=0),
        Waking(revokes=1, heals=0, now=True),
        REVOKED._replace(now=True),
        Waking(waiters=0, revokes=1, rests=True),
        Waking(waiters=0, restarts=1),
        RESTS._replace(revokes=1),
        ALONE._replace(restarts=1),
        ALONE._replace(heals=2),
        ALONE._replace(looks=True, wide=True),
        ALONE._replace(waiters=2),
        Waking(waiters=0, adopters=2),
    ],
    ids=differs,
)
def test_a_nonce_opens_nothing_that_lives_in_larger_cases(rules):
    """Nor with restarts, revokes, looks, two waiters or two adopters beside each other."""
    assert search(rules)[1] == ()


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        (ALONE._replace(rollback_wakes="always"), OPENED),
        (ALONE._replace(rollback_wakes="kept"), OPENED),
        (OPENS_NOTHING._replace(passes_by_release=True), DESTROYED),
        (REVOKED._replace(now=True, now_wakes_by_own=False), OPENED),
        (Waking(revokes=1, now=True, opens="adopted"), DESTROYED),
        (REVOKED._replace(mark_deletes=True, looks=True), TWO),
        (RESTS._replace(rest_wakes=True), SHORT),
        (RESTS._replace(waiters=0, revokes=1, rest_knows_mark=False), STAYS),
        (Waking(waiters=0, adopters=2, swaps=False), TWO),
        (Waking(waiters=0, returns=False), DESTROYED),
    ],
    ids=[
        "an undone heal wakes",
        "an undo that was kept wakes",
        "passing on deletes",
        "a revoke now wakes with the holder's nonce",
        "a wake-up opens what was adopted",
        "a revoke deletes",
        "a rest wakes",
        "a rest leaves what was revoked",
        "an adoption leaves the nonce",
        "an adopter that fails deletes",
    ],
)
def test_each_broken_rule_is_found_out(rules, found):
    """With one of these a promise is broken."""
    assert search(rules, found)[0] == found


def test_passing_on_deletes_only_where_a_living_nonce_was_pushed():
    """The second net: with our undo no list has the nonce of what lives, and a deletion finds none.

    Where an undone heal wakes, a wake-up that opens nothing does no harm either, until a waiter
    passes it on by a command that deletes.
    """
    assert search(OPENS_NOTHING)[0] == ""
    assert search(ALONE._replace(passes_by_release=True))[0] == ""

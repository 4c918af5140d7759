"""The soak of idempotent endpoints in small."""

from __future__ import annotations

from collections import Counter

import pytest

from dev.soak.idempotency import rules
from dev.soak.idempotency.rig import Play, perform
from dev.soak.idempotency.rules import figures, judge

MOST = 6  # plays, until all has happened that is to be survived

SURVIVED = ("broken connections", "workers killed", "in the view", "replays")


@pytest.mark.parametrize("nodes_down", [False, True])
def test_every_key_has_one_order(nodes_down, tmp_path):
    """The soak ``idempotency`` with fewer clients: also where no node is there."""
    happened: Counter[str] = Counter()
    for number in range(MOST):  # by chance no kill may strike a view
        play = Play(clients=20, kill=0.3, nodes_down=nodes_down)
        history = perform(play, tmp_path / str(number))
        assert judge(history) == []
        happened.update(figures(history))
        if all(happened[what] for what in SURVIVED):
            break
    assert all(happened[what] for what in SURVIVED), happened


def test_a_lock_without_a_record_is_caught(tmp_path):
    """Broken: a client that repeats what was answered makes a second order."""
    history = perform(Play("single-flight", clients=10, kill=0.5), tmp_path)
    assert {each.rule for each in judge(history)} >= {rules.SEVERAL, rules.DIFFERENT, rules.AGAIN}
    seen = figures(history)
    assert seen["keys with more than one order"] == seen["keys with different answers"] == 10

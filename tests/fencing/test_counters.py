"""The soak of counters in small: real processes that are stopped and killed at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count

import pytest

from dev.soak.fencing.counters import Outcome, Play, perform
from django_redlock.testing import EmbeddedNodes
from tests.support.databases import SQLITE

Played = Callable[[Play], Outcome]


@pytest.fixture
def played(databases, tmp_path, django_db_blocker, request) -> Iterator[Played]:
    """Play it on a database."""
    with EmbeddedNodes(3) as nodes, django_db_blocker.unblock():
        settings, number = databases(request.node.callspec.params["kind"]), count()

        def play(play: Play) -> Outcome:
            folder = tmp_path / str(next(number))
            folder.mkdir()
            return perform(play, settings, nodes, folder)

        yield play


@pytest.mark.slow
@pytest.mark.parametrize("kind", [SQLITE])
def test_no_addition_is_lost_in_one_play(played, kind):
    """Each counter is what the ledger says, although processes were stopped, and some killed."""
    seen, wrong = played(Play(additions=30, counters=4, hot=2, processes=3, ttl=0.5))
    assert wrong == []
    assert seen["sum"] == seen["additions"] >= 30
    assert seen["stops"]

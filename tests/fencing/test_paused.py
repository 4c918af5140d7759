"""A worker that slept past its lease: what its write does to that of its successor."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dev.soak import verdict
from dev.soak.fencing.paused import COMPARED, FENCED, PLAIN, TTL, Play, Round
from django_redlock.testing import EmbeddedNodes
from tests.support.databases import KINDS, MARIADB, POSTGRESQL, Settings, connected

from . import outside, tables
from .tables import Counter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
FEW = 2  # rounds: the paused holder writes first in the one, and last in the other
LONGER_TTL = 0.5  # seconds, so that a busy machine need not play a round again
MANY = pytest.param((100, TTL), marks=pytest.mark.nightly, id="many")

Played = Callable[..., list[Round]]


@pytest.fixture(scope="module")
def nodes() -> Iterator[EmbeddedNodes]:
    """Three nodes of their own."""
    with EmbeddedNodes(3) as nodes:
        yield nodes


@pytest.fixture(params=KINDS)
def kind(request) -> str:
    """A kind of database."""
    found: str = request.param
    return found


@pytest.fixture
def settings(kind, databases) -> Settings:
    """The database."""
    found: Settings = databases(kind)
    return found


@pytest.fixture(params=[pytest.param((FEW, LONGER_TTL), id="few"), MANY])
def play(request, settings, nodes, tmp_path, django_db_blocker) -> Iterator[Played]:
    """Play rounds with two holders, which are processes; a few, or at night many and quickly."""
    count, ttl = request.param
    env = outside.environment(settings, nodes.settings(RESTART_GUARD=False, TTL=ttl))
    with django_db_blocker.unblock(), connected(settings, "paused") as alias:
        tables.create(alias)
        rows, few = Counter.objects.using(alias), list[str]()

        def rounds(way: str, *, atomic: bool = False) -> list[Round]:
            found = Play(
                holders,
                lambda: rows.create().pk,
                lambda key: rows.get(pk=key).value,
                way,
                atomic,
            ).rounds(count)
            few.append(verdict.missing(verdict.Played(len(found), count, "rounds")))
            assert count > FEW or not few[-1], few
            return found

        try:
            with outside.started(2, "dev.soak.fencing.paused", env, tmp_path) as holders:
                yield rounds
            if any(few):  # what there was has been judged
                pytest.skip(verdict.TOO_LITTLE + next(filter(None, few)))
        finally:
            tables.drop(alias)


def test_no_update_is_lost_with_a_fence(play):
    """Whichever of the two writes first, one is refused and knows it."""
    assert {(each.writes, each.value) for each in play(FENCED)} == {(1, 1)}


@pytest.mark.parametrize("way", [PLAIN, COMPARED])
def test_updates_are_lost_without_a_claim(play, way):
    """The check can fail: by a lock alone, and by a fence that is only compared when writing."""
    found = play(way)
    lost = sum(each.lost for each in found)
    assert lost == (len(found) if way == PLAIN else len(found) // 2)


def test_a_successor_waits_for_the_transaction_of_a_paused_holder(play):
    """It claims after the COMMIT, and reads what that wrote: both writes count."""
    assert set(play(FENCED, atomic=True)) == {Round(writes=2, value=2, waited=True)}


@pytest.mark.parametrize("kind", [POSTGRESQL, MARIADB])
def test_a_transaction_alone_waits_for_nobody_and_loses_updates(play):
    """The check can fail."""
    assert {(each.lost, each.waited) for each in play(PLAIN, atomic=True)} == {(1, False)}

"""What the cells of the museum must show: each lock breaks, or holds, as the page says."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from benchmarks.peers.environments import has_node
from museum.cells import CELLS, EXHIBITS, Cell, others, ours, redlocks
from museum.checker import Break
from museum.exhibits import Exhibit
from museum.play import play
from museum.runs import holders, late, servers
from tests.support.replays import note_broken

pytestmark = pytest.mark.nightly

BY_KEY = {cell.key: cell for cell in CELLS}
PLAYED = [
    "setnx-getset/overwritten",
    "set-compare/failover",
    "set-compare/failover-lagging",
    "pull-mode/overtaken",
    "pubsub-ttl/killed-subscription",
    "redisson-watchdog/one-by-one",
    "redisson-redlock/stopped-acquiring",
    "redlock-one-value/release-on-its-way",
    "redlock-stops/restarted-one",
    "redlock-answers/split",
    "redlock-fence/writes-between",
    "redlock/failover-lagging",
    "redlock/server-clock",
    "django-redlock/failover-lagging",
    "django-redlock/release-on-its-way",
    "django-redlock/server-clock-seen",
    "django-redlock-fenced/server-clock",
    "django-redlock-renewed/hangs",
]
WRONG = [
    redlocks.FROM_THE_END,
    redlocks.ONE_VALUE,
    redlocks.NO_GUARD,
    redlocks.ANSWERS,
    redlocks.STOPS,
    redlocks.ON_WRITES,
]
TURNS = [cell for cell in others.CELLS if cell.run is holders.TURNS]
TELLING = (  # beside it another library's, or the same one's, that does not break
    ("redlock-py/clock-set-right", "pottery/clock-set-right"),
    ("node-redlock-5/stopped-acquiring", "node-redlock-4/stopped-acquiring"),
    ("redlock-py/down", "redlock-ng/down"),
    ("redis-py/paused", "redis-py/killed"),
    ("fencekit/stopped-acquiring", "fencekit/paused"),
    ("django-redis/emptied", "django-redis/turns"),
    ("python-redis-lock/woken", "python-redis-lock/crowd"),
)


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.key)
def test_each_lock_works_and_breaks(exhibit):
    """Each has a cell in which it holds, and each a cell in which it breaks, but for ours."""
    cells = [each for each in CELLS if each.exhibit is exhibit]
    assert any(not each.breaks for each in cells)
    assert any(each.breaks for each in cells) or exhibit.key.startswith("django-redlock")


@pytest.mark.parametrize("exhibit", WRONG, ids=lambda exhibit: exhibit.key)
def test_what_breaks_a_wrong_redlock_does_not_break_ours(exhibit):
    """Each works in turns and in a crowd, and the run that breaks it is played against ours."""
    cells = [cell for cell in redlocks.CELLS if cell.exhibit == exhibit]
    works = {cell.run.key for cell in cells if not cell.breaks}
    assert {"turns", "crowd"} <= works
    broken = [cell.run for cell in cells if cell.breaks]
    assert broken
    for run in broken:
        held = [cell for cell in ours.CELLS if cell.run == run and not cell.breaks]
        assert held, run.key


@pytest.mark.slow
@pytest.mark.parametrize("key", PLAYED)
def test_a_cell_shows_what_it_must(key):
    """Played with real servers and processes, it shows its breaks and no other."""
    if BY_KEY[key].breaks:
        note_broken(key)
    played = play(BY_KEY[key])
    assert not played.error
    assert played.seen == played.cell.breaks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("right", "recipe", "run", "seen"),
    [
        (ours.OURS, "Unguarded", servers.RESTARTED, {Break.TWO, Break.LOST}),
        (ours.FENCED, "Unclaimed", late.WRITES_BETWEEN, {Break.LOST}),
    ],
)
def test_ours_breaks_with_a_rule_switched_off(right, recipe, run, seen):
    """The runs that ours survives can break it."""
    note_broken(recipe)
    wrong = replace(right, key=recipe.lower(), recipe=f"tests.museum.wrong:{recipe}")
    assert f"{right.key}/{run.key}" in BY_KEY
    played = play(Cell(wrong, run, frozenset(seen), "A rule is switched off."))
    assert not played.error
    assert played.seen == seen


# -- other people's -------------------------------------------------------------------------------


def absent(exhibit: Exhibit, why: str) -> None:
    """Skip what cannot be installed here, but not where all must run."""
    if os.environ.get("CI") and (not exhibit.package or has_node()):
        pytest.fail(why)
    pytest.skip(why)


def shows(cell: Cell) -> bool:
    """Whether a play shows what it must; a machine that stalls may make another one necessary."""
    for _ in range(3):
        played = play(cell)
        if played.absent:
            absent(cell.exhibit, played.error)
        if played.is_expected:
            return True
    return False


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cell", TURNS, ids=lambda cell: cell.exhibit.key)
def test_two_clients_take_turns(cell):
    """Where nothing happens each library keeps two clients apart, and loses no update."""
    assert shows(cell)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("breaks", "holds"), TELLING)
def test_what_breaks_and_what_does_not(breaks, holds):
    """A library breaks in the way that its cell says; and what it is compared with does not."""
    assert BY_KEY[breaks].breaks
    assert BY_KEY[holds].breaks < BY_KEY[breaks].breaks
    assert shows(BY_KEY[breaks])
    assert shows(BY_KEY[holds])

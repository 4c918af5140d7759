"""Redisson's locks, Redlock told wrongly, and ours under the same runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from museum.cells import CELLS, Cell, ours, redlocks
from museum.checker import Break
from museum.play import play
from museum.runs import late, servers
from tests.support.replays import note_broken

BY_KEY = {cell.key: cell for cell in CELLS}
WRONG = [
    redlocks.FROM_THE_END,
    redlocks.ONE_VALUE,
    redlocks.NO_GUARD,
    redlocks.ANSWERS,
    redlocks.STOPS,
    redlocks.ON_WRITES,
]
PLAYED = [
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


def test_a_lock_without_a_why_holds():
    """A cell that shows a break says how it comes to that."""
    for cell in CELLS:
        assert cell.why or not cell.breaks, cell.key


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

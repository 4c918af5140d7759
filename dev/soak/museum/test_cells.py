"""Each lock of the museum breaks, or holds, as its cells and the page say."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from dev.benchmarks.peers.environments import has_node
from dev.museum import faults
from dev.museum.cell import LOST, MANY, STUCK, TWO, Cell, Lock
from dev.museum.play import play
from dev.museum.rooms import checked_set, counter, ours, permits, redlock
from dev.museum.table import CELLS, LIBRARIES, LIMITS, LOCKS
from tests.support.replays import note_broken

from . import wrong

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
    "counter/each-in-its-order",
    "counter-of-three/each-in-its-order",
    "permits/killed-of-several",
    "permits-recovered/killed-of-several",
    "permits-recovered/given-back-late",
    "checked-set/both-checked",
    "checked-set-script/both-checked",
    "checked-set-script/clock-jumps",
    "django-redlock/failover-lagging",
    "django-redlock/release-on-its-way",
    "django-redlock/server-clock-seen",
    "django-redlock-fenced/server-clock",
    "django-redlock-renewed/hangs",
    *(cell.key for cell in ours.LIMITED_CELLS),
]
WRONG = [
    redlock.END,
    redlock.ONE_VALUE,
    redlock.NO_GUARD,
    redlock.ANSWERS,
    redlock.STOPS,
    redlock.FENCE,
]
TURNS = [cell for room in LIBRARIES for cell in room.CELLS if cell.fault is faults.turns]
TELLING = (  # beside it another library's, or the same one's, that does not break
    ("redlock-py/clock-set-right", "pottery/clock-set-right"),
    ("node-redlock-5/stopped-acquiring", "node-redlock-4/stopped-acquiring"),
    ("redlock-py/down", "redlock-ng/down"),
    ("redis-py/paused", "redis-py/killed"),
    ("fencekit/stopped-acquiring", "fencekit/paused"),
    ("django-redis/emptied", "django-redis/turns"),
    ("python-redis-lock/woken", "python-redis-lock/crowd"),
)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.key)
def test_each_lock_works_and_breaks(lock):
    """Each has a cell in which it holds, and each a cell in which it breaks, but for ours."""
    cells = [each for each in CELLS if each.lock is lock]
    assert any(not each.breaks for each in cells)
    assert any(each.breaks for each in cells) or lock.key.startswith("django-redlock")


@pytest.mark.parametrize("lock", WRONG, ids=lambda lock: lock.key)
def test_what_breaks_a_wrong_redlock_does_not_break_ours(lock):
    """Each works in turns and in a crowd, and the fault that breaks it is played against ours."""
    cells = [cell for cell in redlock.CELLS if cell.lock is lock]
    assert {faults.turns, faults.crowd} <= {cell.fault for cell in cells if not cell.breaks}
    broken = {cell.fault for cell in cells if cell.breaks}
    assert broken
    assert broken <= {cell.fault for cell in ours.CELLS if not cell.breaks}


def test_what_breaks_a_wrong_limit_does_not_break_ours():
    """Each lets k in and no more, and the fault that breaks it is played against ours."""
    cells = [cell for room in LIMITS for cell in room.CELLS]
    assert {cell.lock for cell in cells if cell.fault is faults.full} == {
        cell.lock for cell in cells
    }
    broken = {cell.fault for cell in cells if cell.breaks}
    assert broken <= {cell.fault for cell in ours.LIMITED_CELLS}
    assert not any(cell.breaks for cell in ours.LIMITED_CELLS)


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
    ("right", "recipe", "fault", "seen"),
    [
        (ours.OURS, wrong.Unguarded, faults.restarted, {TWO, LOST}),
        (ours.FENCED, wrong.Unclaimed, faults.writes_between, {LOST}),
        (ours.LIMITED, wrong.NoCommonSlots, counter.each_in_its_order, {MANY}),
        (ours.LIMITED, wrong.NoCommonSlots, permits.given_back_late, {MANY}),
        (ours.LIMITED, wrong.NoCommonSlots, checked_set.both_checked, {MANY}),
        (ours.LIMITED, wrong.NoCommonSlots, checked_set.clock_jumps, {MANY}),
        (ours.LIMITED, wrong.NoCommonSlots, faults.crowd, {MANY}),
        (ours.LIMITED, wrong.OneSlotGone, faults.killed_of_several, {STUCK}),
    ],
)
def test_ours_breaks_with_a_rule_switched_off(right, recipe, fault, seen):
    """The faults that ours survives can break it."""
    note_broken(recipe.__name__)
    assert not BY_KEY[f"{right.key}/{fault.key}"].breaks
    played = play(Cell(replace(right, recipe=recipe), fault))
    assert not played.error
    assert played.seen == seen


# -- other people's -------------------------------------------------------------------------------


def absent(lock: Lock, why: str) -> None:
    """Skip what cannot be installed here, but not where all must run."""
    if os.environ.get("CI") and (not lock.needs_node or has_node()):
        pytest.fail(why)
    pytest.skip(why)


def shows(cell: Cell) -> bool:
    """Whether a play shows what it must; a machine that stalls may make another one necessary."""
    for _ in range(3):
        played = play(cell)
        if played.is_absent:
            absent(cell.lock, played.error)
        if played.is_expected:
            return True
    return False


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("cell", TURNS, ids=lambda cell: cell.lock.key)
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

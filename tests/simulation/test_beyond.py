"""Where the lock promises nothing it breaks, and just inside of each line it does not.

These are the evidence for "What it promises, and what it does not".
"""

from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

import pytest

from .beyond import cross, limit
from .world import World

Holds: TypeAlias = Callable[[str], Counter[str]]


def breaks(name: str) -> bool:
    """Whether the promise is seen broken outside this limit."""
    return cross(limit(name)) is not None


@pytest.fixture(
    params=[pytest.param(3, id="sample"), pytest.param(1, marks=pytest.mark.nightly, id="all")]
)
def holds(request: pytest.FixtureRequest) -> Holds:
    """See that nothing breaks inside a limit (else ``Violation``); return what happened there.

    CI plays a third of the worlds, `make nightly` all.
    """

    def worlds_inside(name: str) -> Counter[str]:
        met: Counter[str] = Counter()
        worlds = limit(name).as_many // request.param
        for seed in range(worlds):
            world = World(seed, limit(name).inside)
            world.run()
            met += world.met
        assert met["granted"] >= worlds
        met["worlds"] = worlds
        return met

    return worlds_inside


def test_clocks_beyond_the_drift_allowance_give_two_holders() -> None:
    """Not promised: exclusion when the rates of clocks differ by more than `CLOCK_DRIFT`."""
    assert breaks("drift")


def test_clocks_within_the_drift_allowance_do_not(holds: Holds) -> None:
    """Promised: one holder while a client's and a node's clock run apart by 1 % at most."""
    holds("drift")


def test_restarts_without_the_guard_give_two_holders() -> None:
    """Not promised: exclusion when nodes lose their data and `RESTART_GUARD` is off."""
    assert breaks("guard")


@pytest.mark.slow
def test_any_number_of_restarts_with_the_guard_do_not(holds: Holds) -> None:
    """Promised: one holder, however many nodes lose their data, several at once included."""
    met = holds("guard")
    assert met["restarts"] > met["worlds"]
    assert met["NodesUnavailable"] > 0


def test_restarts_with_a_guard_shorter_than_the_longest_ttl_give_two_holders() -> None:
    """Not promised: exclusion when the guard ends before what was forgotten is over."""
    assert breaks("short-guard")


@pytest.mark.slow
def test_restarts_with_a_guard_as_long_as_the_longest_ttl_do_not(holds: Holds) -> None:
    """Promised: one holder when the guard outlasts every lease that may be forgotten."""
    assert holds("short-guard")["restarts"] > 0


@pytest.mark.slow
def test_old_data_and_a_clock_that_is_set_before_anybody_looks_give_two_holders() -> None:
    """Not promised: exclusion when a node comes back with old data and seems to be old."""
    assert breaks("boot")


@pytest.mark.slow
def test_a_node_that_boots_empty_with_a_slow_clock_does_not(holds: Holds) -> None:
    """Promised: one holder when a node restarts empty, whenever its slow clock is set."""
    met = holds("boot")
    assert met["clock set"] > 0
    assert met["wrong clock"] > 0


def test_node_clocks_that_jump_forward_give_two_holders() -> None:
    """Not promised: exclusion when clocks of nodes are set forward while a lock is held."""
    assert breaks("clock-jump")


@pytest.mark.slow
def test_tokens_increase_although_node_clocks_jump(holds: Holds) -> None:
    """Promised: tokens increase over successive holders, even where exclusion failed."""
    assert holds("clock-jump")["clock jumps"] > 0


def test_keys_that_vanish_unseen_give_two_holders() -> None:
    """Not promised: exclusion when keys are evicted or deleted by hand."""
    assert breaks("vanishing")


@pytest.mark.slow
def test_tokens_increase_although_keys_vanish(holds: Holds) -> None:
    """Promised: tokens increase as long as the nodes keep their counters."""
    assert holds("vanishing")["vanishes"] > 0


def test_wall_clocks_beyond_the_skew_break_tokens_when_counters_are_lost() -> None:
    """Not promised: increasing tokens when counters are lost and wall clocks disagree widely."""
    assert breaks("skew")


@pytest.mark.slow
def test_wall_clocks_within_the_skew_keep_tokens_when_counters_are_lost(holds: Holds) -> None:
    """Promised: tokens increase after a loss of counters if clocks agree within the skew."""
    assert holds("skew")["restarts"] > 0


@pytest.mark.slow
def test_wall_clocks_do_not_matter_while_counters_are_kept(holds: Holds) -> None:
    """Promised: tokens increase, however wrong wall clocks are, while counters are kept."""
    assert breaks("skew-kept")
    assert holds("skew-kept")["restarts"] > 0


def test_a_paused_holder_writes_after_its_deadline() -> None:
    """Not promised: that who looked at its lease writes before it ends; an update is lost."""
    assert breaks("paused")


def test_a_row_that_is_claimed_by_fence_refuses_a_paused_holder(holds: Holds) -> None:
    """Promised: with a claim at entry and writes under it, no update is lost."""
    assert holds("paused")["write refused"] > 0


@pytest.mark.slow
def test_refusing_lower_fences_on_writes_alone_loses_updates(holds: Holds) -> None:
    """Not promised: that a row is safe which looks at the fence only when it is written."""
    assert breaks("paused-refusing")
    holds("paused-refusing")


@pytest.mark.slow
def test_a_majority_away_stops_everybody() -> None:
    """Not promised: a lock without a majority; it is told as an outage, and nobody holds."""
    assert breaks("majority-away")
    met: Counter[str] = Counter()
    for seed in range(20):
        world = World(seed, limit("majority-away").outside)
        world.checker.reachable = False
        world.run()
        met += world.met
    assert met["NodesUnavailable"] > 0
    assert met["granted"] == met["LockTaken"] == 0


@pytest.mark.slow
def test_a_minority_away_stops_nobody(holds: Holds) -> None:
    """Promised: while a minority hangs or is down, nobody is told of an outage."""
    assert holds("majority-away")["NodesUnavailable"] == 0

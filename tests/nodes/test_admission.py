"""Whether a node may vote, by what it says of itself and by its clock: the rules alone."""

from __future__ import annotations

import math

import pytest

from django_redlock.core.reasons import ReasonCode, because
from django_redlock.nodes import admission
from django_redlock.nodes.admission import Look, ServerInfo, age, clock_of, seen, skew_of
from django_redlock.nodes.faults import Refused
from django_redlock.nodes.handshake import Admission

NOW = 1_800_000_000.0
FACTS = ServerInfo("run", "valkey", 1000.0, "master", promoted=False, cluster=False)


def look(clock: float, *, at: float = 0.0, took: float = 0.0) -> Look:
    """A look that began ``at`` seconds after NOW and took so long."""
    return Look(NOW + clock, NOW + at, NOW + at + took, at, at + took)


@pytest.mark.parametrize(
    ("clock", "took", "off"),
    [
        (0.0, 0.0, 0.0),
        (-5.0, 0.0, 0.0),
        (5.0, 0.0, 0.0),
        (-5.1, 0.0, -5.1),
        (5.1, 0.0, 5.1),
        (7.9, 3.0, 0.0),
        (-5.1, 3.0, -5.1),
        (8.1, 3.0, 5.1),
    ],
)
def test_a_clock_is_compared_as_an_interval(clock, took, off):
    """A node reads its clock between our question and its answer, give or take the skew."""
    assert seen(FACTS, look(clock, took=took), None, 5.0).off == pytest.approx(off)


def test_a_clock_of_ours_that_is_set_during_the_question_blames_nobody_in_between():
    """Whatever lies between the two readings of this machine's clock is possible."""
    back = Look(NOW - 50, NOW, NOW - 100, 0.0, 0.1)
    assert seen(FACTS, back, None, 5.0).off == 0


def test_clocks_that_are_wrong_alike_agree():
    """Not promised: a client whose clock is as wrong as the node's cannot know."""
    alike = Look(NOW - 100, NOW - 100, NOW - 100, 0.0, 0.0)
    assert seen(FACTS, alike, None, 5.0).off == 0


@pytest.mark.parametrize(
    ("clock_skew", "skew"), [(10, 5.0), (1, 0.5), (0.1, 0.05), (0.001, 0.05), (0, math.inf)]
)
def test_the_skew_is_half_of_the_setting(clock_skew, skew):
    """It has a least value, which well-kept clocks are within; 0 switches it off."""
    assert skew_of(clock_skew) == skew


@pytest.mark.parametrize(
    ("passed", "grown", "known"),
    [
        (10.0, 10.0, 2000.0),
        (10.0, 14.9, 2000.0),
        (10.0, 15.2, 0.0),
        (10.0, 110.0, 0.0),
        (10.0, -90.0, 2000.0),  # a clock that is set back keeps locks for longer
        (1000.0, 1014.9, 2000.0),  # rates differ
        (1000.0, 1015.1, 0.0),
    ],
)
def test_a_clock_that_ran_ahead_of_ours_makes_a_node_young(passed, grown, known):
    """More than the time that passed, a difference of rates and the skew: it was set."""
    before = seen(FACTS, look(5000.0, at=5000.0), None, 5.0)
    after = FACTS._replace(uptime=2000.0)
    later = seen(after, look(5000.0 + grown, at=5000.0 + passed), before, 5.0)
    assert age(later, 5000.0 + passed) == known


def test_a_slow_answer_before_is_no_step_of_the_clock():
    """Between two looks there passed as much as lies between first question and last answer."""
    before = seen(FACTS, look(0.1, took=8.0), None, 5.0)
    assert age(seen(FACTS, look(14.0, at=9.0), before, 5.0), 9.0) == 1000.0


def test_a_node_stays_young_for_all_connections_of_a_process():
    """What the first one found out is not forgotten by the next, whose clock goes right."""
    facts = seen(FACTS, look(0.0), None, 5.0)
    facts = seen(FACTS, look(100.0, at=1.0), facts, 5.0)
    facts = seen(FACTS, look(103.0, at=4.0), facts, 5.0)
    assert age(facts, 4.0) == 3.0
    facts = seen(FACTS._replace(uptime=990.0), look(104.0, at=5.0), facts, 5.0)  # set back
    assert age(facts, 7.0) == 2.0


def test_a_new_process_is_no_older_than_the_last_word_of_the_old_one():
    """However old it says that it is, for its clock may have been set in between."""
    old = seen(FACTS, look(0.0), None, 5.0)._replace(alive=40.0)
    new = seen(FACTS._replace(run_id="other"), look(50.0, at=50.0), old, 5.0)
    assert age(new, 50.0) == 10.0
    assert age(new._replace(uptime=3.0), 50.0) == 3.0


@pytest.mark.parametrize(
    "answer", [None, b"12", 5, [], [b"1"], [b"x", b"y"], [[], []], [b"9" * 400] * 2]
)
def test_what_is_no_time_is_refused(answer):
    """An answer to TIME is two numbers."""
    with pytest.raises(Refused, match="TIME") as refused:
        clock_of(answer)
    assert refused.value.reason == because(ReasonCode.STRANGE_TIME)
    assert clock_of([b"12", b"500000"]) == 12.5


@pytest.mark.parametrize(
    "told", [[-1, b"epoch"], [60_002, b"epoch"], [b"5", b"epoch"], [None, b"epoch"], [5, None]]
)
def test_a_wait_that_no_guard_imposes_is_refused(told):
    """A node that is asked for its mark tells a whole number of milliseconds, and the mark."""
    admitted = Admission("fences", 60.0, 0.0, FACTS, epoch="epoch")
    head = [str(admitted.command[4]).encode(), b"ADMITTED"]
    assert admitted.read([*head, 60_001, b"epoch"]) == (60.001, b"epoch")
    with pytest.raises(Refused):
        admitted.read([*head, *told])


def test_the_default_is_half_of_the_default_setting():
    """Who makes a group of nodes by hand gets the bound of the settings' defaults."""
    from django_redlock.conf import DEFAULTS

    assert skew_of(DEFAULTS["CLOCK_SKEW"]) == admission.SKEW

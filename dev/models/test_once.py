"""A record that a stranger puts back, searched exhaustively; ``once`` has the model.

Each rule, broken on purpose, is found out by the same search.
"""

from __future__ import annotations

import pytest

from .heal import search
from .once import Once

OUTLIVES = "it outlives its time"
AT_ONCE = Once(hears=False)  # a node may be heard late, or never: its vote is not waited for
FOR_EVER = Once(ticks=False)  # the record stays; what is put back is a little shorter each time


@pytest.mark.parametrize(
    "rules",
    [
        Once(),
        AT_ONCE,
        AT_ONCE._replace(losses=1),
        FOR_EVER._replace(restarts=5),
        pytest.param(FOR_EVER._replace(restarts=5, size=5), marks=pytest.mark.slow),
        pytest.param(Once(earlier=True, size=5, keep=2), marks=pytest.mark.slow),
        pytest.param(AT_ONCE._replace(earlier=True, size=5, keep=2), marks=pytest.mark.nightly),
    ],
    ids=[
        "three nodes",
        "it does not wait",
        "a node is silent",
        "all restart in turn",
        "five restart in turn",
        "an earlier record",
        "an earlier record, it does not wait",
    ],
)
def test_no_order_of_events_breaks_a_promise(rules):
    """The work is done once while its record lasts, no longer refused, and no lease is replaced."""
    broken, way, states = search(rules)
    assert (broken, way) == ("", ())
    assert states > 500  # the search goes somewhere


@pytest.mark.parametrize(
    "rules",
    [
        AT_ONCE._replace(restarts=2),
        pytest.param(
            AT_ONCE._replace(restarts=2, losses=1, keep=4, ttl=3), marks=pytest.mark.nightly
        ),
    ],
)
def test_however_often_it_is_put_back_a_record_ends_when_the_first_one_does(rules):
    """Callers that hand it on from node to node do not prolong it, however late their messages."""
    broken, way, states = search(rules, OUTLIVES)
    assert (broken, way) == ("", ())
    assert states > 10_000


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        (FOR_EVER._replace(restarts=3, puts_back=False), "it runs again"),
        (FOR_EVER._replace(restarts=3, hears=False), "it runs again"),
        (FOR_EVER._replace(restarts=1, believed=2), "it runs again"),
        (AT_ONCE._replace(aged=False), OUTLIVES),
        (Once(aged_there=False), OUTLIVES),
        (AT_ONCE._replace(heard=False), OUTLIVES),
        (Once(over="missing"), OUTLIVES),
        (Once(over="all", earlier=True, size=5, aged_there=False), "a holder's key is replaced"),
        (Once(careless=True), "work is refused that was never done"),
    ],
    ids=[
        "nobody puts it back",
        "the first record ends the asking",
        "a majority is believed",
        "the asking takes no time",
        "the way takes no time",
        "on nodes that were not heard",
        "SET NX where the key is missing",
        "over any key",
        "by a run that has lost its lease",
    ],
)
def test_each_broken_rule_breaks_one(rules, found):
    """A variant of the rules is found out, with as many restarts as our rules bear."""
    assert search(rules)[0] == found


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        (FOR_EVER._replace(restarts=3, apart=False), "it runs again"),
        (FOR_EVER._replace(restarts=1, losses=1), "it runs again"),
        (Once(removes=True), "it comes back"),
    ],
    ids=[
        "all restart before anybody asks",
        "the node that has it is silent",
        "removed while a caller puts it back",
    ],
)
def test_the_limit(rules, found):
    """Where nobody who is heard has the record, the work runs again; one removed may come back."""
    assert search(rules)[0] == found


def test_only_a_caller_brings_back_what_was_removed():
    """Else it stays away: a late message of the run that is done writes no record."""
    assert search(Once(removes=True, puts_back=False))[0] == ""

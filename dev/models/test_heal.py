"""A renewal that heals, searched exhaustively: every order of events of a small case.

``heal`` has the three models. Each rule, broken on purpose, is found out by the same search.
"""

from __future__ import annotations

import pytest

from .heal import Deleted, Ordered, Timed, search

TOLD = "hand over", "release", "rest", "complete"
RUN = Ordered(end="complete", names=2, partly=True)  # of a task: the key is freed before the record
HANDLE = Ordered(end="hand over", rivals=False)
DELIVERED_TWICE = HANDLE._replace(adopters=2, late_grant=True, rounds=1)
ALONE = Timed(rivals=False, prompt=True)


# -- who believes that it has the lease -----------------------------------------------------------


@pytest.mark.parametrize(
    "rules",
    [
        Timed(),
        pytest.param(Timed(rounds=2), marks=pytest.mark.nightly),
        Timed(restarts=1),
        Timed(names=2),
    ],
    ids=["one renewal", "two renewals", "a restart", "two names"],
)
def test_a_lease_that_heals_has_one_holder_and_its_tokens_rise(rules):
    """No rival holds beside it, and each later belief has a larger token."""
    _, way, states = search(rules)
    assert way == ()
    assert states > 40_000  # the search goes somewhere: on as long as anybody may yet believe


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        pytest.param(Timed(restarts=1, under_guard=True), "two holders", marks=pytest.mark.nightly),
        (Timed(restarts=1, guard=1), "two holders"),
        (Timed(steals=True), "two holders"),
        (Timed(names=2, partly=True), "two holders"),
        (Timed(late_votes=True), "tokens fall"),
    ],
    ids=["under the guard", "a short guard", "over another's key", "partly", "late votes"],
)
def test_each_broken_rule_of_a_heal_lets_a_second_holder_in(rules, found):
    """A heal without one of these is found out: two holders, or an old token after a newer one."""
    assert search(rules)[0] == found


def test_a_heal_raises_the_counter_to_the_fence():
    """All nodes lose their counters one after the other, and no clock helps: tokens still rise."""
    rules = Timed(restarts=2, forget=True)
    assert search(rules)[0] == ""
    assert search(rules._replace(number=0))[0] == "tokens fall"
    assert search(rules._replace(number=2))[0] == "tokens fall"  # the fence is 3


def test_a_lease_grows_back():
    """Each node restarts, past the guard of the one before; or one node hangs: no lease is lost."""
    for rules in (
        ALONE._replace(restarts=3),
        ALONE._replace(hangs=True),
        ALONE._replace(hangs=True, size=5),
        ALONE._replace(restarts=3, size=5),
    ):
        assert search(rules)[0] == ""
        assert search(rules._replace(heals=False))[0] == "the lease is lost"


def test_only_a_lease_that_heals_outlives_the_restarts_of_all_nodes():
    """However the renewals fall: without healing none is held after the last guard is over."""
    rules = Timed(restarts=3, rounds=3, rivals=False, goal=True)
    assert search(rules)[0] == "it outlives the restarts"
    assert search(rules._replace(heals=False, rounds=4))[0] == ""


# -- what ends a lease, and a heal that is on its way ---------------------------------------------


@pytest.mark.parametrize("undoes", ["behind", "waits", "votes"])
@pytest.mark.parametrize("rules", [HANDLE, *(Ordered(end=end) for end in TOLD[1:])], ids=TOLD)
def test_no_name_stays_taken_when_a_heal_is_undone(rules, undoes):
    """The end follows the heal, or waits for its reply, or the heal is undone after its reply."""
    assert search(rules._replace(undoes=undoes))[0] == ""


@pytest.mark.parametrize("rules", [HANDLE, *(Ordered(end=end) for end in TOLD[1:])], ids=TOLD)
def test_an_end_that_overtakes_a_heal_leaves_the_name_taken(rules):
    """So it is without an undo, and where the holder's process ends before it hears the reply."""
    assert search(rules._replace(undoes="never"))[0] == "a name stays taken"
    votes = rules._replace(undoes="votes", dies=True)
    assert search(votes)[0] == "a name stays taken"


@pytest.mark.parametrize("rules", [HANDLE, *(Ordered(end=end) for end in TOLD[1:])], ids=TOLD)
def test_an_end_behind_the_heal_needs_no_holder(rules):
    """The process may end, and a connection may break."""
    assert search(rules._replace(dies=True, breaks=1, rounds=1))[0] == ""


@pytest.mark.parametrize(
    "rules",
    [
        HANDLE,
        pytest.param(RUN, marks=pytest.mark.nightly),
        *(Ordered(end=end, late_grant=True) for end in TOLD[1:]),
    ],
)
def test_an_end_behind_the_heal_bears_restarts(rules):
    """A node loses its keys meanwhile, and the third node's grant may be late."""
    breaks = int(rules != RUN)
    assert search(rules._replace(dies=True, breaks=breaks, restarts=1))[0] == ""


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        (Ordered(joins=False), "a name stays taken"),
        (Ordered(stops=False), "a name stays taken"),
        (Ordered(one=False, each=False), "a name stays taken"),
        (Ordered(blind=True), "a key is replaced"),
        (RUN._replace(undoes="never"), "a name stays taken"),
        (RUN._replace(whole=True), "a name stays taken"),
        (HANDLE._replace(stops=False), "a name stays taken"),
    ],
    ids=[
        "a healed node is not touched",
        "a heal after the end",
        "the end goes behind one heal of two",
        "a rest is taken for free",
        "freeing the key overtakes a heal",
        "the freed key is healed",
        "a heal after the handle",
    ],
)
def test_each_broken_rule_of_an_end_is_found_out(rules, found):
    """A name stays taken that nobody has, or a key that rests is gone."""
    assert search(rules)[0] == found


def test_a_freed_key_does_not_come_back_while_the_run_name_is_held():
    """The key of a run is free on each node, though the run name is renewed, and heals."""
    assert search(RUN._replace(rivals=False))[0] == ""


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        (DELIVERED_TWICE, ""),
        (DELIVERED_TWICE._replace(one=False, undoes="waits"), ""),
        (DELIVERED_TWICE._replace(one=False), "two owners"),
        pytest.param(
            DELIVERED_TWICE._replace(stops=False, rounds=2),
            "two owners",
            marks=pytest.mark.nightly,
        ),
    ],
    ids=["ours", "it waits", "one of two heals", "a heal after the handle"],
)
def test_a_handle_has_one_owner_though_heals_are_late(rules, found):
    """Of two adopters of one handle one gets the lease: no node has the giver's key twice.

    So a node is healed only if it owed no reply to the grant or to a heal when it said free. Else
    the first adopter takes that key and frees it, the late heal brings it back, and the second
    adopter takes it again. No heal is written after the handle, for the same reason.
    """
    assert search(rules, "two owners")[0] == found


# -- a key that somebody deletes ------------------------------------------------------------------


@pytest.mark.parametrize(
    "rules",
    [
        Deleted(),
        Deleted(size=5, has=3),
        Deleted(has=3, spares=1, losses=False),
        Deleted(size=5, has=5, spares=2, losses=False),
    ],
    ids=["of three", "of five", "a majority of three", "a majority of five"],
)
def test_a_lease_whose_keys_were_deleted_is_not_revived(rules):
    """All keys are deleted between two renewals; or those of a majority, and all nodes reply."""
    assert search(rules)[0] == ""


@pytest.mark.parametrize(
    "rules",
    [
        Deleted(kept=0),
        Deleted(kept=0, losses=False, outvoted=True),
        Deleted(has=3, spares=1, losses=False, outvoted=True),
        Deleted(has=3, spares=1, losses=False, hears=False),
    ],
    ids=["no node has it", "all deny it", "a majority denies it", "not all are heard"],
)
def test_each_broken_rule_revives_a_lease_whose_keys_were_deleted(rules):
    """A renewal heals only if a node has the lease, no majority lacks it, and all were heard."""
    assert search(rules)[0] == "revived"


@pytest.mark.parametrize(
    "rules",
    [Deleted(midway=True), Deleted(has=3, spares=1)],
    ids=["during a renewal", "one node is silent, another was spared"],
)
def test_the_limit(rules):
    """Where it cannot be told from a restart, a deleted lease may go on."""
    assert search(rules)[0] == "revived"

"""Waiting in simulated worlds: a free name is taken soon, in turn, by one; nobody is left."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial

import pytest

from django_redlock.core.hold import RESERVED
from django_redlock.core.wait import LOOK_EVERY

from .checker import Broken, Violation
from .kinds import play
from .mutants import Mutant, broken
from .mutants.waiting import WAITING as MUTANTS
from .places import Place
from .profiles import LATE, SOON, Profile
from .queued import WAITING

SAMPLE = 12  # worlds of each profile, in `make test`
WORLDS = 34  # in `make nightly`
MET = {
    "queued": {"in line"},
    "queued-giving-up": {"in line", "cancelled", "LockTaken"},
    "queued-for-two": {"served"},
    "queued-after-deaths": {"gone for ever", "extended"},
    "queued-after-short-ttls": {"gone for ever"},
    "queued-after-rests": {"rest"},
    "queued-lossy": {"lost word", "lost request", "moves", "suspended"},
    "queued-losing-releases": {"lost request"},
    "queued-dying": {"dies"},
    "queue-hangs": {"hangs", "moves"},
    "queue-restarts": {"restarts", "flushed"},
    "queued-beside-others": {"foreign"},
    "queued-for-slots": {"in line", "cancelled"},
    "queued-for-slots-lossy": {"lost word", "lost request", "adopted", "gone for ever"},
}


def where(name: str) -> Profile:
    """The profile of this name."""
    return next(each for each in WAITING if each.name == name)


@pytest.mark.parametrize("worlds", [SAMPLE, pytest.param(WORLDS, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("profile", WAITING, ids=lambda profile: profile.name)
def test_no_world_of_waiting_breaks_a_promise(profile: Profile, worlds: int) -> None:
    """Processes die and hang: one holder, a free name is taken soon, nobody is left blocked.

    Within 0.2 s where only a timer would take longer, without faults in order of arrival.
    """
    met: Counter[str] = Counter()
    for seed in range(worlds):
        met += play(seed, profile).met
    assert MET[profile.name] | {"granted", "stands", "served", "closing"} <= met.keys()


def test_bounds_tell_a_wake_up_from_a_timer() -> None:
    """Soon is before anybody looks by himself; late is after everybody has, and some timeouts.

    And long before a key is gone that was left by a release which got lost.
    """
    assert RESERVED / 1000 < SOON < LOOK_EVERY[0] < LOOK_EVERY[1] < LATE
    assert min(where("queued-losing-releases").ttls) / 2 > LATE
    assert {each.patience for each in WAITING} == {SOON, LATE}


def test_after_a_holder_with_a_short_ttl_only_a_look_is_promised() -> None:
    """Who was told of the time of the holder before it may find the name free later than soon."""
    hasty = replace(where("queued-after-short-ttls"), patience=SOON)
    with pytest.raises(Violation) as found:
        list(map(partial(play, profile=hasty), range(300)))
    assert found.value.promise is Broken.WAITING


def test_a_place_that_is_forgotten_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who leaves and still stands in a node's queue ends the world."""
    monkeypatch.setattr(Place, "_leave", lambda *_, **__: None)
    seen = set()
    for seed in range(5):
        try:
            play(seed, where("queued-after-rests"))
        except Violation as violation:
            seen.add(violation.promise)
    assert Broken.BLOCKED in seen


@pytest.mark.slow
def test_most_broken_rules_of_waiting_leave_one_holder() -> None:
    """A wake-up makes nobody a holder: what is lost without the rules of the queue is a turn.

    Two holders need a node that lets the word open too much, a nonce that is used twice, or votes
    of two slots that are counted together.
    """
    two = {"word-opens-all", "wears-the-dead-nonce", "counts-what-is-kept"}
    two |= {"counts-votes-of-all-slots"}
    seen = {mutant.name: _seen(mutant) for mutant in MUTANTS}
    assert {
        name for name, promises in seen.items() if promises & {Broken.ALONE, Broken.TOKENS}
    } == two
    assert set().union(*seen.values()) >= {Broken.WAITING, Broken.ORDER}


def _seen(mutant: Mutant) -> set[Broken]:
    """What is broken in a few worlds."""
    seen = set()
    with broken(mutant):
        for seed in range(8):
            try:
                play(seed, where(mutant.profile))
            except Violation as violation:
                seen.add(violation.promise)
    return seen

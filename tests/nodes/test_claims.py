"""Whose a set of connections is, while a signal handler and other threads take sets as well."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from django_redlock.core.protocol import Request
from django_redlock.nodes.sets import ConnectionSet, ConnectionSets
from tests.faults.injected import Interruption
from tests.support.loops import group_of
from tests.support.sets import LONG, asking, connected, grant, release, sets_of

pytestmark = [pytest.mark.slow, pytest.mark.alone]  # a profile function is its process's


@contextmanager
def after(
    called: str, within: Callable[..., object], errand: Callable[[], object]
) -> Iterator[None]:
    """Run something where a signal handler runs: as this function comes back from a C function."""

    def profile(frame: FrameType, event: str, what: Any) -> None:
        ours = frame.f_code is within.__code__
        if ours and event == "c_return" and what.__name__ == called:
            sys.setprofile(None)
            errand()

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def keep_request(sets: ConnectionSets, lent: ConnectionSet) -> None:
    """Put the set into the list as it is; who takes it from there marks it a moment later."""
    sets._free.append(lent)


def is_in_no_list(sets: ConnectionSets, lent: ConnectionSet, request: Request) -> bool:
    """Believe that a set is still the request's that is not in the list."""
    return lent.request is request and lent not in sets._free


@pytest.mark.parametrize("broken", [False, True], ids=["well", "broken"])
def test_a_set_that_another_thread_has_just_taken_is_not_the_givers(three, broken, monkeypatch):
    """The giver is interrupted behind the step that puts it into the list."""
    if broken:
        monkeypatch.setattr(ConnectionSets, "_put", keep_request)
        monkeypatch.setattr(ConnectionSets, "is_still_lent", is_in_no_list)
    group, request = group_of(three.urls, LONG), grant()
    sets, lent = sets_of(group), connected(group)
    assert sets.lend(asking(group, request)) is lent

    def taken_meanwhile() -> None:
        assert sets._free.pop() is lent  # the other thread has not marked it yet
        raise Interruption

    with pytest.raises(Interruption), after("append", ConnectionSets._put, taken_meanwhile):
        sets.give(lent, request)
    assert sets.is_still_lent(lent, request) is broken
    sets.dissolve(lent)
    group.close()


def find_then_claim(sets: ConnectionSets, request: Request) -> ConnectionSet | None:
    """Look for an idle set in one call, and claim it after that."""
    idle = (each for each in reversed(sets._owing.values()) if each.request is None)
    lent = next(idle, None)
    if lent is not None:
        lent.request = request
    return lent


@pytest.mark.parametrize("broken", [False, True], ids=["well", "broken"])
def test_a_set_is_claimed_in_the_step_that_finds_it(three, broken, monkeypatch):
    """A handler uses the set meanwhile, and its late replies come: then it is in the list."""
    if broken:
        monkeypatch.setattr(ConnectionSets, "_last", find_then_claim)
    group = group_of(three.urls, LONG)
    sets, lent = sets_of(group), connected(group)
    sets._owing["late"], lent.key = sets._free.pop(), "late"

    def used_meanwhile() -> None:
        sets._owing.clear()
        lent.key = ""
        sets._put(lent)

    with after("next" if broken else "values", ConnectionSets._last, used_meanwhile):
        found = sets.lend(asking(group, release()))
    assert sets._free == [lent]
    assert (found is lent) is broken
    group.close()


def test_an_interrupted_dissolution_leaves_no_set_claimed(three):
    """The next caller that claims the set dissolves the rest of it."""
    group = group_of(three.urls, LONG)
    sets, lent = sets_of(group), connected(group)
    sets._owing["late"], lent.key = sets._free.pop(), "late"

    def interrupt() -> None:
        raise Interruption

    with pytest.raises(Interruption), after("items", ConnectionSets.dissolve, interrupt):
        sets.give_up("late")
    assert sets._owing == {"late": lent}
    sets.give_up("late")
    assert (sets._owing, lent.connections) == ({}, {})
    group.close()

"""What is done when an object is forgotten is done, whatever a signal handler raises just then."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from django_redlock.concurrency import farewells
from django_redlock.concurrency.farewells import TRIES, Farewell, settle
from django_redlock.core.protocol import Waiter
from django_redlock.fanout.queue import LocalQueue


class Thing:
    """Something that can be forgotten."""


class Interruption(Exception):  # noqa: N818 - it is one
    """What a signal handler raises."""


@pytest.fixture(autouse=True)
def unchanged() -> Iterator[None]:
    """Nothing is left to be done, and nothing is kept."""
    settle()
    gc.collect()
    before = dict(farewells._awaited)  # of other tests; some may be done meanwhile
    yield
    assert len(farewells.gone) == 0
    assert farewells._awaited.keys() <= before.keys()


def forgotten_while_interrupted(things: list[Thing], function: str) -> list[str]:
    """Forget the only thing; the first Python function of this name raises as it begins."""
    raised: list[str] = []

    def interrupt(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_name == function and not raised:
            raised.append(function)
            raise Interruption

    swallowed = []
    before, sys.unraisablehook = sys.unraisablehook, lambda what: swallowed.append(what.exc_type)
    sys.setprofile(interrupt)
    try:
        things.clear()
    finally:
        sys.setprofile(None)
        sys.unraisablehook = before
    assert swallowed == [Interruption]
    return raised


@pytest.mark.parametrize("in_a_cycle", [False, True])
def test_the_job_is_done_at_once(in_a_cycle):
    """By counting references, and by collecting garbage."""
    done: list[str] = []
    thing = Thing()
    if in_a_cycle:
        vars(thing)["itself"] = thing
    Farewell(thing, lambda: done.append("job"))
    assert done == []
    del thing
    gc.collect()
    assert done == ["job"]


def test_it_can_be_cancelled_once():
    """Then nothing is done."""
    done: list[str] = []
    things = [Thing()]
    farewell = Farewell(things[0], lambda: done.append("job"))
    assert (farewell.cancel(), farewell.cancel()) == (True, False)
    things.clear()
    assert done == []


@pytest.mark.parametrize("function", ["settle", "do", "job"])
def test_an_interrupted_job_is_done_by_who_looks_next(function):
    """At the first instruction of the callback, of what it calls, and of the job itself."""
    done: list[str] = []
    things = [Thing()]

    def job() -> None:
        done.append("job")

    Farewell(things[0], job)
    forgotten_while_interrupted(things, function)
    assert done == []
    settle()
    assert done == ["job"]


def test_the_library_s_own_loses_it():
    """The check can fail: ``weakref.finalize`` keeps the job, and never does it."""
    done: list[str] = []
    things = [Thing()]
    last = weakref.finalize(things[0], done.append, "job")
    forgotten_while_interrupted(things, "__call__")
    gc.collect()
    settle()
    assert done == []
    last.detach()
    last()


def test_a_job_that_fails_again_and_again_is_given_up():
    """It keeps nobody from the others."""
    done: list[str] = []

    def fail() -> None:
        raise OSError("it cannot be done")

    jobs: list[Callable[[], object]] = [fail, lambda: done.append("job")]
    things = [Thing() for _ in jobs]
    for thing, job in zip(things, jobs, strict=True):
        Farewell(thing, job)
    del thing
    before, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        things.clear()
    finally:
        sys.unraisablehook = before
    for _ in range(TRIES):
        try:
            settle()
        except OSError:
            continue
        break
    assert done == ["job"]


def test_nobody_stands_behind_one_who_was_forgotten():
    """Though an interruption kept the forgotten one from leaving its line."""
    lines, called = LocalQueue(), []
    tickets = [Waiter("queue")]
    assert lines.join(tickets[0], bool)
    second = Waiter("queue")
    assert not lines.join(second, lambda: called.append("second"))
    forgotten_while_interrupted(tickets, "_remove")  # type: ignore[arg-type]
    assert called == []
    assert lines.is_first(second)
    assert called == ["second"]
    lines.leave(second)
    assert lines.join(Waiter("queue"), bool)

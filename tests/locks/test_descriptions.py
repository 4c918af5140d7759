"""What describing a lock keeps: options that were checked before, and the keys of its names."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from django_redlock.backend import Backend
from django_redlock.core.policy import Policy
from django_redlock.locks.template import LockTemplate
from django_redlock.nodes.memory import MemoryNode, MemoryNodes


class Alias:
    """A source of locks whose settings may change."""

    def __init__(self) -> None:
        self.nodes = MemoryNodes([MemoryNode() for _ in range(3)])
        self.backend = self.make("one:")
        self.redlock = LockTemplate(lambda _: self.backend)

    def make(self, prefix: str) -> Backend:
        """A backend with other keys."""
        return Backend("default", self.nodes, Policy(size=3, prefix=prefix))


@pytest.fixture
def alias() -> Alias:
    """Three nodes in memory."""
    return Alias()


def test_equal_options_are_checked_once_and_stay_what_they_were(alias):
    """Equal values of the same type share what was checked; 1 and 1.0 do not."""
    redlock = alias.redlock
    assert redlock("a", ttl=7.5)._options is redlock("b", ttl=7.5)._options
    whole: Any = redlock("a", wait=1)._options.wait
    real: Any = redlock("a", wait=1.0)._options.wait
    assert [type(whole), type(real)] == [int, float]
    assert redlock.using(ttl=7)("a", wait=1)._options.ttl == 7
    assert redlock("a")._options is redlock("b")._options


@pytest.mark.parametrize("wrong", [[], {}, "5", True, object()])
def test_a_wrong_option_is_told_each_time_and_alone(alias, wrong):
    """Also of a value that has no hash; no other error is shown beside it."""
    for _ in range(2):
        with pytest.raises(TypeError, match="ttl must be a number of seconds") as caught:
            alias.redlock("a", ttl=wrong)
        assert caught.value.__context__ is None


def test_a_callback_is_not_kept(alias):
    """Neither that of a lock nor that of a template outlives them."""

    class Holder:
        def lost(self, _: object) -> None: ...

    holder = Holder()
    alias.redlock("a", on_lost=holder.lost, ttl=9)
    alias.redlock.using(on_lost=holder.lost)("a", ttl=9)
    gone = weakref.ref(holder)
    del holder
    gc.collect()
    assert gone() is None


def test_a_lock_that_is_kept_follows_its_alias(alias):
    """Its keys are made once, and anew where the alias has other settings."""
    lock = alias.redlock("name")
    with lock as lease:
        first = lease.grant.target
    with lock as lease:
        assert lease.grant.target is first
    alias.backend = alias.make("two:")
    with lock as lease:
        assert lease.grant.target.keys == ("two:lock:name",)

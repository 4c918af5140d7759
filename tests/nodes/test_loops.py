"""One object for each event loop."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import closing

from django_redlock.nodes.background import PerLoop


class Thing:
    """What a loop has."""


def test_each_loop_has_its_own() -> None:
    """Two loops that ask in turns have an object each, and always the same."""
    things = PerLoop(Thing)
    with closing(asyncio.new_event_loop()) as one, closing(asyncio.new_event_loop()) as other:
        first, second = things.of(one), things.of(other)
        assert first is not second
        for _ in range(2):
            assert things.of(one) is first
            assert things.of(one) is first
            assert things.of(other) is second


def test_neither_keeps_the_other() -> None:
    """A loop that is gone has no object, and an object that nobody keeps is made anew."""
    things, loop = PerLoop(Thing), asyncio.new_event_loop()
    thing = things.of(loop)
    assert things.made() == [(loop, thing)]
    gone = weakref.ref(thing)
    del thing
    assert gone() is None
    assert things.made() == []
    assert isinstance(things.of(loop), Thing)
    loop.close()
    forgotten = weakref.ref(loop)
    del loop
    gc.collect()
    assert forgotten() is None

"""For tests of who is told what: nodes in memory, and nobody who listens."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.test import override_settings

from django_redlock import conf, events, otel
from django_redlock.events import Event, EventKind
from django_redlock.nodes.memory import MemoryNodes

NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def memory() -> Iterator[MemoryNodes]:
    """Five nodes in memory that hold nothing, in every test of the module that imports this."""
    urls = [f"memory://listening-{next(NUMBERS)}" for _ in range(5)]
    with override_settings(REDLOCK={"default": {"NODES": urls, "MAX_TTL": 30, "TTL": 30}}):
        group = conf.backend("default").group
        assert isinstance(group, MemoryNodes)
        yield group


@pytest.fixture
def nobody(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nobody listens: no log, and no metrics, which the app switches on."""
    caplog.set_level(logging.CRITICAL, logger="django_redlock")
    otel.uninstrument()
    yield
    otel.instrument()


class Told(list[Event]):
    """Events in order."""

    def kinds(self) -> list[EventKind]:
        """Their kinds."""
        return [event.kind for event in self]

    def templates(self) -> list[tuple[str, str]]:
        """What each said of the template, by kind."""
        return [(event.kind.name, event.template) for event in self]


@contextmanager
def heard(*kinds: EventKind) -> Iterator[Told]:
    """What a listener is told meanwhile: of these kinds, or of all."""
    told = Told()
    events.subscribe(told.append, kinds or EventKind)
    try:
        yield told
    finally:
        events.unsubscribe(told.append)


@pytest.fixture
def told() -> Iterator[Told]:
    """What a listener to everything is told."""
    with heard() as told:
        yield told

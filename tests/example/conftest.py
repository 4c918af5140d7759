"""The example on nodes in memory, and who comes to its site."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from django.test import Client, override_settings

from django_redlock import conf
from django_redlock.nodes.memory import MemoryNodes
from example_project import settings as example
from example_project.box_office import outside
from example_project.box_office.models import Show

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
NUMBERS = itertools.count()


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryNodes]:
    """The example's own settings with fresh nodes in memory; nothing takes its time."""
    for name in ("BANK", "REPORT", "EXPORT", "POSTERS"):
        monkeypatch.setattr(outside, name, 0)
    names = [f"memory://example-{next(NUMBERS)}" for _ in range(5)]
    with override_settings(
        ROOT_URLCONF=example.ROOT_URLCONF,
        MIDDLEWARE=example.MIDDLEWARE,
        TEMPLATES=example.TEMPLATES,
        REDLOCK={"default": {"NODES": names}},
    ):
        group = conf.backend("default").group
        assert isinstance(group, MemoryNodes)
        yield group


@pytest.fixture
def show() -> Show:
    """A show of which nothing is sold."""
    return Show.objects.create(title="The Seagull")


def visitor() -> Client:
    """A browser that has been on the site before, and so has a session."""
    made = Client(headers={"accept": BROWSER})
    for each in Show.objects.all():
        made.get(each.get_absolute_url())
    return made

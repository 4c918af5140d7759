"""Five nodes that hold nothing, in force as the default alias; no lease ends by the clock."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from django.test import override_settings

from django_redlock import conf
from django_redlock.nodes.memory import MemoryNodes
from django_redlock.testing import EmbeddedNodes

NUMBERS = itertools.count()
TIMES = {"MAX_TTL": 60, "TTL": 60}


@pytest.fixture
def memory() -> Iterator[MemoryNodes]:
    """Nodes in memory, which a test may break."""
    urls = [f"memory://locks-{next(NUMBERS)}" for _ in range(5)]
    with override_settings(REDLOCK={"default": {"NODES": urls} | TIMES}):
        group = conf.backend("default").group
        assert isinstance(group, MemoryNodes)
        yield group


@pytest.fixture(params=["memory", "real"])
def nodes(request: pytest.FixtureRequest) -> Iterator[None]:
    """Nodes in memory, and real ones."""
    if request.param == "memory":
        request.getfixturevalue("memory")
        yield
        return
    servers: EmbeddedNodes = request.getfixturevalue("patient_nodes")
    alias = servers.settings(MAX_TTL=60, NODE_TIMEOUT=5, RESTART_GUARD=False)
    with override_settings(REDLOCK={"default": alias | TIMES}):
        yield

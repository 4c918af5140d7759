"""Three real nodes, and a lease of which one of them has not replied to the grant."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_redlock.testing import EmbeddedNodes
from tests.support.links import Held
from tests.support.loops import unguarded
from tests.support.proxy import Proxy


@pytest.fixture(scope="module")
def three() -> Iterator[EmbeddedNodes]:
    """Three nodes, without the guard."""
    with unguarded(3) as nodes:
        yield nodes


@pytest.fixture
def held(three: EmbeddedNodes) -> Iterator[Held]:
    """A lease of a majority, with the third grant on its way."""
    with Proxy(three[2].port) as proxy:
        held = Held(three, proxy)
        yield held
        proxy.let_go()
        held.group.close()
    for node in three:
        node.client().flushdb()

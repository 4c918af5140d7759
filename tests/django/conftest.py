"""For all tests of Django's places: nodes in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_redlock.nodes.memory import MemoryNodes
from tests.support.looked_at import group, in_memory


@pytest.fixture
def memory() -> Iterator[MemoryNodes]:
    """Five nodes in memory, the alias "default"."""
    with in_memory("default"):
        yield group("default")

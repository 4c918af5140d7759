"""Two aliases, on nodes in memory and on real ones, for the tests of the testing kit."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.conf import settings
from django.test import override_settings

from tests.support.looked_at import in_memory

FOREVER = 600.0  # seconds: who waits for a node that says nothing returns in no test's time


@pytest.fixture(params=["memory", "real"])
def aliases(request: pytest.FixtureRequest) -> Iterator[str]:
    """The aliases "default" and "other", of nodes of this kind."""
    if request.param == "memory":
        with in_memory("default", "other"):
            yield request.param
        return
    request.getfixturevalue("patient_nodes")
    default = settings.REDLOCK["default"] | {"NODE_TIMEOUT": FOREVER}
    other = {**default, "KEY_PREFIX": "redlock:other:"}
    with override_settings(REDLOCK={"default": default, "other": other}):
        yield request.param


@pytest.fixture
def memory() -> Iterator[None]:
    """The same aliases, of nodes in memory that no other test has."""
    with in_memory("default", "other"):
        yield

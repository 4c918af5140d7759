"""The pytest plugin: five real nodes per session, ready for each test that asks for them.

pytest loads this in every project that has the package installed, so nothing but pytest is
imported before a fixture is used.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from django_redlock.testing.embedded import EmbeddedNode, EmbeddedNodes

PREFIX = "redlock:"
FENCES = f"{PREFIX}fences"


@pytest.fixture(scope="session")
def redlock_embedded() -> Iterator[EmbeddedNodes]:
    """Five real nodes, started once per session (per worker under xdist), in whatever state."""
    from django_redlock.testing.embedded import EmbeddedNodes

    with EmbeddedNodes(5) as nodes:
        yield nodes


@pytest.fixture
def redlock_nodes(redlock_embedded: EmbeddedNodes) -> Iterator[EmbeddedNodes]:
    """Five real nodes that answer, vote and hold no lock; `settings.REDLOCK` points at them.

    The first test of a session waits three to four seconds until the nodes are old enough to
    vote, and so does one after a test that killed, restarted or emptied a node.
    """
    with lent(redlock_embedded):
        yield redlock_embedded


@contextmanager
def lent(nodes: EmbeddedNodes, **options: Any) -> Iterator[None]:
    """Nodes as new for one test, with these options of `EmbeddedNodes.settings` in force."""
    with _in_force(mend(nodes, **options)):
        yield
    for node in nodes:
        if node.is_paused:
            node.resume()  # costs nothing; dead nodes wait for the next test that wants them


def mend(nodes: EmbeddedNodes, **options: Any) -> dict[str, object]:
    """Undo what a test did to the nodes; return the `REDLOCK` alias under which they can vote.

    Options are those of `EmbeddedNodes.settings`.

    Lock keys are deleted one by one: FLUSHALL would take the epoch, and an emptied node counts
    as just restarted. A node that a test emptied all the same is restarted.
    """
    for node in nodes:
        if node.is_paused:
            node.resume()
        if not node.is_running or _is_emptied(node):
            node.restart()
    return nodes.settings(**options)


def _is_emptied(node: EmbeddedNode) -> bool:
    """Delete the node's lock keys; True when the epoch it once had is gone."""
    with closing(node.client()) as client:
        stale = [
            key for key in client.scan_iter(f"{PREFIX}*", count=1000) if key != FENCES.encode()
        ]
        if stale:
            client.delete(*stale)
        return PREFIX in node.vouched and not client.hexists(FENCES, "epoch")


def _in_force(alias: dict[str, object]) -> AbstractContextManager[object]:
    """Put the alias into Django's settings, in a project that has any."""
    if importlib.util.find_spec("django") is None:
        return nullcontext()
    from django.conf import settings
    from django.test.utils import override_settings

    if not (settings.configured or os.environ.get("DJANGO_SETTINGS_MODULE")):
        return nullcontext()
    return override_settings(REDLOCK={"default": alias})

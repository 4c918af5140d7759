"""The pytest plugin: five real nodes per session, and a check that no lock is left behind.

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
    """Five real nodes, started once per session (per worker under xdist), in any state."""
    from django_redlock.testing.embedded import EmbeddedNodes

    with EmbeddedNodes(5) as nodes:
        yield nodes


@pytest.fixture
def redlock_nodes(redlock_embedded: EmbeddedNodes) -> Iterator[EmbeddedNodes]:
    """Five real nodes that run, vote and hold no lock; `settings.REDLOCK` points at them.

    The first test of a session waits three to four seconds until the nodes are old enough to
    vote, and so does one after a test that killed, restarted or emptied a node.
    """
    with lent(redlock_embedded):
        yield redlock_embedded


@pytest.fixture
def redlock_leaves_nothing() -> Iterator[None]:
    """Fail the test at its end if it leaves a lock behind; the lock is freed then.

    It looks when the fixtures that were set up after it are torn down. For all tests:
    `usefixtures = ["redlock_leaves_nothing"]` in pytest's configuration.
    """
    from django_redlock.testing.leaks import Watch

    with Watch() as watch:
        yield
        if text := watch.report():
            pytest.fail(text, pytrace=False)


@contextmanager
def lent(nodes: EmbeddedNodes, **options: Any) -> Iterator[None]:
    """Lend the nodes, as if new, to one test, with these options of `EmbeddedNodes.settings`."""
    with _in_force(mend(nodes, **options)):
        yield
    for node in nodes:
        if node.is_paused:
            node.resume()  # costs nothing; dead nodes wait for the next test that wants them


def mend(nodes: EmbeddedNodes, **options: Any) -> dict[str, object]:
    """Undo what a test did to the nodes; return the `REDLOCK` alias under which they can vote.

    Options are those of `EmbeddedNodes.settings`.

    Lock keys are deleted one by one: FLUSHALL would take the epoch, and an emptied node counts
    as just restarted. A node that a test emptied is restarted.
    """
    for node in nodes:
        if node.is_paused:
            node.resume()
        if not node.is_running or _is_emptied(node):
            node.restart()
    return nodes.settings(**options)


def _is_emptied(node: EmbeddedNode) -> bool:
    """Delete the node's lock keys; return True if the epoch that it had is gone.

    A test may have had a KEY_PREFIX of its own: what it left there, such as the note that a name
    has a waiter, would change what the next test with this prefix sees.
    """
    prefixes = {PREFIX, *node.vouched}
    fences = {f"{prefix}fences".encode() for prefix in prefixes}
    begins = tuple(prefix.encode() for prefix in prefixes)
    with closing(node.client()) as client:
        keys = (key for key in client.scan_iter(count=1000) if key.startswith(begins))
        if stale := [key for key in keys if key not in fences]:
            client.delete(*stale)
        return PREFIX in node.vouched and not client.hexists(FENCES, "epoch")


def _in_force(alias: dict[str, object]) -> AbstractContextManager[object]:
    """Put the alias into Django's settings, if the project has settings."""
    if importlib.util.find_spec("django") is None:
        return nullcontext()
    from django.conf import settings
    from django.test.utils import override_settings

    if not (settings.configured or os.environ.get("DJANGO_SETTINGS_MODULE")):
        return nullcontext()
    return override_settings(REDLOCK={"default": alias})

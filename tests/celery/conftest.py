"""Fixtures for the tests with real workers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest
from django.test import override_settings

from django_redlock.testing import EmbeddedNode, EmbeddedNodes

from . import project
from .desk import desk, transactional
from .site import LONG_TTL, TTL, Site

__all__ = ["desk", "transactional"]

sites: list[Site] = []  # the one of this process


@pytest.fixture(scope="session")  # once per process: Celery's result consumer keeps its broker
def shared(redlock_embedded: EmbeddedNodes, tmp_path_factory: Any) -> Iterator[Site]:
    """One broker and one worker of four children for all tests but those that kill it.

    The nightly tests have it from here, which is another fixture to pytest, and the same site.
    """
    if sites:
        yield sites[0]
        return
    with ExitStack() as stack:
        broker = EmbeddedNode()
        stack.callback(broker.close)
        broker.start()
        locks = redlock_embedded.settings(MAX_TTL=TTL, NODE_TIMEOUT=10, RESTART_GUARD=False)
        nodes = [stack.enter_context(closing(node.client())) for node in redlock_embedded]
        site = Site(broker, nodes, locks, tmp_path_factory.mktemp("workers"))
        stack.enter_context(closing(site.client))
        project.app.conf.update(broker_url=site.url, result_backend=site.url)
        stack.enter_context(site.worker())
        sites.append(site)
        yield site
        sites.clear()
        project.app.close()


@pytest.fixture
def site(shared: Site, patient_nodes: EmbeddedNodes) -> Iterator[Site]:
    """The site, with lock nodes that are as new, in this process's settings too.

    What a test holds itself lasts for longer than what its workers hold.
    """
    with override_settings(REDLOCK={"default": shared.locks | {"MAX_TTL": LONG_TTL}}):
        yield shared

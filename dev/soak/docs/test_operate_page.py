"""Nodes that are restarted one after the other, as the page "Restart, replace, change" says."""

from __future__ import annotations

from contextlib import closing
from functools import partial

from django.test import override_settings

from django_redlock import redlock
from django_redlock.testing import EmbeddedNodes
from tests.docs.test_operate_page import status
from tests.support.waiting import eventually


def has(nodes: EmbeddedNodes, place: int, name: str) -> bool:
    """Whether a node has the key of a lock."""
    with closing(nodes[place].client()) as admin:
        return bool(admin.exists(f"redlock:lock:{name}"))


def test_restarts_one_after_the_other_keep_a_lease():
    """Step by step as the page says, at the same address and with an empty server each time."""
    with EmbeddedNodes(3) as nodes:
        settings = nodes.settings(MAX_TTL=6)
        with override_settings(REDLOCK={"default": settings}):
            lease = redlock("held").acquire()
            for place in range(2):  # a majority has forgotten it then
                nodes.restart(place)
                assert "restart guard" in eventually(partial(degraded), within=60)
                assert not lease.lost
                eventually(lambda: status()[0] == 0, within=60, every=0.1)
                eventually(partial(has, nodes, place, "held"), within=60)
            lease.ensure()
            lease.release()


def degraded() -> str:
    """What `redlock_status` prints while a node does not vote."""
    code, printed = status()
    return printed if code == 3 else ""

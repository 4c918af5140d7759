"""``RedlockNodes``, by the views of the real django-health-check."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import pytest
from django.test import AsyncClient, Client, override_settings
from django.urls import path
from health_check.views import HealthCheckView

from django_redlock import conf, redlock
from django_redlock.health import RedlockNodes
from tests.support.listening import memory
from tests.support.looked_at import status
from tests.support.passwords import SECRET, USER, with_passwords
from tests.support.waiting import eventually, waiting_for_silent_nodes

__all__ = ["memory"]

HEALTHY = {"RedlockNodes(alias='default')": "OK"}
NONE_VOTES = "Unavailable: no majority, no lock can be taken (2 of 5 nodes vote, 3 are needed)"


@contextmanager
def page(*checks: Any) -> Iterator[None]:
    """A site with the view of django-health-check, which makes these checks."""
    view = HealthCheckView.as_view(checks=checks or [RedlockNodes])
    urls: Any = ModuleType("urls")
    urls.urlpatterns = [path("health/", view)]
    with override_settings(ROOT_URLCONF=urls):
        yield


def asked() -> tuple[int, dict[str, str]]:
    """The status, and what it says of each check."""
    response = Client().get("/health/", headers={"accept": "application/json"})
    return response.status_code, response.json()


def test_it_is_healthy_while_a_majority_votes(memory):
    """Also with nodes that are down; where no lock can be taken it says which and why."""
    with page("django_redlock.health.RedlockNodes"):
        assert asked() == (200, HEALTHY)
        memory.down = {0, 1}
        assert asked() == (200, HEALTHY)
        memory.down = {0, 1, 2}
        status, said = asked()
        assert status == 500
        (text,) = said.values()
        assert text.startswith(f"{NONE_VOTES}; 3 of 5 nodes: down (memory://")
        memory.down = set()
        assert asked() == (200, HEALTHY)


def test_it_asks_the_nodes_of_its_alias():
    """Each alias has a check of its own; one that there is not is no answer."""
    aliases = {
        "default": {"NODES": ["memory://health-a"]},
        "payments": {"NODES": [f"memory://health-{each}" for each in "bcd"]},
    }
    payments = RedlockNodes, {"alias": "payments"}
    with override_settings(REDLOCK=aliases), page(RedlockNodes, payments):
        assert asked() == (200, HEALTHY | {"RedlockNodes(alias='payments')": "OK"})
        conf.backend("payments").group.down = {0, 1}  # type: ignore[attr-defined]
        status, said = asked()
        assert (status, said["RedlockNodes(alias='default')"]) == (500, "OK")
        assert "1 of 3 nodes vote" in said["RedlockNodes(alias='payments')"]


def test_an_alias_that_there_is_not_is_an_error(caplog):
    """The page is told no more than that; the log has the alias."""
    caplog.set_level(logging.ERROR, logger="health_check")
    with page((RedlockNodes, {"alias": "nobody"})):
        status, said = asked()
    assert status == 500
    assert set(said.values()) == {"Unknown Error: unknown error"}
    assert "nobody" in caplog.text


def test_a_view_in_an_event_loop_asks_as_well(memory):
    """The check blocks a thread of the loop's executor, and not the loop."""

    async def ask() -> int:
        response = await AsyncClient().get("/health/", query_params={"format": "json"})
        return int(response.status_code)

    with page():
        assert asyncio.run(ask()) == 200
        memory.down = {0, 1, 2}
        assert asyncio.run(ask()) == 500


@pytest.mark.parametrize("form", ["json", "text", "atom", "rss", "openmetrics"])
def test_no_form_of_the_page_has_a_secret(patient_nodes, form):
    """Nodes that refuse a password, and one that is not there: which and why, and no password."""
    with with_passwords(patient_nodes), page():
        said = Client().get("/health/", query_params={"format": form}).content.decode()
    assert SECRET not in said
    assert USER not in said
    if form != "openmetrics":
        assert "2 of 5 nodes vote, 3 are needed" in said
        assert f"127.0.0.1:{patient_nodes[2].port}/0" in said
        assert "127.0.0.1:1/0" in said


def test_the_names_of_locks_are_not_shown(memory):
    """It asks for one name at the most, and shows none."""
    with redlock("invoice:42"), page():
        memory.down = {0, 1, 2}
        assert "invoice" not in str(asked())


@pytest.mark.slow
def test_nodes_that_hang_are_waited_for_once(patient_nodes):
    """One request waits for them, as that of a lock does; a second one would take a minute."""
    with override_settings(REDLOCK={"default": patient_nodes.settings(NODE_TIMEOUT=3)}), page():
        eventually(lambda: status()[0] == 0, what="connected to every node")
        for index in range(3):
            patient_nodes.pause(index)
        with waiting_for_silent_nodes(conf.backend("default").group, requests=1):
            code, said = asked()
    assert code == 500
    assert f"{NONE_VOTES}; 3 of 5 nodes: no answer for " in str(said)

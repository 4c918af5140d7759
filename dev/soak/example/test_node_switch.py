"""The buttons of the demo that kill nodes, and its timetable: on real nodes."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from django.test import Client, override_settings

from django_redlock.testing import EmbeddedNodes
from example_project.demo import timetable as timetable_module
from example_project.demo.timetable import LEFT, REST, TROUBLES, Timetable, served
from tests.example.conftest import BROWSER, visitor

from .running_demo import demo_home

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nodes", "show")]
PATHS = ("/nodes/kill/", "/nodes/hang/", "/nodes/bring-back/")


@pytest.fixture
def real() -> Iterator[EmbeddedNodes]:
    """Five real nodes."""
    with EmbeddedNodes(5) as servers:
        yield servers


def states(nodes: EmbeddedNodes) -> str:
    """A letter for each node: runs, hangs or is dead."""
    return "".join("d" if not node.is_running else "h" if node.is_paused else "r" for node in nodes)


def test_without_the_demo_there_are_no_buttons():
    """A site that no demo runs has neither the buttons nor what they do; one that ended says so."""
    client = visitor()
    assert "Kill a node" not in client.get("/").text
    assert [client.post(path).status_code for path in PATHS] == [404] * 3
    with override_settings(DEMO_SWITCH="/gone"):
        page = client.post(PATHS[0], follow=True).text
    assert "The demo does not answer. Nothing was done." in page


def test_the_buttons_kill_a_node_and_bring_it_back(real):
    """They are on the first page, and do to a real node what they say; a POST needs the token."""
    client = visitor()
    with demo_home() as home, served(home / "switch", Timetable(real).answer):
        with override_settings(DEMO_SWITCH=str(home / "switch")):
            page = client.get("/").text
            assert all(f'formaction="{path}"' in page for path in PATHS)
            strict = Client(enforce_csrf_checks=True, headers={"accept": BROWSER})
            for path in PATHS:
                assert strict.post(path).status_code == 403
                assert strict.get(path).status_code == 405
            seen = []
            for path in (PATHS[0], PATHS[2], PATHS[2], PATHS[1], PATHS[2]):
                page = client.post(path, follow=True).text
                seen.append(states(real))
        assert seen == ["drrrr", "rrrrr", "rrrrr", "hrrrr", "rrrrr"]
        assert "Node 1 hung, and goes on." in page


def test_what_a_visitor_has_left_is_put_right(real, monkeypatch):
    """Some time after the last press all nodes are brought back, and the clock begins anew."""
    clock = [0.0]
    monkeypatch.setattr(timetable_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    timetable = Timetable(real)

    def at(moment: float) -> str:
        clock[0] = moment
        timetable.look()
        return states(real)

    for wanted in ("kill", "hang", "kill"):
        timetable.answer(wanted)
    assert at(LEFT - 1) == "dhdrr"
    assert "no node fail for 1 s" in timetable.answer("outlook")
    timetable.answer("bring-back")  # somebody is there after all
    assert at(2 * LEFT - 2) == "rhdrr"
    assert at(2 * LEFT - 1) == "rrrrr"
    assert at(2 * LEFT - 1 + TROUBLES[0].after) == "drrrr"
    timetable.answer("bring-back")
    now = 2 * LEFT - 1 + TROUBLES[0].after + REST
    assert at(now) == "rrrrr"
    seen = []
    for trouble in TROUBLES:
        now += trouble.after
        seen.append(at(now))
    assert seen == ["drrrr", "rrrrr", "hrrrr", "rrrrr"]

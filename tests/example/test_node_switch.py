"""The buttons of the demo that kill nodes: on real nodes, over the demo's own socket."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.test import Client, override_settings

from django_redlock.testing import EmbeddedNodes
from example_project.demo import timetable as timetable_module
from example_project.demo.facts import Traffic
from example_project.demo.switch import Switch
from example_project.demo.timetable import LEFT, REST, TROUBLES, Timetable

from .running_demo import demo_home
from .visitors import BROWSER, visitor

pytestmark = [pytest.mark.nightly, pytest.mark.django_db, pytest.mark.usefixtures("nodes", "show")]
PATHS = ("/nodes/kill/", "/nodes/bring-back/", "/nodes/hang/")


@pytest.fixture(scope="module")
def servers() -> Iterator[EmbeddedNodes]:
    """Five real nodes."""
    with EmbeddedNodes(5) as servers:
        yield servers


@pytest.fixture
def real(servers: EmbeddedNodes) -> EmbeddedNodes:
    """Five real nodes, and all of them run."""
    for node in servers:
        node.kill()
        node.start()
    return servers


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory for a socket, whose path must be short."""
    with demo_home() as home:
        yield home


@contextmanager
def served(home: Path, carry_out: Callable[[str], str]) -> Iterator[None]:
    """The site in a demo, which serves its switch in a thread."""
    over = threading.Event()

    def serve() -> None:
        while not over.is_set():
            switch.serve(0.05, carry_out)

    with Switch(home / "switch") as switch:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            with override_settings(DEMO_SWITCH=str(home / "switch")):
                yield
        finally:
            over.set()
            thread.join()


def states(nodes: EmbeddedNodes) -> str:
    """A letter for each node: runs, hangs or is dead."""
    return "".join("d" if not node.is_running else "h" if node.is_paused else "r" for node in nodes)


# -- the site -------------------------------------------------------------------------------------


def test_without_the_demo_there_are_no_buttons():
    """A site that no demo runs has neither the buttons nor their addresses."""
    client = visitor()
    page = client.get("/").text
    assert "Kill a node" not in page
    assert "/nodes/" not in page
    for path in PATHS:
        assert [client.post(path).status_code, client.get(path).status_code] == [404, 404]


def test_the_buttons_kill_a_node_and_bring_it_back(real, home):
    """They are on the first page, and do to a real node what they say."""
    timetable, client = Timetable(real, Traffic(), time.monotonic()), visitor()
    with served(home, timetable.carry_out):
        page = client.get("/").text
        assert all(f'formaction="{path}"' in page for path in PATHS)
        killed = client.post(PATHS[0], follow=True)
        assert killed.redirect_chain == [("/", 302)]
        assert "Node 1 was killed." in killed.text
        assert states(real) == "drrrr"
        assert "Node 1 is back, empty" in client.post(PATHS[1], follow=True).text
        assert states(real) == "rrrrr"
        assert "All nodes run." in client.post(PATHS[1], follow=True).text
        assert "Node 1 hangs: it keeps its connections" in client.post(PATHS[2], follow=True).text
        assert states(real) == "hrrrr"
        assert "Node 1 hung, and goes on." in client.post(PATHS[1], follow=True).text
        assert states(real) == "rrrrr"


def test_the_buttons_need_the_form_of_the_site(home):
    """A POST without the CSRF token is refused, and so is a GET; nothing is asked for."""
    asked: list[str] = []

    def carry_out(wanted: str) -> str:
        asked.append(wanted)
        return "done"

    strict = Client(enforce_csrf_checks=True, headers={"accept": BROWSER})
    with served(home, carry_out):
        for path in PATHS:
            assert strict.post(path).status_code == HTTPStatus.FORBIDDEN
            assert strict.get(path).status_code == HTTPStatus.METHOD_NOT_ALLOWED
    assert asked == []


def test_a_demo_that_has_ended_is_told_of(home):
    """A visitor who presses a button then is told that nothing was done."""
    with served(home, str), override_settings(DEMO_SWITCH=str(home / "gone")):
        page = visitor().post(PATHS[0], follow=True)
    assert "The demo does not answer. Nothing was done." in page.text


# -- the timetable --------------------------------------------------------------------------------


def test_what_a_visitor_has_left_is_put_right(real, monkeypatch):
    """Some time after the last press all nodes are brought back, and the clock goes on."""
    clock = [0.0]
    monkeypatch.setattr(timetable_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    traffic = Traffic(began=0.0)
    timetable = Timetable(real, traffic, 0.0)
    for wanted in ("kill", "hang", "kill"):
        timetable.carry_out(wanted)
    timetable.look(LEFT - 1)
    assert states(real) == "dhdrr"
    assert "for 1 s, it brings such nodes back" in timetable.outlook(LEFT - 1)[1]
    clock[0] = LEFT - 1
    timetable.carry_out("bring back")  # somebody is there after all
    for now in (LEFT, 2 * LEFT - 2):
        timetable.look(now)
    assert states(real) == "rhdrr"
    timetable.look(2 * LEFT - 1)
    assert states(real) == "rrrrr"
    told = [line.partition("s  ")[2] for line in traffic.log[-2:]]
    assert told == [f"the demo brings node {n} back: its visitor has left" for n in (2, 3)]
    # Those that were killed do not vote yet: no other node fails meanwhile.
    assert timetable.rests(2 * LEFT - 2 + REST)
    timetable.look(2 * LEFT - 2 + REST)
    assert states(real) == "rrrrr"
    timetable.look(2 * LEFT - 1 + REST + TROUBLES[0].at)
    assert states(real) == "rdrrr"

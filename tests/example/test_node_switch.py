"""The buttons of the demo that kill nodes: on real nodes, over the demo's own socket."""

from __future__ import annotations

import html
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.test import Client, override_settings

from django_redlock.testing import EmbeddedNodes
from example_project.demo import facts
from example_project.demo import timetable as timetable_module
from example_project.demo.facts import OUTAGE, Traffic
from example_project.demo.servers import Servers
from example_project.demo.stage import Stage
from example_project.demo.switch import Switch
from example_project.demo.timetable import LEFT, PERIOD, REST, TROUBLES, Timetable

from .running_demo import demo_home
from .visitors import BROWSER, visitor

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("nodes", "show")]
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


def test_what_is_no_request_harms_nothing(home):
    """Who says nothing, too much, or something else: the next one is served."""
    heard: list[str] = []

    def carry_out(wanted: str) -> str:
        heard.append(wanted)
        return Timetable(EmbeddedNodes(0), Traffic(), 0.0).carry_out(wanted)

    with served(home, carry_out):
        for sent in (None, b"\xff\xfe\n", b"x" * 5000 + b"\n", b"\n", b"rm -rf /\n"):
            with closing(socket.socket(socket.AF_UNIX)) as asker:
                asker.settimeout(20)
                asker.connect(str(home / "switch"))
                if sent is None:
                    continue
                asker.sendall(sent)
                asker.shutdown(socket.SHUT_WR)
                assert asker.recv(100) == b"There is no such button.\n"
        assert "No node is left" in visitor().post(PATHS[0], follow=True).text
    assert max(map(len, heard)) <= 100


# -- the timetable --------------------------------------------------------------------------------


def test_by_the_clock_two_nodes_fail_one_after_the_other(real):
    """One is killed and comes back, one hangs and goes on; then it begins again."""
    timetable = Timetable(real, Traffic(), 0.0)
    seen = []
    for now in [0.0, 10, 24, 25, 45, 54, 55, PERIOD + 10]:
        timetable.look(now)
        seen.append(states(real))
    assert seen == ["rrrrr", "rdrrr", "rdrrr", "rrrrr", "rrrhr", "rrrhr", "rrrrr", "rdrrr"]


def test_the_clock_does_not_fight_with_a_visitor(real, monkeypatch):
    """While a visitor's node is down, and a moment longer, no other node fails by the clock."""
    clock = [0.0]
    monkeypatch.setattr(timetable_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    traffic = Traffic(began=0.0)
    timetable = Timetable(real, traffic, 0.0)

    def states_at(now: float) -> str:
        clock[0] = now
        timetable.look(now)
        return states(real)

    assert states_at(9.0) == "rrrrr"
    assert timetable.carry_out("kill") == "Node 1 was killed."
    seen = [states_at(now) for now in (10.0, 30.0, 150.0)]
    timetable.carry_out("bring back")
    seen += [states_at(now) for now in (151.0, 150.0 + REST - 1)]
    assert seen == 3 * ["drrrr"] + 2 * ["rrrrr"]
    assert states_at(151.0 + REST) == "rdrrr"
    told = [line.partition("s  ")[2] for line in traffic.log]
    assert told[:2] == [
        "a visitor kills node 1 (SIGKILL)",
        "a visitor brings node 1 back, empty: no vote yet",
    ]


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


def test_the_outlook_says_what_happens_next(real, monkeypatch):
    """What the clock does, and when; while visitors are at the nodes, when it goes on."""
    clock = [4.0]
    monkeypatch.setattr(timetable_module, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    timetable = Timetable(real, Traffic(), 0.0)
    timetable.look(4.0)
    every, told = timetable.outlook(4.0)
    assert all(trouble.words in every for trouble in TROUBLES)
    assert f"every {PERIOD:g} seconds" in every
    assert told == "Next it kills node 2, in 6 s."
    timetable.look(10.0)
    assert timetable.outlook(10.0)[1] == "Next it brings node 2 back, in 15 s."
    clock[0] = 11.0
    timetable.carry_out("bring back")
    assert timetable.outlook(12.5)[1] == (
        "A button was pressed: it does nothing for 19 s. Then it brings node 2 back."
    )
    timetable.carry_out("hang")
    assert timetable.outlook(21.0)[1] == (
        "It does nothing while a node is as a button has left it. If nobody presses a button "
        f"for {LEFT - 10:g} s, it brings such nodes back and goes on."
    )


def test_the_pages_tell_the_outlook(home):
    """The demo writes it into a file, which a site without a demo does not have."""
    stage = Stage(EmbeddedNodes(0), Servers(home), home, {}, None, print)
    with override_settings(DEMO_TIMETABLE=str(home / "timetable")):
        for sentences in ([], ["It does so.", "Next it kills <2>."]):
            if sentences:
                stage.publish(sentences)
            for path in ("/", "/now/"):
                told = "".join(f"<p>{html.escape(each)}</p>" for each in sentences)
                assert f'<div id="outlook" class="hint" data-live>{told}</div>' in (
                    visitor().get(path).text
                )
    assert [each.name for each in home.iterdir()] == ["timetable"]


def test_a_visitor_may_bring_back_what_failed_by_the_clock(real):
    """The clock then finds the node at work, and leaves it so: its locks are not lost."""
    timetable = Timetable(real, Traffic(), 0.0)
    timetable.look(10.0)
    assert timetable.carry_out("bring back").startswith("Node 2 is back")
    process = real[1].pid
    timetable._rests_until = 0.0
    timetable.look(25.0)
    assert real[1].pid == process

    timetable.look(45.0)
    assert states(real) == "rrrhr"
    assert timetable.carry_out("bring back") == "Node 4 hung, and goes on."
    timetable._rests_until = 0.0
    timetable.look(55.0)
    assert states(real) == "rrrrr"


def test_all_nodes_may_be_killed_and_all_come_back(real):
    """One after the other, those that run before one that hangs; then there is none left."""
    real.pause(0)
    timetable = Timetable(real, Traffic(), 0.0)
    answers = [timetable.carry_out("kill") for _ in range(6)]
    assert answers[:-1] == [f"Node {n} was killed." for n in (2, 3, 4, 5, 1)]
    assert answers[-1] == "No node is left that could be killed."
    assert timetable.carry_out("hang") == "No node is left that could hang."
    for _ in range(5):
        assert "is back" in timetable.carry_out("bring back")
    assert states(real) == "rrrrr"
    answers = [timetable.carry_out("hang") for _ in range(6)]
    assert [answer.split(":")[0] for answer in answers[:-1]] == [
        f"Node {n} hangs" for n in range(1, 6)
    ]
    assert answers[-1] == "No node is left that could hang."
    for n in range(1, 6):
        assert timetable.carry_out("bring back") == f"Node {n} hung, and goes on."


def test_refusals_while_visitors_have_killed_a_majority_are_explained(monkeypatch):
    """A 503 counts as unexplained only where no node was lost and no visitor had killed so many."""
    clock = [100.0]
    monkeypatch.setattr(facts, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    traffic = Traffic(began=0.0)
    for now in (110.0, 110.5, 111.0, 200.0):
        clock[0] = now
        traffic.lack_majority()
    assert traffic.lacks == [(110.0, 111.0), (200.0, 200.0)]
    traffic.unavailable = [108.0, 110.2, 111.0 + OUTAGE, 150.0, 200.1]
    assert traffic.unexplained() == 2

"""The bench measures what it says: its parts run, its report renders, its verdicts can be bad."""

from __future__ import annotations

import json
import re
import select
import socket
import subprocess
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

import pytest

from django_redlock.testing import EmbeddedNodes
from tests.bench import goals, report
from tests.bench.__main__ import PARTS
from tests.bench.cast import Block
from tests.bench.delay import Delay
from tests.bench.goals import Goal, Verdict
from tests.bench.results import Result
from tests.bench.stage import HUNG, TINY, Stage
from tests.bench.turns import Spread, failures, ratio, spread

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs/explanation/performance-figures.md"
SECONDS = 400.0


@pytest.fixture(scope="module")
def measured(tmp_path_factory) -> Path:
    """A directory with the report of a tiny run, in all its forms."""
    home: Path = tmp_path_factory.mktemp("bench")
    (home / "README.md").write_text(f"above\n{report.BEGIN}\n| old |\n{report.END}\nbelow\n")
    arguments = ["--effort", "tiny", "--json", f"{home}/out.json"]
    arguments += ["--markdown", f"{home}/out.md", "--readme", f"{home}/README.md"]
    ended = subprocess.run(
        [sys.executable, "-m", "tests.bench", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert ended.returncode == 0, ended.stderr
    (home / "terminal").write_text(ended.stdout)
    return home


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_every_part_runs(measured):
    """Each part measures our clients, and nobody's locks of ours fail when all nodes are well."""
    parts = json.loads((measured / "out.json").read_text())["parts"]
    assert set(parts) == set(PARTS)
    for name, part in parts.items():
        assert part["rows"], name
        assert not [who for who in part["missing"] if who.startswith("django-redlock")], name
        for row in part["rows"]:
            if row[""].startswith("django-redlock"):
                assert row["failed"] == "0", (name, row)
                assert None not in row.values(), (name, row)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_every_goal_is_for_a_figure_that_is_measured(measured):
    """No goal is missed in silence because no part has a figure of its name."""
    parts = json.loads((measured / "out.json").read_text())["parts"]
    figures = {name for part in parts.values() for name in part["figures"]}
    tiny = f"{TINY.tasks[-1]} tasks"
    assert {goal.figure.replace("1000 tasks", tiny) for goal in goals.GOALS} <= figures


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_every_form_of_the_report_has_every_part(measured):
    """The terminal, the page and the README show what was measured."""
    parts = json.loads((measured / "out.json").read_text())["parts"]
    page, terminal = (measured / "out.md").read_text(), (measured / "terminal").read_text()
    for part in parts.values():
        assert f"\n## {part['title']}\n" in page
        assert part["title"] in terminal
    readme = (measured / "README.md").read_text()
    assert readme.startswith("above\n")
    assert readme.endswith("below\n")
    assert "| old |" not in readme
    assert "| threads ÷ sockets | " in readme


def test_the_readme_repeats_the_page():
    """The figures of the README and those of the page "Performance" are of one run."""
    text = (ROOT / "README.md").read_text().split(report.BEGIN)[1].split(report.END)[0]
    rows = re.findall(r"^\| (.+?) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)[2:]
    assert len(rows) > 10
    page = FIGURES.read_text()
    for figure, reached, goal in rows:
        assert f"| {figure} | {reached} | {goal} |" in page


def test_a_goal_can_be_missed():
    """Beyond the bound a goal is missed, at the bound it is met, unmeasured it is neither."""
    most, least = Goal("a", 1.5), Goal("a", 10, least=True)
    said = [
        Verdict(goal, None if reached is None else Spread(reached, 0, 99)).words
        for goal, reached in ((most, 1.5), (most, 1.6), (least, 10), (least, 9.9), (most, None))
    ]
    assert said == ["met", "MISSED", "met", "MISSED", "not measured"]


def test_goals_are_judged_by_the_figures_of_all_parts(monkeypatch):
    """A verdict looks the figure up by its name, and finds none where it was not measured."""
    monkeypatch.setattr(goals, "GOALS", (Goal("a", 1), Goal("b", 1)))
    result = Result("part", figures={"a": Spread(2, 2, 2)})
    assert [verdict.words for verdict in goals.judge([result])] == ["MISSED", "not measured"]


def test_a_ratio_is_of_neighbours():
    """Readings are compared turn by turn; a turn in which one of the two has none is left out."""
    assert ratio([2, 40, None, 6], [1, 10, 5, 3]) == Spread(2, 2, 3)
    assert ratio([], [1]) is None
    assert spread([None]) is None


def test_what_failed_is_told():
    """The count of failures, of how many, and the first reason; a block that has none says 0."""
    good = Block(1.0, 2.0, 0.1, 0.1, 5, 0, "")
    bad = Block(None, None, 0.1, 0.1, 0, 3, "TimeoutError: too late")
    assert failures([good, bad]) == "3 of 8: TimeoutError"
    assert failures([good]) == "0"
    assert bad.rate is None


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        (None, "–"),
        ("3 of 8", "3 of 8"),
        (1234.4, "1,234"),
        (12.34, "12.3"),
        (1.234, "1.23"),
        (Spread(1.5, 1.25, 2.0), "1.50 (1.25–2)"),
        (Spread(1.0, 1.0, 1.0), "1"),
    ],
)
def test_a_cell_is_short(cell, text):
    """Three digits, the quartiles in brackets, a dash for what was not measured."""
    assert report.words(cell) == text


def test_the_delay_delays_both_ways():
    """What goes through arrives whole and in order, later by the delay on each way."""
    with socket.create_server(("127.0.0.1", 0)) as node:
        delay = Delay([node.getsockname()[1]], 0.05)
        until, end = socket.socketpair()
        thread = threading.Thread(target=delay.run, args=(until,))
        thread.start()
        try:
            with socket.create_connection(("127.0.0.1", delay.ports[0]), 5) as client:
                start = time.perf_counter()
                client.sendall(b"one")
                served, _ = node.accept()
                served.settimeout(5)
                client.settimeout(5)
                with served:
                    assert served.recv(99) == b"one"
                    there = time.perf_counter() - start
                    served.sendall(b"two")
                    assert client.recv(99) == b"two"
                    back = time.perf_counter() - start - there
                    assert there >= 0.05
                    assert back >= 0.05
                    client.close()
                    assert select.select([served], [], [], 5)[0]
                    assert served.recv(99) == b""
        finally:
            end.sendall(b"!")
            thread.join(5)
            delay.close()
            until.close()
            end.close()
        assert not thread.is_alive()


def test_the_stage_makes_a_node_hang(monkeypatch):
    """Within the block a node hangs; after it, it answers."""
    monkeypatch.setattr(Stage, "admit", lambda _: None)  # it pins this process and waits
    with EmbeddedNodes(HUNG + 1) as nodes:
        stage = Stage(nodes, TINY)
        with stage.hung():
            assert nodes[HUNG].is_paused
        assert not nodes[HUNG].is_paused
        with closing(nodes[HUNG].client()) as client:
            assert client.ping()

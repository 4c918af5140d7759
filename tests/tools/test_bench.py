"""The bench compares what is alike, its figures are of one run, and it finds a slower revision."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from benchmarks import answers, goals, report
from benchmarks.__main__ import PARTS
from benchmarks.parts.healthy import SHORT
from benchmarks.programs import sockets, waiting_sockets
from benchmarks.programs.sockets import Sockets
from benchmarks.programs.waiting_sockets import WaitingSockets
from benchmarks.revisions import compare, verdict
from benchmarks.stage import TINY
from benchmarks.turns import Spread
from django_redlock.testing import EmbeddedNodes
from tests.support.loops import group_of, keys_on, template
from tests.support.waiting import eventually

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 900.0  # for what hangs


# One test, for processes of a parallel run share no fixture, and this takes minutes.
@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_every_part_runs_and_every_report_has_it(tmp_path):
    """A tiny run measures all that is asked for, and the terminal, page and README show it."""
    halves = list(PARTS)[::2], list(PARTS)[1::2]  # at once: most of their time is waiting
    with ThreadPoolExecutor(len(halves)) as pool:
        reports = list(pool.map(measured, [tmp_path / "0", tmp_path / "1"], halves))
    parts = {name: part for each in reports for name, part in each.parts.items()}
    every_part_runs(parts)
    every_goal_and_answer_is_for_a_figure_that_is_measured(parts)
    every_form_of_the_report_has_every_part(reports)


class Reports(NamedTuple):
    """What a run has written."""

    parts: dict[str, Any]
    terminal: str
    page: str
    readme: str


def measured(home: Path, names: list[str]) -> Reports:
    """Measure these parts, tiny, and return the report in all its forms."""
    home.mkdir()
    readme = home / "README.md"
    readme.write_text(f"above\n{report.BEGIN}\n| old |\n{report.END}\nbelow\n")
    arguments = ["--effort", "tiny", "--only", *names, "--json", f"{home}/out.json"]
    arguments += ["--markdown", f"{home}/out.md"]
    arguments += ["--readme", f"{readme}"] * ("unpinned" in names)
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert ended.returncode == 0, ended.stderr
    parts = json.loads((home / "out.json").read_text())["parts"]
    return Reports(parts, ended.stdout, (home / "out.md").read_text(), readme.read_text())


def every_part_runs(parts: dict[str, Any]) -> None:
    """Each part measures our clients, and nobody's locks of ours fail when all nodes are well."""
    assert set(parts) == set(PARTS)
    for name, part in parts.items():
        assert part["rows"], name
        assert not [who for who in part["missing"] if who.startswith("django-redlock")], name
        for row in part["rows"]:
            if row[""].startswith("django-redlock"):
                assert row["failed"] == "0", (name, row)
                assert None not in row.values(), (name, row)
    assert None not in [row["p95, µs"] for row in parts["unpinned"]["rows"]]


def every_goal_and_answer_is_for_a_figure_that_is_measured(parts: dict[str, Any]) -> None:
    """No goal is missed in silence, no answer has a gap, because no part has such a figure."""
    figures = {name for part in parts.values() for name in part["figures"]}
    few, many = TINY.waiters
    tiny = {
        "1000 tasks": f"{TINY.tasks[-1]} tasks",
        "1,000 leases": f"{3 * TINY.leases / TINY.ttl:.0f} leases",
    }
    tiny |= {"50 waiters ÷ 8": f"{many} waiters ÷ {few}"}
    tiny |= {"50 waiters:": f"{many} waiters:", "8 waiters:": f"{few} waiters:"}
    wanted = [goal.figure for goal in goals.GOALS]
    wanted += [figure for question in answers.QUESTIONS for figure in question.figures]
    for name in wanted:
        small = [name.replace(*words) for words in tiny.items() if words[0] in name]
        assert (small or [name])[0] in figures


def every_form_of_the_report_has_every_part(reports: list[Reports]) -> None:
    """The terminal, the page and the README show what was measured."""
    for each in reports:
        for part in each.parts.values():
            assert f"\n## {part['title']}\n" in each.page
            assert part["title"] in each.terminal
    (whole,) = (each for each in reports if "unpinned" in each.parts)
    assert whole.readme.startswith("above\n")
    assert whole.readme.endswith("below\n")
    assert "| old |" not in whole.readme
    table = short_table(whole.readme)
    head, rule, *rows, empty, sentence = table.splitlines()
    assert head == "| client | p50, ms | p95, ms |"
    assert rule == "| --- | ---: | ---: |"
    assert re.fullmatch(r"\| django-redlock \| [\d.]+ \| [\d.]+ \|", rows[0])
    missing = whole.parts["unpinned"]["missing"]
    assert len(rows) == len(SHORT) - len({client.label for client in SHORT.values()} & set(missing))
    assert empty == ""
    assert sentence.endswith("by `make bench-figures`.")
    assert table in whole.page
    pages = "".join(each.page for each in reports)
    assert re.search(r"^\| threads ÷ sockets \| .* \| (met|MISSED) \|$", pages, re.MULTILINE)


def test_the_yardstick_does_the_same_work_on_the_wire():
    """The sockets lock and free what our threads do: the same keys, scripts and (nearly) bytes."""
    with EmbeddedNodes(3) as nodes:
        nodes.settings(RESTART_GUARD=False)
        by_hand = Sockets(nodes.urls, "redlock:", 30)
        ours = template(group_of(nodes.urls, timeout=10))
        with ours("warm"):
            pass
        styles: list[tuple[Callable[[str], Any], Callable[[Any], object]]] = [
            (by_hand.acquire, by_hand.release),
            (lambda name: ours(name).acquire(), lambda lease: lease.release()),
        ]
        bytes_of = []
        for acquire, release in styles:
            lease = acquire("name")
            eventually(lambda: keys_on(nodes) == [["redlock:lock:name"]] * 3)
            release(lease)
            eventually(lambda: keys_on(nodes) == [[]] * 3)
            before = _received(nodes, 0)
            for number in range(50):
                release(acquire(f"name:{number}"))
            bytes_of.append(_received(nodes, 300 + before[0])[1] - before[1])
        by_hand.close()
        assert bytes_of[0] == pytest.approx(bytes_of[1], rel=0.1)


def _received(nodes: EmbeddedNodes, least: int) -> tuple[int, int]:
    """Scripts that all nodes have run, once they are so many; and bytes that they were sent."""
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(node.client())) for node in nodes]

        def scripts() -> int:
            return sum(each.info("commandstats")["cmdstat_evalsha"]["calls"] for each in clients)

        # Seldom, for these questions are bytes that the nodes are sent, too.
        ran = eventually(lambda: (count := scripts()) >= least and count, every=0.1)
        return ran, sum(each.info("stats")["total_net_input_bytes"] for each in clients)


def short_table(readme: str) -> str:
    """What stands between the two marks of the README."""
    return readme.split(report.BEGIN)[1].split(report.END, maxsplit=1)[0].strip()


# -- yardsticks of waiting and of many tasks ------------------------------------------------------


@pytest.fixture(scope="module")
def nodes() -> Iterator[EmbeddedNodes]:
    """Five nodes, which vote at once."""
    with EmbeddedNodes(5) as nodes:
        yield nodes


@pytest.fixture
def by_hand(nodes, monkeypatch) -> Iterator[Callable[[], WaitingSockets]]:
    """Make callers with sockets of their own, who are woken and do not look meanwhile.

    A caller that looks goes to the end of the queue; one that is late for its reservation is
    overtaken.
    """
    monkeypatch.setattr(waiting_sockets, "LOOK", 20.0)
    monkeypatch.setattr(waiting_sockets, "NEWS", 60_000)
    monkeypatch.setattr(sockets, "RESERVED", 10_000)
    with ExitStack() as stack:

        def make() -> WaitingSockets:
            return stack.enter_context(closing(WaitingSockets(nodes.urls, "redlock:", 30)))

        yield make


def waiting(nodes: EmbeddedNodes) -> int:
    """How many connections are blocked on a list of any node."""
    return sum(info["blocked_clients"] for info in infos(nodes, "clients"))


def sent(nodes: EmbeddedNodes) -> dict[str, int]:
    """How many commands of the protocol the nodes were sent, by kind."""
    stats = infos(nodes, "commandstats")
    return {
        kind: sum(each.get(f"cmdstat_{kind}", {}).get("calls", 0) for each in stats)
        for kind in ("evalsha", "blpop")
    }


def infos(nodes: EmbeddedNodes, section: str) -> list[dict[str, Any]]:
    """What all nodes say about themselves."""
    with ExitStack() as stack:
        clients = [stack.enter_context(closing(node.client())) for node in nodes]
        return [client.info(section) for client in clients]


# -- two revisions --------------------------------------------------------------------------------


TURNS = (10, 30, 60)  # the next where a verdict is "unclear", which says that more may tell

# What a careless change might do to each lock: this needs nothing of the package's own modules.
SLOWER = """
import time

def _slowly(self, *args, **kwargs):
    time.sleep(0.025)
    return _quickly(self, *args, **kwargs)

_quickly = type(redlock).__call__
type(redlock).__call__ = _slowly
"""


@pytest.mark.parametrize(
    ("ratio", "turns", "said"),
    [
        (Spread(1.0, 0.97, 1.03), 30, "≤ 1.03"),
        (Spread(1.03, 1.03, 1.03), 30, "≤ 1.03"),
        (Spread(1.04, 1.04, 1.04), 30, "SLOWER"),
        (Spread(1.10, 1.08, 1.12), 30, "SLOWER"),
        (Spread(1.10, 0.98, 1.22), 30, "unclear"),  # 3 % are within the noise
        (Spread(1.0, 0.8, 1.2), 30, "unclear"),
        (Spread(1.10, 0.98, 1.22), 300, "SLOWER"),  # more turns, less noise
        (Spread(0.5, 0.4, 0.6), 30, "≤ 1.03"),
        (Spread(9.0, 9.0, 9.0), 4, "unclear"),
        (Spread(20.0, 8.0, 40.0), 10, "SLOWER"),  # how much slower is unclear, that it is is not
        (Spread(0.05, 0.02, 0.1), 10, "≤ 1.03"),
        (None, 0, "not measured"),
    ],
)
def test_slower_is_what_the_quartiles_leave_no_doubt_of(ratio, turns, said):
    """More than 3 % beyond the noise is slower, all below is not, and noise is said to be noise."""
    assert verdict.speed(ratio, turns) == said


def compared(home: Path, turns: int) -> tuple[Any, dict[tuple[str, str], str]]:
    """How the comparison with the revision in a folder ends, and its verdicts."""
    file = home / "out.json"
    arguments = ["--against", str(ROOT), "--of", str(home), "--effort", "tiny"]
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments, "--turns", str(turns), "--json", file],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert file.exists(), ended.stderr
    rows = json.loads(file.read_text())["parts"]["against"]["rows"]
    return ended, {(row["how"], row[""]): row["verdict"] for row in rows}


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_a_slower_revision_is_found(tmp_path):
    """A made-up change that sleeps in each lock makes the exit code 1; a lost module does, too."""
    copy = tmp_path / "django_redlock"
    shutil.copytree(ROOT / "django_redlock", copy)
    (copy / "__init__.py").write_text((copy / "__init__.py").read_text() + SLOWER)
    shutil.rmtree(copy / "views")
    for turns in TURNS:
        ended, verdicts = compared(tmp_path, turns)
        ways = {verdicts["unpinned", name] for name in ("with", "async with")}
        assert ways <= {"SLOWER", "unclear"}
        if ways == {"SLOWER"}:
            break
    else:
        pytest.fail("a lock that sleeps is not found in so many turns")
    assert ended.returncode == 1, ended.stderr
    assert verdicts["unpinned", "@single_flight"] == "FAILS"
    assert {name for _, name in verdicts} == {scenario.label for scenario in compare.SCENARIOS}

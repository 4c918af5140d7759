"""The bench compares what is alike, its figures are of one run, and it finds a slower revision."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from dev.benchmarks import against, report
from dev.benchmarks.__main__ import PARTS
from dev.benchmarks.measure import Spread
from dev.benchmarks.programs.sockets import Sockets
from dev.benchmarks.stage import TINY
from django_redlock.testing import EmbeddedNodes
from tests.support.loops import group_of, keys_on, template
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[3]
SECONDS = 1800.0  # for what hangs


def bench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """How the benchmark ends, tried out."""
    command = [sys.executable, "-m", "dev.benchmarks", "--effort", "tiny", *arguments]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS
    )


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_every_part_runs_and_every_report_has_it(tmp_path):
    """A run measures our clients in each part; terminal and page show it, without gaps."""
    page = tmp_path / report.PAGE
    page.parent.mkdir(parents=True)
    ended = bench("--figures", tmp_path, "--json", tmp_path / "out.json")
    assert ended.returncode == 0, ended.stderr
    parts: dict[str, Any] = json.loads((tmp_path / "out.json").read_text())["parts"]
    assert list(parts) == list(PARTS)
    for name, part in parts.items():
        assert part["rows"], name
        assert not [who for who in part["missing"] if who.startswith("django-redlock")], name
        for row in part["rows"]:
            if row[""].startswith("django-redlock"):
                assert row["failed"] == "0", (name, row)
                assert None not in row.values(), (name, row)
        assert f"\n## {part['title']}\n" in page.read_text()
        assert f"\n## {part['title']}\n" in ended.stdout
    figures = {name for part in parts.values() for name in part["figures"]}
    for name in re.findall(r"\{(.+?)\}", "".join(report.ANSWERS.values())):
        few = name.replace("1000 tasks", f"{TINY.tasks[-1]} tasks")
        assert few.replace("8 waiters", f"{TINY.waiters[0]} waiters") in figures
    table = re.search(r"^\| django-redlock \| [\d.]+ \| [\d.]+ \|$", page.read_text(), re.MULTILINE)
    assert table


def test_the_yardstick_does_the_same_work_on_the_wire():
    """The sockets lock and free what our threads do: the same keys, scripts and (nearly) bytes."""
    with EmbeddedNodes(3) as nodes:
        nodes.settings(RESTART_GUARD=False)
        by_hand = Sockets(nodes.urls, "redlock:")
        ours = template(group_of(nodes.urls, timeout=10))
        with ours("warm"):
            pass
        styles: list[tuple[Callable[[str], Any], Callable[[Any], object]]] = [
            (lambda name: by_hand.acquire(name, 30), by_hand.release),
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
    assert against.speed(ratio, turns) == said


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_a_slower_revision_is_found(tmp_path):
    """A made-up change that sleeps in each lock makes the exit code 1; a lost module does, too."""
    copy, file = tmp_path / "django_redlock", tmp_path / "out.json"
    shutil.copytree(ROOT / "django_redlock", copy)
    (copy / "__init__.py").write_text((copy / "__init__.py").read_text() + SLOWER)
    shutil.rmtree(copy / "views")
    for turns in TURNS:
        given = ("--against", ROOT, "--of", tmp_path, "--turns", f"{turns}", "--json", file)
        ended = bench(*given)
        assert file.exists(), ended.stderr
        rows = json.loads(file.read_text())["parts"]["against"]["rows"]
        verdicts = {(row["how"], row[""]): row["verdict"] for row in rows}
        ways = {verdicts["unpinned", name] for name in ("with", "async with")}
        assert ways <= {"SLOWER", "unclear"}
        if ways == {"SLOWER"}:
            break
    else:
        pytest.fail("a lock that sleeps is not found in so many turns")
    assert ended.returncode == 1, ended.stderr
    assert verdicts["unpinned", "@single_flight"] == "FAILS"
    assert {name for _, name in verdicts} == {scenario.label for scenario in against.SCENARIOS}

"""The bench measures what it says: its parts run, its report renders, its verdicts can be bad."""

from __future__ import annotations

import json
import multiprocessing
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks import answers, goals, report
from benchmarks.__main__ import PARTS
from benchmarks.clients import THREADS, Client
from benchmarks.goals import Goal, Verdict
from benchmarks.parts import handover
from benchmarks.parts.crowds import Turn, Turns, no_answer, quantile
from benchmarks.parts.delay import Delay
from benchmarks.parts.healthy import SHORT, milliseconds
from benchmarks.processes import Block
from benchmarks.programs import crowd
from benchmarks.programs.sockets import PlainSockets, Sockets
from benchmarks.result import Result
from benchmarks.stage import HUNG, TINY, Stage
from benchmarks.turns import Spread, failures, in_turns, percentile, ratio, spread
from django_redlock.testing import EmbeddedNodes
from tests.support.loops import group_of, keys_on, template
from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
FIGURES = ROOT / "docs/explanation/performance-figures.md"
SECONDS = 900.0  # for what hangs


# One test, for processes of a parallel run share no fixture, and this takes minutes.
@pytest.mark.slow
@pytest.mark.load  # nodes that have 2 s for a reply, and programs that have a minute
@pytest.mark.timeout(SECONDS)
def test_every_part_runs_and_every_report_has_it(tmp_path):
    """A tiny run measures all that is asked for, and the terminal, page and README show it."""
    measured(tmp_path)
    parts = json.loads((tmp_path / "out.json").read_text())["parts"]
    every_part_runs(parts)
    every_goal_and_answer_is_for_a_figure_that_is_measured(parts)
    every_form_of_the_report_has_every_part(tmp_path, parts)


def measured(home: Path) -> None:
    """Write the report of a tiny run, in all its forms."""
    (home / "README.md").write_text(f"above\n{report.BEGIN}\n| old |\n{report.END}\nbelow\n")
    arguments = ["--effort", "tiny", "--json", f"{home}/out.json"]
    arguments += ["--markdown", f"{home}/out.md", "--readme", f"{home}/README.md"]
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert ended.returncode == 0, ended.stderr
    (home / "terminal").write_text(ended.stdout)


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


def every_form_of_the_report_has_every_part(measured: Path, parts: dict[str, Any]) -> None:
    """The terminal, the page and the README show what was measured."""
    page, terminal = (measured / "out.md").read_text(), (measured / "terminal").read_text()
    for part in parts.values():
        assert f"\n## {part['title']}\n" in page
        assert part["title"] in terminal
    readme = (measured / "README.md").read_text()
    assert readme.startswith("above\n")
    assert readme.endswith("below\n")
    assert "| old |" not in readme
    head, rule, *rows, empty, sentence = short_table(readme).splitlines()
    assert head == "| client | p50, ms | p95, ms |"
    assert rule == "| --- | ---: | ---: |"
    assert re.fullmatch(r"\| django-redlock \| [\d.]+ \| [\d.]+ \|", rows[0])
    missing = {client.label for client in SHORT.values()} & set(parts["unpinned"]["missing"])
    assert len(rows) == len(SHORT) - len(missing)
    assert empty == ""
    assert sentence.endswith("by `make bench-figures`.")
    assert short_table(readme) in page
    assert re.search(r"^\| threads ÷ sockets \| .* \| (met|MISSED) \|$", page, re.MULTILINE)


def test_the_plain_yardstick_locks():
    """A majority sets the key for a ttl, nobody else gets the name, and only its nonce deletes."""
    with EmbeddedNodes(3) as nodes:
        by_hand, other = PlainSockets(nodes.urls, 30), PlainSockets(nodes.urls, 30)
        name, nonce = lease = by_hand.acquire("name")
        with ExitStack() as stack:
            clients = [stack.enter_context(closing(node.client())) for node in nodes]
            assert [each.get("plain:name") for each in clients] == [nonce.encode()] * 3
            assert all(25_000 < each.pttl("plain:name") <= 30_000 for each in clients)
            with pytest.raises(RuntimeError):
                other.acquire(name)
            with pytest.raises(RuntimeError):
                other.release((name, "not its nonce"))
            by_hand.release(lease)
            assert [each.get("plain:name") for each in clients] == [None] * 3
        by_hand.close()
        other.close()


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


def test_the_readme_repeats_the_page():
    """The figures of the README and those of the page "Performance" are of one run."""
    rows = [row for row in short_table((ROOT / "README.md").read_text()).splitlines() if "|" in row]
    assert len(rows) > 4
    page = FIGURES.read_text().splitlines()
    assert [row for row in rows if row not in page] == []


def test_every_goal_that_is_missed_has_its_cause_on_the_page():
    """The page "Performance" says of each missed goal why, and of none that is met."""
    goals = FIGURES.read_text().split("## Goals\n")[1].split("\n## ")[0]
    missed = re.findall(r"^\| (.+?) \|.*\| MISSED \|$", goals, re.MULTILINE)
    text = (FIGURES.parent / "performance.md").read_text()
    section = text.split("## Goals that are missed\n")[1].split("\n## ")[0].split("```")[0]
    leads = re.findall(r"^- \*\*(.+?)\*\*", section, re.MULTILINE | re.DOTALL)
    assert [" ".join(lead.split()).rstrip(".") for lead in leads] == missed


def test_a_goal_can_be_missed():
    """Beyond the bound a goal is missed, at the bound it is met, unmeasured it is neither."""
    most, least = Goal("a", 1.5), Goal("a", 10, least=True)
    said = [
        Verdict(goal, None if reached is None else Spread(reached, 0, 99)).text
        for goal, reached in ((most, 1.5), (most, 1.6), (least, 10), (least, 9.9), (most, None))
    ]
    assert said == ["met", "MISSED", "met", "MISSED", "not measured"]


def test_goals_are_judged_by_the_figures_of_all_parts(monkeypatch):
    """A verdict looks the figure up by its name, and finds none where it was not measured."""
    monkeypatch.setattr(goals, "GOALS", (Goal("a", 1), Goal("b", 1)))
    result = Result("part", figures={"a": Spread(2, 2, 2)})
    assert [verdict.text for verdict in goals.judge([result])] == ["MISSED", "not measured"]


def test_a_ratio_is_of_neighbours():
    """Readings are compared turn by turn; a turn in which one of the two has none is left out."""
    assert ratio([2, 40, None, 6], [1, 10, 5, 3]) == Spread(2, 2, 3)
    assert ratio([], [1]) is None
    assert spread([None]) is None


class Played:
    """Processes that only note who was asked."""

    def __init__(self, pairs: dict[str, int]) -> None:
        self.present = [Client(label, "program", "style") for label in pairs]
        self.asked: list[str] = []
        self._pairs = pairs

    def block(self, client: Client, pairs: int, *, tasks: int) -> Block:
        self.asked.append(client.label)
        had = self._pairs[client.label]
        return Block(1.0, 2.0, 0.1, 0.1, had, pairs - had, "" if had else "No: lock", [2.0] * had)


def test_the_order_is_reversed_each_turn():
    """Who is first in one turn is last in the next one; the first turn warms up and is not kept."""
    played: Any = Played({"a": 5, "b": 5, "c": 5})
    blocks = in_turns(played, 3, 5)
    assert "".join(played.asked) == "abccbaabccba"
    assert [len(taken) for taken in blocks.values()] == [3, 3, 3]


def test_who_had_no_lock_is_not_asked_again():
    """A client that fails a whole block shows its failures, and costs no more time."""
    played: Any = Played({"a": 5, "b": 0})
    blocks = in_turns(played, 30, 5)
    assert [len(taken) for taken in blocks.values()] == [30, 1]
    assert failures(blocks[played.present[1]]) == "5 of 5: No"


def test_a_percentile_is_of_all_locks():
    """The short table has percentiles over the locks of all turns, in milliseconds."""
    blocks = [
        Block(1, 1, 1, 1, 50, 0, "", [1000.0 * turn + each for each in range(50)])
        for turn in range(2)
    ]
    assert percentile(blocks, 50) == pytest.approx(524.5)
    assert percentile(blocks, 95) == pytest.approx(1044.05)
    assert percentile([], 50) is None
    assert milliseconds({THREADS: blocks}) == [
        {"client": "django-redlock", "p50, ms": "0.52", "p95, ms": "1.04"}
    ]


def test_what_failed_is_told():
    """The count of failures, of how many, and the first reason; a block that has none says 0."""
    good = Block(1.0, 2.0, 0.1, 0.1, 5, 0, "")
    bad = Block(None, None, 0.1, 0.1, 0, 3, "TimeoutError: too late")
    assert failures([good, bad]) == "3 of 8: TimeoutError"
    assert failures([good]) == "0"
    assert bad.rate is None


def test_what_a_crowd_did_is_read_from_its_turns():
    """Rate, waits, gaps and fairness follow from when each process asked, had and released."""
    one = [Turn(0.0, 0.1, 0.2), Turn(0.2, 0.5, 0.6), Turn(0.6, 1.5, 1.6)]
    other = [Turn(0.0, 0.25, 0.4)]
    turns = Turns([one, other], 0.0, 1.0, 0, "", 40, 0.2, 0.1)
    assert turns.rate == 3  # the fourth was had too late
    assert turns.waits == pytest.approx([0.1, 0.25, 0.3, 0.9])
    assert turns.gaps == pytest.approx([0.05, 0.1, 0.9])
    assert turns.evenness == pytest.approx(1 / 3)
    assert (turns.fewest(0.2, 0.6), turns.fewest(0.3, 0.6), turns.fewest()) == (1, 0, 1)
    assert turns.each(turns.messages) == 10
    assert (quantile(turns.waits, 0.5), quantile(turns.waits, 1.0)) == (0.3, 0.9)


def test_a_crowd_that_is_not_heard_of_meets_no_goal():
    """A process that dies or hangs is told of, and has no waits and turns instead of good ones."""
    silent = no_answer(8, 5.0)
    found = handover.figures(8, [silent]) | handover.ill(silent, (0.0, 1.0), [silent])
    assert found["8 waiters: turns ÷ the ideal"] == Spread(0, 0, 0)
    assert found["8 waiters: wait, p99, ms"] is None
    assert found["8 waiters: fewest ÷ most turns"] == Spread(0, 0, 0)
    assert found["queue's node hung: longest wait, s more"] is None
    assert found["queue's node hung: fewest turns of a process meanwhile"] == Spread(0, 0, 0)
    assert handover.growth([silent], [silent]) is None


def test_a_hung_node_is_blamed_for_what_was_longer():
    """What a node's hanging costs is the longest wait beyond the usual one, and turns meanwhile."""
    usual = Turns([[Turn(0.0, 0.1, 0.2)]], 0.0, 1.0, 0, "", 0, 0, 0)
    hung = Turns([[Turn(0.0, 1.4, 1.5)], [Turn(0.0, 0.6, 0.7)]], 0.0, 2.0, 0, "", 0, 0, 0)
    found = handover.ill(hung, (0.5, 1.0), [usual])
    longer = found["queue's node hung: longest wait, s more"]
    assert longer is not None
    assert longer.median == pytest.approx(1.3)
    assert found["queue's node hung: fewest turns of a process meanwhile"] == Spread(0, 0, 0)


def test_a_crowd_takes_turns():
    """Processes that a program forks ask, hold and release; what they raise is counted."""
    mutex = multiprocessing.get_context("fork").Lock()

    def acquire(name: str, seconds: float) -> str:
        assert mutex.acquire(timeout=seconds)
        return name

    def release(name: str) -> None:
        mutex.release()
        if name == "broken":
            raise ValueError(name)

    asked: dict[str, Any] = {"processes": 3, "hold": 0.001, "seconds": 1.0}
    waiting: list[int] = []
    said = crowd.gather(crowd.Crowd(acquire, release), asked | {"name": "x"}, waiting.append)
    assert waiting == [3]
    turns = Turns([[Turn(*turn) for turn in each] for each in said["turns"]], 0, 1, 0, "", 0, 0, 0)
    assert turns.fewest() >= 1
    assert turns.gaps[0] >= 0  # nobody had it before the one before let go
    assert (said["failed"], said["error"]) == (0, "")
    asked |= {"name": "broken", "seconds": 0.2}
    said = crowd.gather(crowd.Crowd(acquire, release), asked, waiting.append)
    assert said["turns"] == [[], [], []]
    assert said["failed"] >= 3
    assert said["error"] == "ValueError: broken"


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
    assert report.text(cell) == text


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
                served.settimeout(20)
                client.settimeout(20)
                with served:
                    assert served.recv(99) == b"one"
                    there = time.perf_counter() - start
                    served.sendall(b"two")
                    assert client.recv(99) == b"two"
                    back = time.perf_counter() - start - there
                    assert there >= 0.05
                    assert back >= 0.05
                    client.close()
                    assert select.select([served], [], [], 20)[0]
                    assert served.recv(99) == b""
        finally:
            end.sendall(b"!")
            thread.join(20)
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

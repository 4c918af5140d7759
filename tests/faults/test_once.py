"""Work that is done once, by many processes on real nodes, of which some are killed at work."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from django_redlock.testing import EmbeddedNodes
from tests.support.replays import note_broken
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
LATEST = 300.0  # seconds, for what hangs


class Event(NamedTuple):
    """A line of the log."""

    what: str
    name: str
    pid: int


class Play:
    """Processes that go through the same names.

    Attributes:
        killed: how many were killed between the begin of a body and its end.
    """

    def __init__(self, home: Path, nodes: EmbeddedNodes, names: int, *, broken: bool) -> None:
        self.path, self.names, self.killed = home / "log", names, 0
        alias = nodes.settings(MAX_TTL=6, TTL=3, NODE_TIMEOUT=2)
        told = {"path": str(self.path), "names": names, "broken": broken, "alias": alias}
        self._argument = json.dumps(told)
        self._alive: dict[int, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start one more process."""
        program = [sys.executable, "-m", "tests.faults.doing_once", self._argument]
        process = subprocess.Popen(program, cwd=ROOT)
        self._alive[process.pid] = process

    def events(self) -> list[Event]:
        """What has happened, in order."""
        if not self.path.exists():
            return []
        rows = [line.split() for line in self.path.read_text().splitlines()]
        return [Event(what, name, int(pid)) for what, name, pid in rows]

    def at_work(self) -> set[int]:
        """The living processes that have begun a body and not ended it, as the log says."""
        last = {event.pid: event.what for event in self.events()}
        return {pid for pid, what in last.items() if what == "begins" and pid in self._alive}

    def kill_one(self) -> bool:
        """Kill a process that is at work, and start another one; False: none was."""
        for pid in self.at_work():
            process = self._alive.pop(pid)
            process.kill()
            process.wait()
            last = [event.what for event in self.events() if event.pid == pid][-1]
            self.killed += last == "begins"
            self.start()
            return True
        return False

    def run(self, processes: int, kills: int) -> None:
        """Let so many processes work, and kill some of them, until all have gone through."""
        try:
            for _ in range(processes):
                self.start()

            def all_killed() -> bool:
                over = not any(process.poll() is None for process in self._alive.values())
                return over or (self.kill_one() and self.killed >= kills)

            eventually(all_killed, within=LATEST)
            for process in self._alive.values():
                assert process.wait(LATEST) == 0
        finally:
            for process in self._alive.values():
                process.kill()
                process.wait()

    def faults(self) -> list[str]:
        """What went wrong: work that was never done, or done again after its record."""
        done: Counter[str] = Counter()
        known: set[str] = set()
        found = []
        for what, name, _ in self.events():
            if what == "begins" and name in known:
                found.append(f"{name} again")
            elif what in {"recorded", "met"}:
                known.add(name)
            done[name] += what == "done"
        found += [f"{name} never" for name, times in done.items() if not times]
        assert len(known) == self.names
        return found


def play(home: Path, names: int, processes: int, kills: int, *, broken: bool = False) -> Play:
    """Play it on five nodes of its own."""
    with EmbeddedNodes(5) as nodes:
        found = Play(home, nodes, names, broken=broken)
        found.run(processes, kills)
    return found


@pytest.mark.slow
def test_each_body_ends_once_though_processes_are_killed_at_work(tmp_path):
    """At least once; and after its record was written or met, no body begins."""
    played = play(tmp_path, 50, 8, 6)
    assert played.faults() == []
    assert played.killed >= 1


@pytest.mark.nightly
def test_a_thousand_names_are_done_once_by_twenty_processes(tmp_path):
    """The same, with a kill for every ten names."""
    played = play(tmp_path, 1000, 20, 100)
    counts = Counter(event.what for event in played.events())
    print(f"\n{dict(counts)}, {played.killed} killed at work")
    assert played.faults() == []
    assert played.killed >= 10


@pytest.mark.slow
def test_a_record_before_the_body_is_caught(tmp_path):
    """Broken: the work of a process that is killed at it is never done."""
    note_broken("record_first")
    played = play(tmp_path, 50, 8, 6, broken=True)
    assert played.killed >= 1
    assert any(fault.endswith("never") for fault in played.faults())

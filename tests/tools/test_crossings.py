"""How often a lock crosses from one room of the package to another; see ``tools.crossings``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# Before one collector decided for threads and tasks: 147 and 173, by the same command. A thread
# whose connections are a set asks no collector.
MOST = {"a thread": 147 / 6, "a task": 173 / 2}
# A collector that asks the pool for something again and again.
DETOUR = """
import runpy
from types import SimpleNamespace
from django_redlock.fanout import votes
from django_redlock.transport import exchange, pool

nothing = SimpleNamespace(owes=lambda _: False)

def detour(module, kind):
    def init(self, *args, before=kind.__init__, **facts):
        for _ in range(40):
            pool._owes(nothing, "")
        before(self, *args, **facts)

    init.__code__ = init.__code__.replace(co_filename=module.__file__)
    kind.__init__ = init

detour(votes, votes.VoteCollector)
detour(exchange, exchange.Exchange)
runpy.run_module("tools.crossings", run_name="__main__")
"""


def counted(*arguments: str) -> dict[str, float]:
    """What the tool prints for each lock."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = re.findall(r"^(a \w+): ([\d.]+) crossings", done.stdout, re.MULTILINE)
    return {who: float(number) for who, number in found}


def test_a_lock_crosses_at_most_half_as_often_as_it_did():
    """By a thread and by a task; of three runs, for replies that are late cost a few more."""
    runs = [counted("-m", "tools.crossings") for _ in range(3)]
    assert all(run.keys() == MOST.keys() for run in runs)
    assert all(min(run[who] for run in runs) <= most for who, most in MOST.items()), runs


def test_a_detour_is_noticed():
    """The check above can fail."""
    found = counted("-c", DETOUR)
    assert all(found[who] > 1.3 * most for who, most in MOST.items()), found

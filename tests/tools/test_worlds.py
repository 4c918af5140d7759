"""The soak of worlds, on all cores, in as many sittings as it takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dev.soak.simulation import worlds
from dev.soak.simulation.worlds import CHUNK, Plan, Progress, soak
from tests.simulation.mutants import MUTANTS, broken
from tests.simulation.profiles import profile
from tests.simulation.world import World


def _plan(tmp_path: Path, **options) -> Plan:
    return Plan(**{"worlds": 2 * CHUNK, "state": tmp_path / "soak.json", "jobs": 2, **options})


def _command(plan: Plan, *more: str) -> list[str]:
    return [
        *(sys.executable, "-m", "dev.soak.simulation.worlds", "--state", str(plan.state)),
        *("--worlds", str(plan.worlds), "--jobs", str(plan.jobs), *more),
    ]


def _chunks(plan: Plan) -> list[int]:
    return json.loads(plan.state.read_text())["chunks"] if plan.state.exists() else []


def test_a_soak_goes_on_where_it_stopped(tmp_path, capsys, monkeypatch) -> None:
    """What was played is not played again, also when more is wanted the next time."""
    first = _plan(tmp_path, worlds=CHUNK)
    assert soak(first) == 0
    capsys.readouterr()
    plan = _plan(tmp_path)
    progress = Progress(plan)
    assert progress.done == {0}
    assert progress.worlds == CHUNK
    monkeypatch.setattr(worlds, "chunk", None)  # whoever plays now fails
    assert soak(first) == 0
    assert f"{CHUNK} of {CHUNK} worlds were played before" in capsys.readouterr().out


def test_a_soak_finds_a_mutant(tmp_path) -> None:
    """A broken promise ends the soak with status 1, its story and a seed that shows it again."""
    plan = _plan(tmp_path)
    command = _command(plan, "--mutant", "half-is-enough")
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "both hold" in ended.stderr
    assert "Traceback" not in ended.stderr
    told = ended.stderr.partition("--worlds 1 --seed ")[2].split(maxsplit=1)[0]
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "half-is-enough")
    with broken(mutant), pytest.raises(AssertionError) as caught:
        World(int(told), profile(mutant.profile)).run()
    assert str(caught.value) in ended.stderr
    assert int(told) // CHUNK not in _chunks(plan)

"""A broken variant that did not show is played again; what is right is played once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.replays import PLAYS

ROOT = Path(__file__).parents[2]
TEST = """
from tests.support.replays import note_broken

plays = []

def test_it():
    plays.append(1)
    {body}
"""


def outcome(folder: Path, body: str, *more: str) -> str:
    """What pytest prints of a test with this body."""
    (folder / "test_it.py").write_text(TEST.format(body=body), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.replays", "-p", "no:django"]
    command += ["-p", "no:cacheprovider", "-p", "no:redlock", "-q", "--rootdir", str(folder)]
    command += [*more, "-c", "/dev/null", str(folder / "test_it.py")]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("more", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_a_broken_variant_is_played_until_it_shows(tmp_path, more):
    """And the run says how many plays that took."""
    said = outcome(tmp_path, 'note_broken("x"); assert len(plays) == 3', *more)
    assert "1 passed" in said
    assert "test_it.py::test_it: 3 plays" in said


@pytest.mark.slow
def test_a_broken_variant_that_never_shows_is_a_failure(tmp_path):
    """After all plays."""
    said = outcome(tmp_path, f'note_broken("x"); assert len(plays) > {PLAYS}')
    assert "1 failed" in said
    assert f"{PLAYS} plays" in said


@pytest.mark.slow
def test_what_is_right_is_played_once(tmp_path):
    """A failure before anything is broken is no matter of luck."""
    said = outcome(tmp_path, 'assert len(plays) == 2; note_broken("x")')
    assert "1 failed" in said
    assert "plays" not in said.partition("short test summary")[2]

"""Who is played again: a broken variant that did not show, and what load may upset; nobody else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.replays import PLAYS, promised

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


UPSET = """
import os
import pytest

def test_that_is_right():
    pass

@pytest.mark.load
@pytest.mark.parametrize("alone", [{alone}])
def test_it(alone):
    assert alone and "PYTEST_XDIST_WORKER" not in os.environ
"""
OTHER = """
def test_another():
    assert False
"""
SETTINGS = """
[pytest]
addopts = --strict-markers -p tests.support.replays -p no:cacheprovider -p no:django -p no:redlock
markers = load: x
"""


def run(
    folder: Path, test: str, *more: str, file: str = "test_it.py", **settings: str
) -> tuple[int, str]:
    """How pytest ends in a folder with this test, and what it prints."""
    (folder / "pytest.ini").write_text(SETTINGS, encoding="utf-8")
    (folder / file).write_text(test, encoding="utf-8")
    env = {name: value for name, value in os.environ.items() if name != "CI"}
    env = {name: value for name, value in env.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", *more]
    done = subprocess.run(
        command,
        cwd=folder,
        env=env | {"PYTHONPATH": str(ROOT)} | settings,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_what_load_upset_is_played_once_more_alone(tmp_path):
    """The second play decides; both are printed."""
    code, said = run(tmp_path, UPSET.format(alone=True), "-n", "2", CI="true")
    assert (code, said.count("1 failed, 1 passed"), said.count("\n1 passed")) == (0, 1, 0)
    first, second = said.split("marked load, so once more, alone: test_it.py::test_it[True]")
    assert ("1 failed, 1 passed" in first, "1 passed in" in second) == (True, True)


@pytest.mark.slow
def test_what_fails_alone_as_well_is_a_failure(tmp_path):
    """There is no third play."""
    code, said = run(tmp_path, UPSET.format(alone=False), "-n", "2", CI="true")
    assert (code, said.count("once more, alone"), said.count("1 failed")) == (1, 1, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "more", "settings"),
    [
        (UPSET.format(alone=True) + OTHER, ("-n", "2"), {"CI": "true"}),
        (OTHER, ("-n", "2"), {"CI": "true"}),
        ("import nothing_of_this_name", ("-n", "2"), {"CI": "true"}),
        (UPSET.format(alone=False), (), {"CI": "true"}),
        (UPSET.format(alone=True), ("-n", "2"), {}),
    ],
    ids=["beside another failure", "not marked", "not imported", "alone", "not in CI"],
)
def test_nothing_else_is_played_twice(tmp_path, test, more, settings):
    """Not beside a failure that load does not explain, nor where a person looks on."""
    code, said = run(tmp_path, test, *more, **settings)
    assert code != 0
    assert "once more" not in said


@pytest.mark.slow
def test_no_promise_is_played_twice(tmp_path):
    """A test that the page of promises names is not played again, although somebody marked it."""
    file, _, name = min(promised()).partition("::")
    (tmp_path / file).parent.mkdir(parents=True)
    test = UPSET.format(alone=True).replace("test_it", name)
    code, said = run(tmp_path, test, "-n", "2", CI="true", file=file)
    assert (code, said.count("1 failed, 1 passed")) == (1, 1)
    assert "once more" not in said


def test_the_promises_are_read():
    """The tests whose second play would hide what the project is for are on the page."""
    assert len(promised()) > 80
    assert "tests/simulation/test_worlds.py::test_no_world_breaks_a_promise" in promised()

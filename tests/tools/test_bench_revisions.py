"""`make bench ARGS="--against REV"` can call a revision slower, and calls none so without cause."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import report, store
from benchmarks.peers import PeerUnavailable
from benchmarks.processes import ROOT, Block
from benchmarks.result import Result
from benchmarks.revisions import checkout, compare, verdict
from benchmarks.revisions.checkout import NoSuchRevisionError, Revision
from benchmarks.stage import NODES, TINY, Stage
from benchmarks.turns import Spread
from django_redlock.testing import EmbeddedNodes

SECONDS = 600.0  # for what hangs
TURNS = 10
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


def test_locks_that_only_the_newer_one_does_not_get():
    """One of a hundred more is allowed; a scenario that is gone is a failure, a new one is none."""
    good, bad = Block(1, 1, 1, 1, 100, 0, ""), Block(1, 1, 1, 1, 98, 2, "No: lock")
    assert verdict.fails([good], [bad])
    assert not verdict.fails([bad], [bad])
    assert not verdict.fails([good, good], [good, bad])
    assert not verdict.fails([bad], [good])
    assert verdict.fails([good], [])
    assert not verdict.fails([], [bad])
    assert not verdict.fails([], [])


@pytest.mark.parametrize(
    ("verdicts", "bad"),
    [
        (["≤ 1.03", "unclear", "not measured"], False),
        (["≤ 1.03", "SLOWER"], True),
        (["≤ 1.03", "FAILS"], True),
        (["not measured", "not measured"], True),
        ([], True),
    ],
)
def test_one_bad_verdict_makes_a_bad_run(verdicts, bad):
    """So does a run that could compare nothing."""
    result = Result("", rows=[{"verdict": each} for each in verdicts])
    assert compare.is_bad(result) is bad


def test_time_and_processor_are_figures():
    """A revision that takes as long, and half the processor, has both ratios, for a goal each."""
    many = next(each for each in compare.SCENARIOS if each.label == "many tasks")
    old, new = (Block(1, 1, 2.0, worked, 100, 0, "") for worked in (1.0, 0.5))
    result = Result("")
    compare._add(result, "unpinned", {many: ([old] * 5, [new] * 5)})
    assert result.figures == {
        "unpinned: many tasks": Spread(1, 1, 1),
        "unpinned: many tasks, client's processor": Spread(0.5, 0.5, 0.5),
    }
    assert result.rows[0]["CPU"] == 0.5


@pytest.fixture
def repository(tmp_path) -> Path:
    """A repository with one commit of something that has the package's name."""
    package: Path = tmp_path / "repository/django_redlock"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("one")
    git(tmp_path / "repository", "init", "-q")
    git(tmp_path / "repository", "add", ".")
    git(tmp_path / "repository", "commit", "-qm", "one")
    return package.parent


def git(where: Path, *arguments: str) -> str:
    """Run git as somebody, whatever the machine's settings are."""
    who = ["-c", "user.name=one", "-c", "user.email=one@example.com", "-c", "commit.gpgsign=false"]
    ended = subprocess.run(
        ["git", *who, *arguments], cwd=where, capture_output=True, text=True, check=True
    )
    return ended.stdout.strip()


def test_a_revision_is_copied_as_it_was_committed(repository, tmp_path):
    """Changes since do not show in a revision; they do in the working tree, and in its name."""
    head = git(repository, "rev-parse", "HEAD")
    assert checkout.commit(repository) == (head, False)
    (repository / "django_redlock/__init__.py").write_text("two")
    (repository / "README.md").write_text("not measured")
    old = checkout.checkout("HEAD", tmp_path / "old", repository)
    new = checkout.working_tree(tmp_path / "new", repository)
    assert (old.label, new.label) == (head[:7], f"working tree, {head[:7]} and changes")
    texts = [(each.home / "django_redlock/__init__.py").read_text() for each in (old, new)]
    assert texts == ["one", "two"]
    assert checkout.commit(repository) == (head, True)


def test_a_revision_that_is_none_is_refused(repository, tmp_path):
    """A name that git does not know, and one that looks like an option."""
    for revision in ("nobody", "--help", ""):
        with pytest.raises(NoSuchRevisionError):
            checkout.checkout(revision, tmp_path / "old", repository)
    assert checkout.commit(tmp_path) == ("unknown", False)


def test_results_are_stored_with_the_commit(tmp_path, monkeypatch):
    """A file names commit and changes, and keeps no reason that could name a folder."""
    monkeypatch.setattr(store, "commit", lambda: ("0123456789abcdef", True))
    result = Result("part", rows=[{"": "one", "µs": Spread(2, 1, 3)}])
    result.missing = {"other": f"pip: {tmp_path} is not there"}
    file = store.store(report.as_json({"Python": "3"}, {"part": result}, []), tmp_path / "results")
    assert file.name.endswith("-0123456-changed.json")
    found = json.loads(file.read_text())
    assert found["about"].pop("date").endswith(" UTC")
    assert found["about"] == {"commit": "0123456789abcdef", "changed": True, "Python": "3"}
    assert found["parts"]["part"]["missing"] == ["other"]
    assert found["parts"]["part"]["rows"][0]["µs"] == {"median": 2, "low": 1, "high": 3}
    assert str(tmp_path) not in file.read_text()


@pytest.mark.slow
@pytest.mark.load  # it compares speeds
@pytest.mark.timeout(SECONDS)
def test_a_slower_revision_is_found(tmp_path):
    """A made-up change that sleeps in each lock makes the exit code 1; a lost module does, too."""
    copy = tmp_path / "django_redlock"
    shutil.copytree(ROOT / "django_redlock", copy)
    (copy / "__init__.py").write_text((copy / "__init__.py").read_text() + SLOWER)
    shutil.rmtree(copy / "views")
    file = tmp_path / "out.json"
    arguments = ["--against", str(ROOT), "--of", str(tmp_path), "--effort", "tiny"]
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments, "--turns", str(TURNS), "--json", file],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert ended.returncode == 1, ended.stderr
    rows = json.loads(file.read_text())["parts"]["against"]["rows"]
    verdicts = {(row["how"], row[""]): row["verdict"] for row in rows}
    for name in ("with", "async with"):
        assert verdicts["unpinned", name] == "SLOWER"
    assert verdicts["unpinned", "@single_flight"] == "FAILS"
    assert {name for _, name in verdicts} == {scenario.label for scenario in compare.SCENARIOS}


@pytest.mark.slow
@pytest.mark.load  # it compares speeds
@pytest.mark.timeout(SECONDS)
def test_a_revision_is_not_slower_than_itself(tmp_path):
    """No alarm without a cause; on a machine that is busy, at most now and then."""
    old, new = (checkout.checkout(str(ROOT), tmp_path / name) for name in ("old", "new"))
    with EmbeddedNodes(NODES) as nodes:
        stage = Stage(nodes, TINY._replace(rounds=TURNS))
        results = (compare.compare(stage, old, new) for _ in range(3))
        result = next((each for each in results if not compare.is_bad(each)), None)
    assert result is not None
    assert not [row for row in result.rows if row["verdict"] == "not measured"]


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_the_revision_that_was_asked_for_is_measured(tmp_path):
    """The package of the working tree is not taken for that of another folder."""
    empty = Revision("empty", tmp_path)
    (tmp_path / "django_redlock").mkdir()
    with EmbeddedNodes(NODES) as nodes:
        stage = Stage(nodes, TINY)
        with pytest.raises(PeerUnavailable, match="another revision was imported"):
            compare.compare(stage, empty, empty)

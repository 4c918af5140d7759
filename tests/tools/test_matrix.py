import re
import subprocess
import sys
import tomllib
from itertools import product
from pathlib import Path

import django
import pytest

from tools import matrix, pythons

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ROOT / "docs/reference/versions.md"
PYTHONS = [(3, 11), (3, 13)]


def test_each_python_runs_with_both_ends_and_each_server_runs():
    """Pairs: all Pythons with oldest and newest libraries, and all servers; none is twice."""
    chosen = list(matrix.pairs(PYTHONS))
    assert len({pair.name for pair in chosen}) == len(chosen)
    on_the_wheel = {pair[:2] for pair in chosen if pair.server == matrix.WHEEL}
    assert on_the_wheel == set(product(PYTHONS, ["oldest", "newest"]))
    assert {pair.server for pair in chosen} == set(matrix.SERVERS)


def test_this_python_is_found():
    """The Python that runs this can make an environment and is found, at its patch or a newer."""
    version, program = pythons.found()[sys.version_info[:2]]
    assert version >= sys.version_info[:3]
    assert program.exists()


def test_oldest_is_every_lower_bound():
    """Each library that a user is promised is pinned to its lower bound in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = [project["dependencies"]]
    promised += [
        project["optional-dependencies"][extra] for extra in ("celery", "django-redis", "embedded")
    ]
    names = {re.split(r"[^\w-]", line)[0] for lines in promised for line in lines}
    pinned = dict(line.split("==") for line in matrix.lower_bounds())
    assert names <= set(pinned)
    assert pinned["Django"] == "5.2"


def test_the_lower_bounds_of_the_pages():
    """The reference and the README name the lower bounds of pyproject.toml."""
    pinned = {
        name.replace("redis", "redis-py") if name == "redis" else name.lower(): bound
        for name, bound in (line.split("==") for line in matrix.lower_bounds())
    }
    table = re.findall(r"^\| (\S+) \| ([\d.]+) \| [\d.]+ \|", VERSIONS.read_text(), re.MULTILINE)
    named = {name.lower(): bound for name, bound in table}
    for name in ("django", "redis-py", "hiredis", "celery", "django-redis"):
        assert named[name] == pinned[name]
    assert named["python"] == ".".join(map(str, pythons.OLDEST))
    readme = " ".join((ROOT / "README.md").read_text().split())
    for words in (
        f"Python {named['python']} or later",
        f"Django {named['django']} or later",
        f"redis-py {named['redis-py']} or later",
        f"Redis {named['redis']} or later",
    ):
        assert words in readme


def series(first: str, last: str) -> list[str]:
    """The release series from one to another; Django's X.2 is followed by (X+1).0."""
    found, newest = [first], tuple(map(int, last.split(".")))
    while (now := tuple(map(int, found[-1].split(".")))) < newest:
        major, minor = now
        after = (major + 1, 0) if major > 3 and minor == 2 else (major, minor + 1)
        found.append("{}.{}".format(*after))
    return found


def test_the_classifiers_are_the_tested_versions():
    """The package index is told each Python and Django of the reference, and no other."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    table = re.findall(
        r"^\| (Python|Django) \| ([\d.]+) \| ([\d.]+) \|", VERSIONS.read_text(), re.MULTILINE
    )
    running = {"Python": sys.version_info[:2], "Django": django.VERSION[:2]}
    for name, first, last in table:
        told = [re.search(rf"\b{name} :: (\d+\.\d+)$", line) for line in project["classifiers"]]
        versions = [found[1] for found in told if found]
        assert versions == series(first, last)
        assert "{}.{}".format(*running.pop(name)) in versions  # the matrix runs this on each
    assert not running


def run_main(monkeypatch, *arguments: str) -> int:
    """Run the command on two Pythons; return its exit code."""
    known = {minor: ((*minor, 0), Path(sys.executable)) for minor in PYTHONS}
    monkeypatch.setattr(pythons, "found", lambda: known)
    monkeypatch.setattr(sys, "argv", ["matrix", *arguments])
    with pytest.raises(SystemExit) as ended:
        matrix.main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("bad", ["none", "failing", "not to be had"])
def test_a_failure_stops_no_other_pair(monkeypatch, capsys, tmp_path, bad):
    """Every chosen pair is tried; the exit code is 0 only if each of them passed."""
    monkeypatch.setattr(matrix, "CACHE", tmp_path / "cache")
    ran = []

    def tests(command, *, env, **_):
        ran.append(env.get("REDLOCK_TEST_SERVER"))
        return int(bad == "failing" and len(ran) == 1)

    def program(server):
        if bad == "not to be had" and server == "redis7":
            raise matrix.CannotRunError("no redis-server")
        return None if server == matrix.WHEEL else Path("/a/server")

    monkeypatch.setenv("REDLOCK_TEST_SERVER", "/left/over")
    monkeypatch.setattr(subprocess, "call", tests)
    monkeypatch.setattr(matrix, "program", program)
    monkeypatch.setattr(matrix, "environment", lambda pair, python: python)
    monkeypatch.setattr(matrix, "_versions", lambda inside, python: "Python 3")
    code = run_main(monkeypatch, "--only", "3.13", "--only", "redis")
    assert code == (bad != "none")
    assert ran == [None, None] + ["/a/server"] * (1 if bad == "not to be had" else 2)
    table = capsys.readouterr().out.rpartition("versions\n")[2].splitlines()
    assert [line.split()[0] for line in table] == [
        "3.13-newest-valkey9",
        "3.13-oldest-valkey9",
        "3.11-newest-redis7",
        "3.11-newest-redis6.2",
    ]
    assert [" passed " not in line for line in table].count(True) == (bad != "none")


def test_what_was_run_is_counted(tmp_path):
    """The table's counts are those of pytest's report; a run that wrote none says so."""
    report = tmp_path / "report.xml"
    assert matrix._counts(report) == "no report"
    report.write_text(
        '<testsuites><testsuite tests="20" failures="2" errors="1" skipped="4"/></testsuites>'
    )
    assert matrix._counts(report) == "13 / 3 / 4"


def test_a_server_of_another_version_is_refused(monkeypatch, tmp_path):
    """A pair never runs on another version of the server than its name says."""
    other = tmp_path / "redis-server"
    other.write_text("#!/bin/sh\necho 'Redis server v=8.0.2 sha=00000000:0'\n")
    other.chmod(0o755)
    monkeypatch.setattr(matrix, "_system_redis", lambda: other)
    with pytest.raises(matrix.CannotRunError, match=r"is 8\.0\.2, not 7\.x"):
        matrix.program("redis7")

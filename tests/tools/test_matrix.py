import re
import sys
import tomllib
from pathlib import Path

import django

from dev.tools import matrix, pythons

ROOT = Path(__file__).resolve().parents[2]
VERSIONS = ROOT / "docs/reference/versions.md"


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

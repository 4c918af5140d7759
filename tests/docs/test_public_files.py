"""What a public repository has beside its code agrees with the code."""

from __future__ import annotations

import re

from dev.tools.reference import checks
from tests.docs.pages import GROUPS, PROJECT, ROOT

MAKEFILE = (ROOT / "Makefile").read_text()


def read(path: str) -> str:
    """A file of the repository."""
    return (ROOT / path).read_text()


def test_the_workflow_runs_what_there_is():
    """Each target exists, and each supported Python is tried."""
    workflow = read(".github/workflows/tests.yml")
    for targets in re.findall(r"run: make (.*)$", workflow, re.MULTILINE):
        for target in (word for word in targets.split() if "=" not in word):
            assert re.search(rf"^{target}:", MAKEFILE, re.MULTILINE), target
    assert "run: .ci/run" in workflow
    (listed,) = re.findall(r"python: \[(.*)\]", workflow)
    supported = [each.rpartition(" ")[2] for each in PROJECT["classifiers"] if ":: 3." in each]
    assert re.findall(r"\d\.\d+", listed) == supported


def test_what_is_for_work_on_the_package_is_no_extra():
    """Users are shipped what they use; the rest are dependency groups, all of them used."""
    extras = {"celery", "django-redis", "embedded", "otel"}
    assert set(PROJECT["optional-dependencies"]) == extras
    named = re.findall(r"--group (\w+)", read(".readthedocs.yaml"))
    named += re.findall(r"\.has-(\w+):? ", MAKEFILE + read(".ci/run"))
    named += re.findall(r'"--group", "(\w+)"', read("dev/tools/matrix.py"))
    assert set(named) == GROUPS.keys()
    own = [line for lines in GROUPS.values() for line in lines if PROJECT["name"] in line]
    used = {extra for line in own for extra in re.findall(r"[\w-]+", line.partition("[")[2])}
    assert used == extras


def test_the_changelog_names_the_newest_version_and_the_last_check_of_each_kind():
    """So an id that comes later is named by its version."""
    changes = read("CHANGELOG.md")
    newest = re.search(r"^## \[([^]]+)\] - \d{4}-\d\d-\d\d$", changes, re.MULTILINE)
    assert newest
    assert newest[1] == PROJECT["version"]
    said = re.findall(r"\b([EW])001 to \1(\d{3})\b", changes)
    ids = sorted(checks.ids())
    assert dict(said) == {each[0]: each[1:] for each in ids}


def test_style_is_checked_by_one_version():
    """The hook before a commit and `make lint` have the same rules."""
    (revision,) = re.findall(r"rev: v(\S+)", read(".pre-commit-config.yaml"))
    dev = " ".join(map(str, GROUPS["dev"]))
    assert f"ruff>={revision}," in dev

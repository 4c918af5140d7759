"""What a public repository has beside its code agrees with the code."""

from __future__ import annotations

import re

from tests.docs.pages import PROJECT, ROOT

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


def test_the_documentation_is_built_from_an_extra():
    """Read the Docs installs an extra that there is."""
    (extra,) = re.findall(r"extra_requirements: \[(.*)\]", read(".readthedocs.yaml"))
    assert extra in PROJECT["optional-dependencies"]


def test_style_is_checked_by_one_version():
    """The hook before a commit and `make lint` have the same rules."""
    (revision,) = re.findall(r"rev: v(\S+)", read(".pre-commit-config.yaml"))
    dev = " ".join(PROJECT["optional-dependencies"]["dev"])
    assert f"ruff>={revision}," in dev

"""A copy of the package of a revision, in a folder of its own."""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.processes import ROOT

PACKAGE = "django_redlock"
MEASURED = (PACKAGE, "benchmarks", "pyproject.toml", ":!benchmarks/results")


class Revision(NamedTuple):
    """What is compared.

    Attributes:
        label: as it is called in the tables: a commit, never a path.
        home: the folder that has the package.
    """

    label: str
    home: Path


class NoSuchRevisionError(Exception):
    """Git does not know it, or it has no package."""


def commit(root: Path = ROOT) -> tuple[str, bool]:
    """Return the commit that is checked out, and whether what is measured differs from it.

    Without git, or outside of a repository, the commit is "unknown".
    """
    try:
        head = _git(root, "rev-parse", "--verify", "HEAD").decode().strip()
        changes = _git(root, "status", "--porcelain", "--", *MEASURED)
    except NoSuchRevisionError:
        return "unknown", False
    return head, bool(changes)


def working_tree(home: Path, root: Path = ROOT) -> Revision:
    """Copy the package as it is now, so that what is edited meanwhile is not measured."""
    head, changed = commit(root)
    _copy(root, home)
    return Revision(f"working tree, {head[:7]}{' and changes' if changed else ''}", home)


def checkout(revision: str, home: Path, root: Path = ROOT) -> Revision:
    """Copy the package of a revision, or of a folder that has one."""
    if revision and (Path(revision) / PACKAGE).is_dir():
        _copy(Path(revision), home)
        return Revision("a folder", home)
    name = _git(root, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    archive = _git(root, "archive", "--format=tar", name.decode().strip(), PACKAGE)
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(home, filter="data")
    return Revision(name.decode()[:7], home)


def _copy(source: Path, home: Path) -> None:
    shutil.copytree(
        source / PACKAGE, home / PACKAGE, ignore=shutil.ignore_patterns("__pycache__", "*.py[co]")
    )


def _git(root: Path, *arguments: str) -> bytes:
    try:
        ended = subprocess.run(["git", *arguments], cwd=root, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise NoSuchRevisionError("there is no git") from error
    if ended.returncode:
        raise NoSuchRevisionError(ended.stderr.decode().strip())
    return ended.stdout

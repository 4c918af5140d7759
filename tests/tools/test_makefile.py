"""What a newcomer sees of `make`: which Python it needs, what it is waiting for, and its list."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDS = ["make", "sh", "sed", "touch", "awk"]  # of the machine; no Python among them
# A Python that says that it is another version. It makes an environment of itself; pip is a line.
STAND_IN = """\
#!{python}
import pathlib, shutil, sys
sys.version_info = ({version}, 9, "final", 0)
if sys.argv[1] == "-c":
    exec(sys.argv[2])
elif sys.argv[2] == "venv":
    folder = pathlib.Path(sys.argv[3], "bin")
    folder.mkdir(parents=True)
    shutil.copy(__file__, folder / "python")
else:
    print("python", *sys.argv[1:])
"""


class Newcomer:
    """Somebody with a fresh clone, and some programs called like Pythons in PATH."""

    def __init__(self, home: Path) -> None:
        self.clone, self.path = home / "clone", home / "bin"
        for folder in (self.clone, self.path):
            folder.mkdir()
        for name in ("Makefile", "pyproject.toml"):
            shutil.copy(ROOT / name, self.clone)
        for name in NEEDS:
            found = shutil.which(name)
            assert found
            (self.path / name).symlink_to(found)

    def install(self, name: str, version: str) -> None:
        """Install a Python with this name and version."""
        program = self.path / name
        program.write_text(STAND_IN.format(python=sys.executable, version=version))
        program.chmod(0o755)

    def make(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it."""
        variables = {"PATH": str(self.path), "HOME": os.environ["HOME"]}
        return subprocess.run(
            ["make", *arguments],
            cwd=self.clone,
            env=variables,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


@pytest.fixture
def newcomer(tmp_path: Path) -> Newcomer:
    """Somebody with no Python yet."""
    return Newcomer(tmp_path)


def said(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a refusal; `make` itself adds that the target has failed."""
    line, its_own = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert its_own.startswith("make: *** ")
    return line


@pytest.mark.parametrize("target", ["demo", "test", "lint", "docs"])
def test_an_older_python_is_refused_before_anything_is_made(newcomer, target):
    """One line: which version is there, which is needed, and what to write."""
    newcomer.install("python3", "3, 10")
    newcomer.install("python3.12", "3, 12")
    assert said(newcomer.make(target)) == (
        "python3 is Python 3.10.9, and Python 3.11 or later is needed. "
        f"Write: make {target} PYTHON=python3.12"
    )
    assert not (newcomer.clone / ".venv").exists()

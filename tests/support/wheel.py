"""The wheel of this repository, and environments outside of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILDING = 300.0  # seconds; the build tool is installed for it


def build(folder: Path) -> Path:
    """Build the wheel into a folder; return its path."""
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check"]
    command += ["--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=BUILDING, check=False)
    assert ended.returncode == 0, ended.stderr
    (wheel,) = folder.glob("*.whl")
    return wheel


def untouched(python: Path) -> dict[str, str]:
    """The environment of somebody who has nothing but a Python, as `python3`, and this machine."""
    ours = str(Path(sys.executable).parent)
    theirs = ("DJANGO", "PYTEST", "PYTHON", "REDLOCK", "VIRTUAL_ENV", "COV")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(theirs)}
    folders = [each for each in os.environ["PATH"].split(os.pathsep) if each != ours]
    return kept | {"PATH": os.pathsep.join([str(python.resolve().parent), *folders])}

"""What goes to the package index from this repository."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
BUILDING = 300.0  # seconds; the build tool is installed for it, into an environment of its own


class Dist(NamedTuple):
    """The two files that `make dist` makes."""

    sdist: Path
    wheel: Path


def run(*command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Run a command to its good end; return what it printed."""
    ended = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=BUILDING, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


def build(folder: Path) -> Dist:
    """Build both into a folder: the sdist from the repository, and the wheel from the sdist."""
    run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return Dist(sdist, wheel)

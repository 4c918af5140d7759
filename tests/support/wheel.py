"""The wheel of this repository, and environments outside of it."""

from __future__ import annotations

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

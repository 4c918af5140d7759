"""Find the Pythons of this machine; as a command, the newest one, if it is newer than this one.

They are looked for beside the running one, in PATH and among pyenv's. Nothing is imported that
Python does not bring, for this runs before anything is installed.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

Version = tuple[int, int, int]

OLDEST = (3, 11)
# A virtual environment needs ensurepip, which Debian's own Python lacks.
ASK = "import ensurepip, sys; print(*sys.version_info[:3], sys.version_info.releaselevel)"


def found() -> dict[tuple[int, int], tuple[Version, Path]]:
    """The newest patch of each minor version that can make an environment, oldest first."""
    pythons: dict[tuple[int, int], tuple[Version, Path]] = {}
    for program in _programs():
        version = _version(program)
        if version and version[:2] >= OLDEST:
            known = pythons.get(version[:2])
            if known is None or known[0] < version:
                pythons[version[:2]] = version, program
    return dict(sorted(pythons.items()))


def _programs() -> Iterator[Path]:
    yield Path(sys.executable)
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        yield from Path(folder or ".").glob("python3.[0-9][0-9]")
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from pyenv.glob("versions/3.*/bin/python3")


def _version(program: Path) -> Version | None:
    """The version of a program that runs, as a release; pyenv's stand-ins in PATH need not run."""
    asked: list[str | Path] = [program, "-c", ASK]
    try:
        said = subprocess.run(asked, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    *numbers, level = said.stdout.split() or [""]
    if said.returncode or level != "final":
        return None
    major, minor, patch = map(int, numbers)
    return major, minor, patch


def main() -> None:
    """Print the path of the newest Python; nothing if no minor version is newer than ours."""
    minor, (_, program) = list(found().items())[-1]
    if minor > sys.version_info[:2]:
        print(program)


if __name__ == "__main__":
    main()

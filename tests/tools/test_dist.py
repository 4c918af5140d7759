"""What goes to the package index: the package, all that it needs, and nothing else."""

from __future__ import annotations

import os
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from django_redlock.testing import EmbeddedNodes
from tests.docs.pages import PROJECT, README, blocks
from tests.support.dist import ROOT, Dist, build, run

PACKAGE = "django_redlock"
OF_THE_BUILD = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
OF_THE_SDIST = {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "SECURITY.md", "pyproject.toml"}


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Dist:
    """Both files, as `make dist` makes them."""
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def wheel(dist: Dist) -> zipfile.ZipFile:
    """The wheel of this repository, opened."""
    return zipfile.ZipFile(dist.wheel)


def files_of_the_package() -> set[str]:
    """What the repository has of the package, without what Python compiles."""
    files = (path for path in (ROOT / PACKAGE).rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}


def metadata_folder() -> str:
    """Where the wheel tells of itself."""
    return f"{PACKAGE}-{PROJECT['version']}.dist-info"


def test_the_wheel_has_each_file_of_the_package(wheel):
    """Code, scripts, templates, static files, types, translations: as in the repository."""
    packed = {name for name in wheel.namelist() if name.startswith(f"{PACKAGE}/")}
    assert packed == files_of_the_package()
    suffixes = {Path(name).suffix for name in packed}
    assert {".py", ".lua", ".html", ".css", ".js", ".typed"} <= suffixes
    assert f"{PACKAGE}/py.typed" in packed
    for name in packed - {f"{PACKAGE}/py.typed"}:
        assert wheel.read(name) == (ROOT / name).read_bytes()


def test_the_wheel_has_nothing_else(wheel):
    """No tests, no docs, no demo, and nothing in them tells where the wheel was built."""
    others = {name for name in wheel.namelist() if not name.startswith(f"{PACKAGE}/")}
    assert others == {f"{metadata_folder()}/{name}" for name in OF_THE_BUILD}
    for name in wheel.namelist():
        text = wheel.read(name)
        for place in (ROOT, Path.home()):
            assert len(place.parts) == 1 or f"{place}/".encode() not in text, name


def test_the_wheel_tells_what_it_needs(wheel):
    """Its dependencies, extras, Python and plugin are those of pyproject.toml."""
    told = message_from_string(wheel.read(f"{metadata_folder()}/METADATA").decode())
    lines = [line for line in told.get_all("Requires-Dist", []) if "extra ==" not in line]
    wanted = map(Requirement, PROJECT["dependencies"])
    assert {(each.name.lower(), each.specifier) for each in wanted} == {
        (each.name.lower(), each.specifier) for each in map(Requirement, lines)
    }
    assert set(told.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert told["Requires-Python"] == PROJECT["requires-python"]
    assert told["Description-Content-Type"] == "text/markdown"
    plugin = wheel.read(f"{metadata_folder()}/entry_points.txt").decode()
    assert "redlock = django_redlock.testing.plugin" in plugin


def test_the_sdist_has_the_package_and_what_is_said_of_it(dist):
    """No museum, no benchmarks, no tests: they need the whole repository, which a tag has."""
    with tarfile.open(dist.sdist) as sdist:
        names = {Path(each.name) for each in sdist.getmembers() if each.isfile()}
    assert {name.parts[0] for name in names} == {f"{PACKAGE}-{PROJECT['version']}"}
    packed = {str(Path(*name.parts[1:])) for name in names}
    assert packed - {".gitignore"} == files_of_the_package() | OF_THE_SDIST


def test_the_index_accepts_both(dist):
    """Also the README: it is what the index shows."""
    run(sys.executable, "-m", "twine", "check", "--strict", *dist)


def test_the_readme_runs_from_the_wheel_alone(dist, tmp_path):
    """In a new environment with nothing else, the first lines of the README take a lock."""
    python, site = tmp_path / "env/bin/python", tmp_path / "site"
    run(sys.executable, "-m", "venv", tmp_path / "env")
    run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", dist.wheel)
    site.mkdir()
    alone = {key: os.environ[key] for key in ("PATH", "HOME")}

    def type_(*command: str | Path) -> str:
        """In the project, without any variable that leads to this repository."""
        return run(python, *command, cwd=site, env=alone)

    type_("-m", "django", "startproject", "mysite", ".")
    first, settings, *_ = (block for block in blocks(README) if block.language == "python")
    assert settings.file == "mysite/settings.py"
    with EmbeddedNodes(1) as (node,):
        theirs = settings.text.replace("redis://127.0.0.1:6379/1", node.url)
        assert theirs != settings.text
        with (site / settings.file).open("a") as file:
            file.write(theirs)
        assert "no issues" in type_("manage.py", "check")
        assert node.url.removeprefix("redis://") in type_("manage.py", "redlock_status")
        charge = ("manage.py", "shell", "-v", "0", "-c", first.text)
        assert type_(*charge) == "charge the card\n"
        under_the_lock = ("manage.py", "redlock_run", "invoice:42", "--", python)
        assert type_(*under_the_lock, *charge) == "another process is charging it\n"

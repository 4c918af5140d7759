"""The wheel has the package with all that is not Python, and nothing else."""

from __future__ import annotations

import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.docs.pages import PROJECT
from tests.support.wheel import ROOT, build

PACKAGE = "django_redlock"
OF_THE_BUILD = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of this repository, opened."""
    return zipfile.ZipFile(build(tmp_path_factory.mktemp("wheel")))


def metadata_folder() -> str:
    """Where the wheel tells of itself."""
    return f"{PACKAGE}-{PROJECT['version']}.dist-info"


def test_the_wheel_has_each_file_of_the_package(wheel):
    """Code, scripts, templates, static files, types, translations: as in the repository."""
    files = (path for path in (ROOT / PACKAGE).rglob("*") if path.is_file())
    wanted = {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    packed = {name for name in wheel.namelist() if name.startswith(f"{PACKAGE}/")}
    assert packed == wanted
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

"""Folders, and the numbers that say how large they may be."""

from __future__ import annotations

from dev.tools import sizes


def test_a_folder_that_outgrows_its_number_is_named(tmp_path):
    """So is a folder without a number, and a number without a folder."""
    for path, lines in {
        "dev/soak/faults/busy.py": 7,
        "dev/tools/sizes.py": 8,
        "django_redlock/__init__.py": 3,
        "django_redlock/core/hold.py": 5,
        "django_redlock/core/deep/wait.lua": 2,
        "django_redlock/core/__pycache__/x.py": 9,
        "django_redlock/locale/django.mo": 9,
        "docs/_build/x.html": 9,
        "docs/index.md": 4,
        "tests/core/test_hold.py": 6,
    }.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("line\n" * lines)
    found = sizes.counted(tmp_path)
    assert found == {
        "dev/models": {},
        "dev/soak": {"faults": 7},
        "django_redlock": {".": 3, "core": 7},
        "docs": {".": 4},
        "tests": {"core": 6},
    }
    assert list(sizes.faults(found, found)) == []
    grown = tmp_path / "django_redlock/core/hold.py"
    grown.write_text("line\n" * 6)
    (tmp_path / "docs/how-to").mkdir()
    (tmp_path / "docs/how-to/locks.md").write_text("line\n")
    (tmp_path / "tests/core/test_hold.py").unlink()
    assert list(sizes.faults(sizes.counted(tmp_path), found)) == [
        "django_redlock/core has 8 lines; its number is 7",
        "tests/core has a number and no lines",
        "docs/how-to has 1 lines and no number",
    ]

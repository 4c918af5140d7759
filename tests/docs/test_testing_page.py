"""The page "Testing": its tests pass in a new project, and fail for wrong code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from django_redlock.testing import EmbeddedNodes
from tests.docs.pages import INSTALL, TESTING, Reader, blocks, follow, reader

TESTS = 15  # on the page


@pytest.fixture
def someone(tmp_path: Path) -> Iterator[Reader]:
    """A reader who has followed the page."""
    with reader(tmp_path, "mysite.test_settings") as someone:
        follow(someone, INSTALL)
        follow(someone, TESTING)
        (config,) = [block for block in blocks(TESTING) if block.language == "toml"]
        (tmp_path / "pyproject.toml").write_text(config.text)
        yield someone


def test_the_tests_of_the_page_pass(someone):
    """By pytest with the fixture for all tests, and by Django's runner."""
    assert f"{TESTS} passed" in someone.run("pytest tests billing/tests.py")
    someone.run("python manage.py test")
    shared = someone.home / "mysite/parallel_settings.py"
    with EmbeddedNodes(1) as (node,):
        shared.write_text(shared.read_text().replace("redis://127.0.0.1:6379/1", node.url))
        assert node.url in shared.read_text()
        someone.run("python manage.py test --settings mysite.parallel_settings")


def test_what_the_page_types_runs(someone):
    """The example of nodes without pytest."""
    (typed,) = [each for each in blocks(TESTING) if each.language == "python" and not each.file]
    someone.type(f"import warnings\n{typed.text}")


def test_a_lock_that_is_left_behind(someone):
    """Without the clean-up of the page, each of its tests fails, with the message of the page."""
    path = someone.home / "billing/tests.py"
    source = path.read_text()
    (cleanup,) = re.findall(r"^ *self\.addCleanup\(self\.lease.*\n", source, re.MULTILINE)
    path.write_text(source.replace(cleanup, ""))
    said = someone.run("pytest billing/tests.py", codes=(1,))
    (shown,) = [block.text for block in blocks(TESTING) if block.language == "text"]
    for part in re.split(r"web-1:4711|…|:\d+", shown.strip()):
        assert part.splitlines()[-1] in said, said

"""The code that the pages show behind their buttons is that of the files."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from django.test import override_settings

from example_project.box_office.templatetags import code

from .visitors import visitor

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("nodes", "queue", "results"),
]
ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r'<p class="hint">([\w/.]+), line (\d+)</p>\s*<pre><code>(.*?)</code></pre>', re.DOTALL
)
PAGES = {"/": 5, "/shows/{}/": 5, "/shows/{}/tasks/": 3}


@pytest.fixture
def pages(show, home) -> dict[str, str]:
    """The pages that have buttons, in a demo."""
    show.add_seats()
    with override_settings(DEMO_SWITCH=str(home / "switch")):
        return {path: visitor().get(path.format(show.pk)).text for path in PAGES}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where a demo would listen."""
    return tmp_path


def test_the_code_is_what_stands_in_the_files(pages):
    """Line by line, from the line that is named; no function ends too early."""
    blocks = [block for page in pages.values() for block in BLOCK.findall(page)]
    assert len(blocks) > 20
    for file, line, text in blocks:
        lines = (ROOT / file).read_text().splitlines()[int(line) - 1 :]
        shown = html.unescape(text).splitlines()
        indent = len(lines[0]) - len(lines[0].lstrip())
        assert shown == [each[indent:] for each in lines[: len(shown)]]
        after = next(each for each in [*lines[len(shown) :], "the end"] if each.strip())
        assert len(after) - len(after.lstrip()) <= indent


def test_the_code_of_a_lock_shows_the_lock():
    """What is shown of an order is the view with its decorator, and of a task the decorated one."""
    for name, words in [
        ("order", "@single_flight("),
        ("report", '@locked_task("report:{show_id}")'),
        ("seat", "with redlock(seat.lock, wait=WAIT) as lease:"),
        ("kill_node", "self._nodes.kill(place)"),
        ("hang_node", "self._nodes.pause(place)"),
    ]:
        assert any(words in part.text for part in code._shown(name)["parts"])

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


def test_each_button_has_its_code(pages):
    """The buttons that do something, and what they do: one to open for each."""
    for path, page in pages.items():
        opened = re.findall(r"<summary>(.*?)</summary>", page)
        assert len(opened) == PAGES[path]
        without_code = page.partition("The code behind the buttons")[0]
        pressed = set(re.findall(r"<button(?! disabled)[^>]*>([^<]*)</button>", without_code))
        links = set(re.findall(r'<a class="button[^>]*>([^<]*)</a>', without_code))
        wanted = {each for each in pressed | links if not each.isdigit()}
        wanted = {"Order with the lock" if each == "Order" else each for each in wanted}
        assert wanted == set(opened) - {"A seat"}
        assert ("A seat" in opened) == bool(re.search(r">8</button>", without_code))


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


def test_the_links_lead_to_pages_of_the_documentation(pages):
    """Each button has one, and its page is in this repository."""
    for page in pages.values():
        links = re.findall(rf'<a href="{code.DOCS}([\w/-]+)\.html"', page)
        assert len(links) == len(re.findall("<summary>", page))
        for link in links:
            assert (ROOT / f"docs/{link}.md").exists()


def test_a_site_without_the_demo_has_the_code_of_its_own_buttons(show):
    """There are no buttons for nodes, and no code of any."""
    page = visitor().get("/").text
    assert re.findall(r"<summary>(.*?)</summary>", page) == [
        "Order with the lock",
        "Order without the lock",
    ]

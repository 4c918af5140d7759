from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

from museum.timeline import draw
from tests.django.test_browser import PHONE
from tests.support.hostile import HOSTILE
from tests.support.pages import chromium

from .histories import cell, played
from .test_timelines import STORY

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog

pytestmark = pytest.mark.slow

BOXES = """() => [...document.querySelectorAll('text')].map(text => {
    const {left, right, top, bottom} = text.getBoundingClientRect();
    const style = getComputedStyle(text);
    return [text.textContent, left, right, top, bottom, parseFloat(style.fontSize), style.fill];
})"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser; without one the test is skipped, unless CI is set."""
    chromium.need("the pictures of the museum", chromium.why_not())
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=chromium.CHROMIUM, args=chromium.QUIETLY
        )
        yield launched
        launched.close()


@pytest.mark.parametrize("words", ["A lock that is shown", *HOSTILE])
def test_a_phone_shows_it_as_it_was_measured(browser: Browser, words: str) -> None:
    """With real letters no label lies on another one or outside; light and dark differ."""
    svg = draw(played(STORY, cell(words, words, words)))
    width, height = PHONE
    fills: list[set[str]] = []
    said: list[Dialog] = []
    schemes: Any = ("light", "dark")

    def note(dialog: Dialog) -> None:
        said.append(dialog)

    for scheme in schemes:
        page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": height})
        page.on("dialog", note)
        page.set_content(f"<body style='margin:0'>{svg}")
        boxes = page.evaluate(BOXES)
        assert said == []
        assert len(boxes) > len(STORY)
        for text, left, right, top, bottom, size, _ in boxes:
            assert left >= 0, text
            assert right <= width, text
            assert bottom > top
            assert size >= 12
        for one, other in combinations(boxes, 2):
            apart = one[2] <= other[1] or other[2] <= one[1]
            # Between two rows of one label letters may reach below and above.
            above = one[3] + 12 <= other[3] or other[3] + 12 <= one[3]
            assert apart or above, (one, other)
        fills.append({box[6] for box in boxes})
        page.close()
    assert not fills[0] & fills[1]

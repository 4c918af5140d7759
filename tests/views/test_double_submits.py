"""Double submits to real servers with several processes: the short form of ``make soak-views``."""

from __future__ import annotations

import pytest

from tests.support.pages.chromium import CHROMIUM, QUIETLY, need, why_not
from tests.support.waiting import eventually

from . import soak
from .shop.served import THREADED, served

SHORT = {  # servers, and how many double submits
    "gunicorn, 8 workers": 100,
    "gunicorn, 8 workers, tokens": 40,
    "gunicorn, 2 workers of gevent": 20,
    "uvicorn, 8 workers, async": 40,
    "uvicorn, 8 workers": 20,
}


@pytest.mark.slow
@pytest.mark.parametrize("server", SHORT)
def test_a_double_submit_makes_one_order(server, redlock_embedded, tmp_path):
    """Each makes one order and one refusal; two customers at once both order."""
    scene, submits = soak.SCENES[server], SHORT[server]
    outcome = soak.perform(scene, redlock_embedded, tmp_path, submits, 20)
    assert outcome.wrong == []
    assert outcome.figures["orders"] == submits


@pytest.mark.slow
def test_duplicates_and_shared_names_are_noticed(redlock_embedded, tmp_path):
    """The check can fail: without the decorator, with a key for all, and where it is not off."""
    scene = soak.SCENES["gunicorn, 8 workers"]
    with served(scene.server, tmp_path, redlock_embedded.settings(**soak.PATIENTLY)) as shop:
        bare = scene._replace(locked="/unlocked/", unlocked="/token-unlocked/")
        assert "made 20 orders" in soak.play(bare, shop, 10, 2).wrong[0]
        wrong = scene._replace(locked="/shared/", unlocked="/token/", at_once=1)
        told = soak.play(wrong, shop, 4, 2).wrong
    assert told[0].startswith("4 customers made 2 orders at the same time")
    assert told[2].endswith("had locks of one name, checkout")
    assert told[3].startswith("without the decorator, 2 double submits made 2 orders")


@pytest.mark.slow
def test_who_double_clicks_a_form_is_told_to_look_at_the_result(redlock_embedded, tmp_path):
    """A browser shows the answer to the second click: it sends nobody to order once more."""
    need("a double click", why_not())
    from playwright.sync_api import sync_playwright

    nodes = redlock_embedded.settings(**soak.PATIENTLY)
    with served(THREADED, tmp_path, nodes) as shop, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=QUIETLY)
        context = browser.new_context(
            base_url=f"http://127.0.0.1:{shop.port}", extra_http_headers={"Basket": "form"}
        )
        context.request.get("/enter/7")
        page = context.new_page()
        page.goto("/form/")
        box = page.get_by_role("button", name="Order").bounding_box()
        assert box is not None
        place = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.click(*place)
        # A second click may keep the browser from sending the first form.
        eventually(lambda: any(tmp_path.rglob("met-form/*")), what="the first form is sent")
        page.mouse.click(*place)  # the view holds the first until the second is refused
        page.wait_for_selector("h1:has-text('One moment, please')")
        shown = page.inner_text("main")
        browser.close()
        eventually(lambda: shop.orders() == 1, within=60)
    assert "is being done" in shown
    assert "the first request goes on: please look at its result" in shown
    assert "again" not in shown


def test_the_command_knows_its_servers(capsys):
    """A name that is none is told with those that are; so is a server that is not installed."""
    with pytest.raises(SystemExit, match="2"):
        soak.main(["--only", "apache"])
    assert "uvicorn, 8 workers, async; " in capsys.readouterr().err
    missing = soak.SCENES["daphne, async"]._replace(server=("no_such_server",))
    assert soak.why_not(missing) == "no_such_server is not installed"

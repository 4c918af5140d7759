"""The photographs of README and documentation, taken of the example project.

    python -m dev.tools.screenshots
    python -m dev.tools.screenshots --terminals  # only those of a terminal: no browser is needed

They are made from the running demo: pages by a real browser (Debian's `chromium`), terminals by
rich, as SVG. What is locked, by whom, and which nodes are ill is arranged here, so that a new
picture differs from the old one in seconds and ports only.
"""

import argparse
import io
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

from playwright.sync_api import Page, sync_playwright
from rich.console import Console, RenderableType
from rich.terminal_theme import MONOKAI
from rich.text import Text

from django_redlock import redlock
from example_project.demo import stage
from example_project.demo.stage import Stage
from example_project.demo.timetable import Timetable, served

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "docs/_static"
OPTIONS = stage.OPTIONS | {"TTL": 15, "MAX_TTL": 15}
GUARDED_SECONDS = 1.5  # how old the new node is in the pictures
WIDTH, HEIGHT = 1100, 420
TERMINAL = 120
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
NAMES = ("Ada", "Grace", "Edsger", "Barbara", "Leslie", "Nancy", "Tony", "Frances")


def main() -> None:
    """Take all of them, or those of a terminal."""
    parser = argparse.ArgumentParser(description="The photographs of README and documentation.")
    parser.add_argument("--terminals", action="store_true", help="only those of a terminal")
    options = parser.parse_args()
    os.environ["DJANGO_SETTINGS_MODULE"] = "example_project.settings"
    PICTURES.mkdir(exist_ok=True)
    with ExitStack() as stack:
        built = stage.build(stack, OPTIONS, buttons=True)
        stage.add_login()
        shows = stage.add_shows(*stage.SHOWS)
        add_orders(shows)
        built.open()
        stack.enter_context(served(built.switch, Timetable(built.nodes).answer))
        for scheme in () if options.terminals else SCHEMES:
            with held(built), browser(scheme) as page:
                photograph(page, scheme, built.servers.url)
        with held(built):
            draw("status", "python manage.py redlock_status", [status()], TERMINAL)


def add_orders(shows: Sequence[int]) -> None:
    """Orders of some people, for all shows, with seats side by side."""
    from example_project.box_office.models import PRICES, Order, Seat, Show

    for number, name in enumerate(NAMES, start=1):
        show, seats = shows[number % len(shows)], number % 4 + 1
        Order.objects.create(show_id=show, name=name, seats=seats, locked=True)
        Show.objects.sell(show, seats)
        row = sorted(PRICES)[number % len(PRICES)]
        side_by_side = Seat.objects.filter(show=show, row=row, number__gte=number)
        side_by_side.filter(number__lt=number + seats).update(taken_by=name)


def ail(built: Stage) -> None:
    """One node is down, and one is new: it has its vote before long, so do this anew each time."""
    built.nodes.kill(1)
    built.nodes.restart(3)
    time.sleep(GUARDED_SECONDS)


@contextmanager
def held(built: Stage) -> Iterator[None]:
    """Locks of several kinds, on nodes that ail."""
    resting = redlock.using(label="web-2:325", wait=20)  # one of the last picture may still rest
    resting("order:1:5f44f483eaad", min_hold=12).acquire().release()
    ail(built)
    with ExitStack() as stack:
        for name, label in [
            ("report:1", "worker-2:4711:8c6f0f3e-report"),
            ("export:2", "web-1:318"),
            ("order:3:f30abcbf369b", "web-4:331"),
            ("invoice:2041", "web-1:320"),
        ]:
            stack.enter_context(redlock.using(label=label)(name))
        yield


# -- pages ----------------------------------------------------------------------------------------


@contextmanager
def browser(scheme: Literal["light", "dark"]) -> Iterator[Page]:
    """A page that likes it light or dark."""
    path = shutil.which("chromium")
    if path is None:
        sys.exit("There is no chromium: apt-get install chromium")
    with sync_playwright() as playwright:
        args = ["--no-sandbox", "--disable-gpu"]
        chromium = playwright.chromium.launch(executable_path=path, args=args)
        yield chromium.new_page(color_scheme=scheme, viewport={"width": WIDTH, "height": HEIGHT})
        chromium.close()


def order(page: Page, site: str) -> None:
    """Order by a double click with the lock, and by one without."""
    for side, button in [("with", "Order with the lock"), ("without", "Order without the lock")]:
        page.goto(site)
        page.fill(f"#{side}_name", NAMES[0])
        found = page.get_by_role("button", name=button)
        found.scroll_into_view_if_needed()
        box = found.bounding_box()
        assert box is not None
        middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        with page.expect_request(lambda request: request.method == "POST"):
            page.mouse.click(*middle)
        page.mouse.click(*middle)
        page.wait_for_selector(".message:not(.wait)")


def photograph(page: Page, scheme: str, site: str) -> None:
    """The locks, for readers of both schemes; the start page for those of GitHub."""
    page.goto(f"{site}{stage.LOCKS_PAGE}")
    page.get_by_label("Username").fill(stage.USER)
    page.get_by_label("Password").fill(stage.PASSWORD)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url(f"**/{stage.LOCKS_PAGE}")
    page.evaluate("localStorage.setItem('django.admin.navSidebarIsOpen', 'false')")
    page.reload()
    take(page, f"locks-{scheme}")
    if scheme == "light":
        order(page, site)
        page.goto(site)
        take(page, "site-light")


def take(page: Page, name: str) -> None:
    """Write a page's picture."""
    path = PICTURES / f"{name}.png"
    page.screenshot(path=path, full_page=True, caret="hide")
    tell(path)


# -- terminals ------------------------------------------------------------------------------------


def status() -> Text:
    """What redlock_status prints in colours."""
    from django.core.management import call_command

    printed = io.StringIO()
    with suppress(SystemExit):  # 3: a node does not vote
        call_command("redlock_status", stdout=printed, force_color=True)
    return Text.from_ansi(printed.getvalue().rstrip())


def draw(name: str, title: str, content: Sequence[RenderableType], width: int) -> None:
    """Write a terminal's picture."""
    lines = io.StringIO()
    console = Console(file=lines, record=True, width=width, highlight=False)
    console.print(*content)
    svg = console.export_svg(title=title, theme=MONOKAI, unique_id=name)
    path = PICTURES / f"{name}.svg"
    # Without the fonts that rich would have fetched from elsewhere.
    path.write_text(re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL), encoding="utf-8")
    tell(path)


def tell(path: Path) -> None:
    """Say what was made."""
    print(f"{path.relative_to(ROOT)}  {path.stat().st_size / 1024:.0f} kB")


if __name__ == "__main__":
    main()

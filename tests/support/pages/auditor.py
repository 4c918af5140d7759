"""An auditor looks at pages in light and dark, on a desk and a phone, and zoomed.

Playwright's synchronous interface runs an event loop in its thread, where Django refuses its
database and we refuse our locks. The auditor's browser has a thread of its own, so that a test
holds locks and writes rows as usual while the auditor looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from . import axe
from .chromium import CHROMIUM, QUIETLY
from .faults import Fault
from .focus import focus_faults

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, CDPSession, Dialog, Page, Response

SCHEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
LAYOUT: Final = Path(__file__).with_name("layout.js").read_text()
PATIENCE: Final = 60_000  # milliseconds for a page


class Size(NamedTuple):
    """A window, in pixels of CSS."""

    name: str
    width: int
    height: int
    pixels: int = 1  # of the screen for one of CSS


DESK: Final = Size("1280 px", 1280, 800)
PHONE: Final = Size("390 px", 390, 844)
# What a browser does to zoom: the same window has half as many pixels of CSS, each twice as large.
ZOOMED: Final = Size("200 %", 640, 400, 2)
SIZES: Final = (DESK, PHONE, ZOOMED)


def _nothing(_page: Page) -> None:
    """Leave the page as it is."""


class Visit:
    """A page that is open in a browser, and what the browser complains about."""

    def __init__(self, context: BrowserContext) -> None:
        self.page: Page = context.new_page()
        self._screen: CDPSession = context.new_cdp_session(self.page)
        self._heard: list[tuple[str, str, str]] = []  # kind, text, address
        self._documents: list[Response] = []
        self.page.on("console", lambda each: self._hear(each.type, each.text, each.location["url"]))
        self.page.on("pageerror", lambda error: self._hear("error", str(error), ""))
        self.page.on("dialog", self._dismiss)
        self.page.on("response", self._note)

    def _hear(self, kind: str, text: str, address: str) -> None:
        if kind in {"error", "warning"}:
            self._heard.append((kind, text, address))

    def _dismiss(self, dialog: Dialog) -> None:
        self._hear("error", f"dialog: {dialog.message}", "")
        dialog.dismiss()

    def _note(self, response: Response) -> None:
        main = response.frame == self.page.main_frame
        if main and response.request.is_navigation_request():
            self._documents.append(response)

    @property
    def status(self) -> int:
        """The status of the page."""
        return self._documents[-1].status

    def complaints(self) -> list[Fault]:
        """Return what the browser wrote to the console, but for the status of the page itself."""
        told = f"Failed to load resource: the server responded with a status of {self.status} "
        page = self._documents[-1].url
        return [
            Fault("console", address or page, f"{kind}: {text}")
            for kind, text, address in self._heard
            if not (address == page and text.startswith(told) and self.status >= 400)
            and not address.endswith(
                "/favicon.ico"
            )  # which a page that names no icon makes it ask for
        ]

    def resize(self, size: Size) -> None:
        """Show the page in such a window."""
        screen = {"width": size.width, "height": size.height, "deviceScaleFactor": size.pixels}
        self._screen.send("Emulation.setDeviceMetricsOverride", {**screen, "mobile": False})
        self.page.wait_for_function("width => innerWidth === width", arg=size.width)
        # Scripts hear of it in the next frame.
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")
        # Colours may take their time to change from one scheme to the other.
        self.page.evaluate("document.getAnimations().forEach((each) => each.finish())")

    def faults(self, size: Size) -> list[Fault]:
        """Return what is wrong with the page in such a window."""
        self.resize(size)
        laid_out = [Fault(**each) for each in self.page.evaluate(LAYOUT)]
        # axe-core takes long, and judges no layout: what it says of a phone is true when zoomed.
        return laid_out if size is ZOOMED else laid_out + axe.violations(self.page)

    def others_faults(self, size: Size) -> list[Fault]:
        """Return what is wrong with a page whose layout is not ours in such a window."""
        self.resize(size)
        wide = self.page.evaluate("document.scrollingElement.scrollWidth")
        over = (
            [Fault("overflow", "html", f"{wide} of {size.width} px")] if wide > size.width else []
        )
        return over if size is ZOOMED else over + axe.violations(self.page)


class Auditor:
    """A browser that looks at pages for what keeps people from reading them."""

    def __init__(self, thread: ThreadPoolExecutor, browser: Browser) -> None:
        self._thread = thread
        self._browser = browser

    def audit(
        self,
        address: str,
        *,
        status: int = 200,
        cookies: Mapping[str, str] | None = None,
        act: Callable[[Page], None] = _nothing,
        layout: bool = True,
    ) -> list[Fault]:
        """Return all that is wrong with a page, in each scheme and size.

        Args:
            status: that the page must have.
            cookies: of a session, for example.
            act: is done in the page that is opened first; the page that is then shown is audited.
            layout: whether its layout is ours. Of another's, with parts that wait outside of the
                window and others that scroll, only the width is looked at, besides axe-core.
        """
        audited = self._thread.submit(self._audit, address, status, cookies or {}, act, layout)
        return audited.result()

    def look(self, address: str, script: str, width: int = DESK.width) -> Any:
        """Return what a script finds in a page, in a window so wide."""
        return self._thread.submit(self._look, address, script, width).result()

    def _look(self, address: str, script: str, width: int) -> Any:
        page = self._browser.new_page(viewport={"width": width, "height": DESK.height})
        try:
            page.goto(address)
            return page.evaluate(script)
        finally:
            page.close()

    def _audit(
        self,
        address: str,
        status: int,
        cookies: Mapping[str, str],
        act: Callable[[Page], None],
        layout: bool,
    ) -> list[Fault]:
        context = self._browser.new_context(viewport={"width": DESK.width, "height": DESK.height})
        context.set_default_timeout(PATIENCE)
        context.add_cookies(
            [{"name": name, "value": value, "url": address} for name, value in cookies.items()]
        )
        found: list[Fault] = []
        try:
            visit = Visit(context)
            visit.page.goto(address)
            act(visit.page)
            assert visit.status == status, visit.page.content()
            for scheme in SCHEMES:
                visit.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
                for size in SIZES:
                    view = f"{scheme}, {size.name}"
                    faults = visit.faults(size) if layout else visit.others_faults(size)
                    found += [fault._replace(view=view) for fault in faults]
            visit.resize(DESK)
            found += focus_faults(visit.page) if layout else []
            found += visit.complaints()
        finally:
            context.close()
        return found


@contextmanager
def open_auditor() -> Iterator[Auditor]:
    """Start a browser in a thread of its own, and an auditor in front of it."""
    from playwright.sync_api import sync_playwright

    with ThreadPoolExecutor(1, "auditor") as thread:
        playwright = thread.submit(lambda: sync_playwright().start()).result()
        try:
            launch = playwright.chromium.launch
            browser = thread.submit(launch, executable_path=CHROMIUM, args=QUIETLY).result()
            try:
                yield Auditor(thread, browser)
            finally:
                thread.submit(browser.close).result()
        finally:
            thread.submit(playwright.stop).result()

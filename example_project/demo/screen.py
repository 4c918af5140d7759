"""Show the demo: a live picture in a terminal, a line now and then in a pipe."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from django_redlock.inspection.survey import Report
from django_redlock.testing import EmbeddedNodes

from . import pictures, summary
from .facts import Act, Acts, Addresses, Traffic

LINE_SECONDS = 2.0  # between two lines of progress in a pipe
QUIET_SECONDS = 10.0  # ... where there is no end to them


class Screen:
    """Stdout, which may be a terminal."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal

    def line(self, text: str | Text = "") -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def welcome(self, text: str) -> None:
        self.line(Text("\ndjango-redlock: a box office on five nodes\n", "bold"))
        self._console.print(text, markup=False)
        self.line()

    def missing(self, error: ImportError) -> None:
        """Say what is not installed, and how to get it."""
        self.line(f"{error}\nEverything that the demo needs: make demo")

    def failed(self, error: Exception) -> None:
        """Say why the demo cannot go on."""
        self.line(Text(f"The demo has failed: {error}", "red"))

    @contextmanager
    def busy(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show what is waited for; yield a function that tells what comes next."""
        if self._live:
            with self._console.status(f"{text} ...") as status:
                yield lambda text: status.update(f"{text} ...")
        else:
            self.line(f"{text} ...")
            yield lambda text: self.line(f"{text} ...")
            self.line()

    @contextmanager
    def act(self, act: Act, nodes: EmbeddedNodes) -> Iterator[Callable[[], None]]:
        """Show an act; yield a function to be called for each frame."""
        if self._live:
            with self._picture() as show:
                yield lambda: show(pictures.stage(act, nodes))
        else:
            self.line(f"{act.title}\n{act.subtitle}")
            teller = _Teller(self.line, act.began, LINE_SECONDS)
            yield lambda: teller.tell(act.clock(), act.log, pictures.sold(act), now=act.is_over())
        self.line()

    @contextmanager
    def site(self, traffic: Traffic, nodes: EmbeddedNodes) -> Iterator[Callable[[], None]]:
        """Show the site while it is open for some seconds."""
        if self._live:
            with self._picture() as show:
                yield lambda: show(pictures.site(traffic, nodes))
        else:
            self.line(f"{pictures.SITE_TITLE}\n{pictures.SITE_SUBTITLE}")
            teller = _Teller(self.line, traffic.began, LINE_SECONDS)
            yield lambda: teller.tell(traffic.clock(), traffic.log, pictures.business(traffic))
        self.line()

    @contextmanager
    def open_house(
        self, traffic: Traffic, addresses: Addresses
    ) -> Iterator[Callable[[Report], None]]:
        """Show the site while it is open without an end; in a terminal, with its addresses."""
        try:
            if self._live:
                with self._picture() as show:
                    yield lambda found: show(
                        pictures.open_house(
                            addresses, traffic, found, height=self._console.height - 1
                        )
                    )
            else:
                self.line(pictures.addresses(addresses))
                self.line()
                tell = _Teller(self.line, traffic.began, QUIET_SECONDS).tell
                yield lambda _: tell(traffic.clock(), traffic.log, pictures.business(traffic))
        finally:
            self.line("\nClosing ...")

    @contextmanager
    def lines(self, title: str, subtitle: str) -> Iterator[Callable[[str], None]]:
        """Show an act in which little happens; yield a function that tells of it in a line."""
        self.line(Text.assemble((title, "bold"), "\n", (subtitle, "dim")))
        began = time.monotonic()
        yield lambda text: self.line(f"  {time.monotonic() - began:4.1f} s  {text}")
        self.line()

    def summary(
        self,
        acts: Acts,
        traffic: Traffic,
        tasks: Sequence[tuple[str, str]],
        wrong: Sequence[str],
    ) -> None:
        """Show the figures of all acts, and the verdict."""
        self._console.print(summary.offices(acts))
        self.line()
        self._console.print(summary.site(traffic, tasks))
        self.line()
        for each in wrong:
            self.line(Text(f"  {each}", "red"))
        if wrong:
            self.line(Text("It did NOT hold.", "bold red"))
        else:
            self.line(Text(summary.verdict(acts, traffic), "bold green"))

    @contextmanager
    def _picture(self) -> Iterator[Callable[[RenderableType], None]]:
        with Live(console=self._console, auto_refresh=False) as live:
            yield lambda picture: live.update(picture, refresh=True)


class _Teller:
    """Write lines about what has happened since the last time."""

    def __init__(self, line: Callable[[str], None], began: float, every: float) -> None:
        self._line = line
        self._every = every
        self._due = began + every
        self._told = 0

    def tell(self, clock: str, log: Sequence[str], count: Text, *, now: bool = False) -> None:
        for text in log[self._told :]:
            self._line(f"  {text}")
        self._told = len(log)
        if now or time.monotonic() >= self._due:
            self._due = max(self._due + self._every, time.monotonic())
            self._line(f"  {clock}  {count.plain}")

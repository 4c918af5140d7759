"""What the audience sees: a live picture in a terminal, a line now and then in a pipe."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from django_redlock.testing import EmbeddedNode, EmbeddedNodes

from .facts import Act

LINE_SECONDS = 2.0  # between two lines of progress in a pipe
STYLES = {
    "up": "green",
    "killed": "bold red",
    "hung": "bold yellow",
    "selling": "bold green",
    "frozen": "bold yellow",
    "waiting": "dim",
    "closed": "dim",
}


class Screen:
    """A terminal, or whatever else stdout is."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal

    def line(self, text: str | Text = "") -> None:
        self._console.print(text, markup=False)

    def welcome(self, offices: int) -> None:
        self.line(Text("\ndjango-redlock: one lock on five nodes\n", "bold"))
        self.line(
            f"{offices} ticket offices, each a process of its own, sell seats of one show.\n"
            "To sell a seat they read the number sold, think, and write it back plus one.\n"
        )

    def busy(self, text: str) -> AbstractContextManager[object]:
        """Something that takes a while."""
        if self._live:
            return self._console.status(f"{text} ...")
        self.line(f"{text} ...\n")
        return nullcontext()

    @contextmanager
    def act(self, act: Act, nodes: EmbeddedNodes) -> Iterator[Callable[[], None]]:
        """Show an act; what it gives is to be called for each frame."""
        if self._live:
            with Live(console=self._console, auto_refresh=False) as live:
                yield lambda: live.update(_stage(act, nodes), refresh=True)
        else:
            self.line(f"{act.title}\n{act.subtitle}")
            yield _Teller(act, self.line).tell
        self.line()

    def summary(self, locked: Act, unlocked: Act, wrong: Sequence[str]) -> None:
        """The figures of both acts, and the verdict."""
        self._console.print(_figures(locked, unlocked))
        self.line()
        for each in wrong:
            self.line(Text(f"  {each}", "red"))
        if wrong:
            self.line(Text("It did NOT hold.", "bold red"))
        else:
            self.line(
                Text(
                    "It held: every sale counts, with one node killed, one hung and an office "
                    f"frozen.\nWithout the lock {unlocked.lost_updates()} of "
                    f"{len(unlocked.sales)} seats were sold twice.",
                    "bold green",
                )
            )


class _Teller:
    """Says in lines what has happened since the last time."""

    def __init__(self, act: Act, line: Callable[[str], None]) -> None:
        self._act = act
        self._line = line
        self._told = 0
        self._due = act.began + LINE_SECONDS

    def tell(self) -> None:
        for text in self._act.log[self._told :]:
            self._line(f"  {text}")
        self._told = len(self._act.log)
        if self._act.is_over() or time.monotonic() >= self._due:
            self._due += LINE_SECONDS
            self._line(f"  {self._act.clock()}  {_sold(self._act).plain}")


def _sold(act: Act) -> Text:
    lost = act.lost_updates()
    return Text.assemble(
        f"seats sold: {len(act.sales)} by the offices' count, {act.row} in the database",
        (f", {lost} lost" if lost > 0 else "", "bold red"),
    )


def _stage(act: Act, nodes: EmbeddedNodes) -> RenderableType:
    """One picture: nodes, offices, and what has happened."""
    parts: list[RenderableType] = [
        Text.assemble((act.title, "bold"), f"   {act.clock().strip()}"),
        Text(act.subtitle, "dim"),
    ]
    if act.locked:
        parts += [Text(), _nodes(nodes)]
    return Group(*parts, _offices(act), _sold(act), *map(Text, act.log))


def _nodes(nodes: EmbeddedNodes) -> Text:
    states = [_state(node) for node in nodes]
    return Text("   ").join(
        Text.assemble(f"node {number} ", (state, STYLES[state]))
        for number, state in enumerate(states, start=1)
    )


def _offices(act: Act) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("office")
    table.add_column("sales", justify="right")
    if act.locked:
        table.add_column("last fence", justify="right", min_width=16)
    table.add_column("", min_width=7)
    for number, sales in enumerate(act.turns(), start=1):
        state = act.states[number]
        fence = [str(act.fences.get(number, "-"))] if act.locked else []
        table.add_row(str(number), str(sales), *fence, Text(state, STYLES[state]))
    return table


def _state(node: EmbeddedNode) -> str:
    if not node.is_running:
        return "killed"
    return "hung" if node.is_paused else "up"


def _figures(locked: Act, unlocked: Act) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("")
    table.add_column("with the lock", justify="right")
    table.add_column("without", justify="right")
    acts = locked, unlocked
    increase = "yes" if locked.fences_increase() else "NO"
    lost = ", ".join(f"1 {how}" for _, how in locked.lost_nodes)
    rows = [
        ("sales, counted by the offices", *(str(len(act.sales)) for act in acts)),
        ("seats sold, says the database", *(str(act.row) for act in acts)),
        ("lost updates: seats sold twice", *(str(act.lost_updates()) for act in acts)),
        ("sales overlapping another", *(str(act.overlaps()) for act in acts)),
        ("sales per office", *(" ".join(map(str, act.turns())) for act in acts)),
        ("fences increase with each holder", increase, "-"),
        ("stale writes refused", str(len(locked.refused)), "-"),
        ("waits given up (LockTaken)", str(locked.counts["taken"]), "-"),
        ("no majority (NodesUnavailable)", str(locked.counts["unavailable"]), "-"),
        ("nodes lost", lost, "-"),
    ]
    for row in rows:
        table.add_row(*row)
    return table

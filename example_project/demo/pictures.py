"""Make tables and lines of the facts."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from django_redlock.core.reasons import printable
from django_redlock.inspection.survey import LockStatus, Report
from django_redlock.testing import EmbeddedNode, EmbeddedNodes

from .facts import Act, Addresses, Traffic

STYLES: Final = {
    "up": "green",
    "killed": "bold red",
    "hung": "bold yellow",
    "down": "bold red",
    "no vote": "bold yellow",
    "selling": "bold green",
    "frozen": "bold yellow",
    "waiting": "dim",
    "closed": "dim",
}
SITE_TITLE: Final = "Act 4: the site"
SITE_SUBTITLE: Final = "four web processes and six workers; @single_flight and @locked_task"
LEAST_LINES: Final = 15  # of the open house: addresses 3, nodes 1, table 6, deeds 2, locks 3
OPTIONAL: Final = (  # lines that it has if there is room for them, the most wanted first
    *("lock", "log", "lock", "log", "lock", "gap", "gap", "gap", "gap", "gap"),
    *("lock", "log", "log"),
)


def addresses(where: Addresses) -> Text:
    """Show where to look, in three lines."""
    return Text.assemble(
        *("  Site    ", (where.site, "bold cyan"), ("   Ctrl-C ends everything.", "dim"), "\n"),
        *("  Locks   ", (where.locks, "bold cyan"), "\n"),
        *("  Log in  ", (where.user, "bold"), " / ", (where.password, "bold")),
    )


def stage(act: Act, nodes: EmbeddedNodes) -> RenderableType:
    """Show an act of the offices: nodes, offices, and what has happened."""
    parts = [_title(act.title, act.clock(), act.subtitle)]
    if act.locked:
        parts += [Text(), _nodes(map(_state, nodes))]
    return Group(*parts, _offices(act), sold(act), *map(Text, act.log))


def site(traffic: Traffic, nodes: EmbeddedNodes) -> RenderableType:
    """Show act 4: nodes, customers, reports, and what has happened."""
    return Group(
        _title(SITE_TITLE, traffic.clock(), SITE_SUBTITLE),
        Text(),
        _nodes(map(_state, nodes)),
        Text(),
        _orders_table(traffic),
        Text(),
        *_deeds(traffic),
        *_troubles(traffic),
        *map(Text, traffic.log),
    )


def open_house(where: Addresses, traffic: Traffic, found: Report, *, height: int) -> RenderableType:
    """Show the site and what is held at the moment, in `height` lines.

    The addresses come first, for what does not fit into a terminal is cut off at its lower end.
    """
    troubles = _troubles(traffic)
    room = Counter(OPTIONAL[: max(0, height - LEAST_LINES - len(troubles))])
    log = [_line(text) for text in traffic.log[-room["log"] :] if room["log"]]
    return Group(
        addresses(where),
        *_gap(room, 2),
        _nodes(node.state for node in found.nodes),
        *_gap(room, 3),
        _orders_table(traffic),
        *_gap(room, 4),
        *_deeds(traffic),
        *troubles,
        *_gap(room, 1),
        _locks(found, room["lock"]),
        *_gap(room, 5),
        *(log or [_line("A node will die in a moment.", style="dim")][: room["log"]]),
    )


def sold(act: Act) -> Text:
    """Show the two counts of an act of the offices."""
    lost = act.lost_updates()
    return Text.assemble(
        f"seats sold: {len(act.sales)} by the offices' count, {act.row} in the database",
        (f", {lost} lost" if lost > 0 else "", "bold red"),
    )


def business(traffic: Traffic) -> Text:
    """Show act 4 in one line."""
    return Text(
        f"double clicks: {traffic.customers[True]}, orders: {traffic.orders[True]}; "
        f"without the lock {traffic.customers[False]} and {traffic.orders[False]}; "
        f"clicks refused as the second ones (409): {traffic.refused('order')}; "
        f"reports: {traffic.asked} asked for, {traffic.built} built, {traffic.skipped} skipped; "
        "requests refused for lack of a majority (503): "
        f"{len(traffic.unavailable) - traffic.unexplained()} while nodes failed, "
        f"{traffic.unexplained()} at other times"
    )


# -- parts ----------------------------------------------------------------------------------------


def _title(title: str, clock: str, subtitle: str) -> Text:
    return Text.assemble((title, "bold"), f"   {clock.strip()}\n", (subtitle, "dim"))


def headed_table(*heads: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for position, head in enumerate(heads):
        table.add_column(head, justify="right" if position else "left")
    return table


def _nodes(states: Iterable[str]) -> Text:
    return Text("   ").join(
        Text.assemble(f"node {number} ", (state, STYLES[state]))
        for number, state in enumerate(states, start=1)
    )


def _state(node: EmbeddedNode) -> str:
    if not node.is_running:
        return "killed"
    return "hung" if node.is_paused else "up"


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


def _line(*parts: str | Text | tuple[str, str], style: str = "") -> Text:
    """Make one line, however narrow the terminal is."""
    return Text.assemble(*parts, style=style, no_wrap=True, overflow="ellipsis")


def _gap(room: Counter[str], number: int) -> list[Text]:
    return [Text()] if room["gap"] >= number else []


def _orders_table(traffic: Traffic) -> Table:
    table = headed_table("", "@single_flight", "without")
    for row in order_rows(traffic):
        table.add_row(*row)
    return table


def _deeds(traffic: Traffic) -> list[Text]:
    return [
        _line(
            f"reports (@locked_task): {traffic.asked} asked for, {traffic.built} built, "
            f"{traffic.skipped} skipped, two at once: ",
            _bad(traffic.together),
        ),
        _line(
            f"exports (streamed): {traffic.responses['export', 200]} sent, "
            f"{traffic.refused('export')} refused"
        ),
    ]


def _troubles(traffic: Traffic) -> list[Text]:
    """Show what went wrong, a line each; mostly none."""
    lines = []
    if count := len(traffic.unavailable):
        lines.append(_line(f"no majority (503), tried again: {count}", style="yellow"))
    if traffic.errors:
        text = f"{traffic.errors} requests failed (500): see the log at the end"
        lines.append(_line(text, style="bold red"))
    if traffic.complaints:
        text = f"{len(traffic.complaints)} times something else, last: {traffic.complaints[-1]}"
        lines.append(_line(text, style="bold red"))
    return lines


def order_rows(traffic: Traffic) -> list[tuple[str, str | Text, str | Text]]:
    return [
        ("double clicks of customers", *_both(traffic.customers)),
        ("orders in the database", *_both(traffic.orders)),
        (
            "orders taken twice",
            _bad(traffic.sold_twice[True]),
            _bad(traffic.sold_twice[False]),
        ),
        (
            "second clicks refused (409)",
            str(traffic.refused("order")),
            str(traffic.refused("order_unlocked")),
        ),
    ]


def _both(counts: Counter[bool]) -> tuple[str, str]:
    return str(counts[True]), str(counts[False])


def _bad(count: int) -> Text:
    return Text(str(count), "bold red" if count else "bold green")


def _locks(found: Report, most: int) -> RenderableType:
    """Show what is held now, at most so many locks."""
    held = [lock for lock in found.locks if lock.kind is LockStatus.HELD]
    resting = sum(lock.kind is LockStatus.RESTING for lock in found.locks)
    table = headed_table("held now", "by", "on", "seconds left")
    table.columns[1].justify = "left"
    table.expand, table.columns[0].ratio, table.columns[1].ratio = True, 4, 5
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    for lock in held[:most]:
        left = "-" if lock.lowest is None else f"{lock.lowest:.1f}"
        table.add_row(printable(lock.name), printable(lock.holder), f"{lock.on}/{lock.of}", left)
    for _ in range(most - len(held)):
        table.add_row("")
    more = f"{len(held) - most} more, and " if len(held) > most else ""
    return Group(
        table, _line(f"{more}{resting} kept shut for a moment after an order", style="dim")
    )

"""Tables and lines, made of facts."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from django_redlock.inspection.results import LockStatus, Survey, shown
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
SITE_TITLE: Final = "Act 3: the site"
SITE_SUBTITLE: Final = "four web processes and four workers; @single_flight and @locked_task"
LEAST_LINES: Final = 15  # of the open house: addresses 3, nodes 1, table 6, deeds 2, locks 3
OPTIONAL: Final = (  # lines that it has if there is room for them, the most wanted first
    *("lock", "log", "lock", "log", "lock", "gap", "gap", "gap", "gap", "gap"),
    *("lock", "log", "log"),
)


def addresses(where: Addresses) -> Text:
    """Where to look, in three lines."""
    return Text.assemble(
        *("  Site    ", (where.site, "bold cyan"), ("   Ctrl-C ends everything.", "dim"), "\n"),
        *("  Locks   ", (where.locks, "bold cyan"), "\n"),
        *("  Log in  ", (where.user, "bold"), " / ", (where.password, "bold")),
    )


def stage(act: Act, nodes: EmbeddedNodes) -> RenderableType:
    """Acts 1 and 2: nodes, offices, and what has happened."""
    parts = [_title(act.title, act.clock(), act.subtitle)]
    if act.locked:
        parts += [Text(), _nodes(map(_state, nodes))]
    return Group(*parts, _offices(act), sold(act), *map(Text, act.log))


def site(traffic: Traffic, nodes: EmbeddedNodes) -> RenderableType:
    """Act 3: nodes, customers, reports, and what has happened."""
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


def open_house(where: Addresses, traffic: Traffic, found: Survey, *, height: int) -> RenderableType:
    """The site, with what is held at the moment, in so many lines.

    The addresses come first, for what does not fit into a terminal is cut off at its lower end.
    """
    troubles = _troubles(traffic)
    room = Counter(OPTIONAL[: max(0, height - LEAST_LINES - len(troubles))])
    log = [_line(text) for text in traffic.log[-room["log"] :] if room["log"]]
    return Group(
        addresses(where),
        *_gap(room, 2),
        _nodes(found.state(i) for i in range(len(found.nodes))),
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
    """The two counts of acts 1 and 2."""
    lost = act.lost_updates()
    return Text.assemble(
        f"seats sold: {len(act.sales)} by the offices' count, {act.row} in the database",
        (f", {lost} lost" if lost > 0 else "", "bold red"),
    )


def business(traffic: Traffic) -> Text:
    """Act 3 in one line."""
    return Text(
        f"double clicks: {traffic.customers[True]}, orders: {traffic.orders[True]}; "
        f"without the lock {traffic.customers[False]} and {traffic.orders[False]}; "
        f"reports: {traffic.asked} asked for, {traffic.built} built, {traffic.skipped} skipped; "
        f"503 without a lost node: {traffic.unexplained()}"
    )


def figures(locked: Act, unlocked: Act, traffic: Traffic) -> Table:
    """The summary: one table for all acts."""
    acts = locked, unlocked
    increase = "yes" if locked.fences_increase() else "NO"
    lost = ", ".join(f"1 {how}" for _, how in locked.lost_nodes)
    refused = traffic.refused("export")
    sections: list[tuple[str, list[tuple[str | Text, ...]]]] = [
        (
            "ticket offices",
            [
                ("sales, counted by the offices", *(str(len(act.sales)) for act in acts)),
                ("seats sold, says the database", *(str(act.row) for act in acts)),
                ("lost updates: seats sold twice", *(str(act.lost_updates()) for act in acts)),
                ("sales overlapping another", *(str(act.overlaps()) for act in acts)),
                ("sales per office", *(" ".join(map(str, act.turns())) for act in acts)),
                ("fences increase with each holder", increase, "-"),
                ("stale writes refused", str(len(locked.refused)), "-"),
                ("waits given up (LockTaken)", str(locked.counts["taken"]), "-"),
                ("no majority (NodesUnavailable)", str(locked.counts["unavailable"]), "-"),
                ("offices' nodes lost", lost, "-"),
            ],
        ),
        (
            "site",
            [
                *_orders(traffic),
                ("reports: messages", str(traffic.asked), "-"),
                ("reports: built", str(traffic.built), "-"),
                ("reports: skipped", str(traffic.skipped), "-"),
                ("two runs of one report at once", str(traffic.together), "-"),
                ("second exports refused (409)", str(refused), "-"),
                ("no majority (503)", str(len(traffic.unavailable)), "-"),
                ("no majority, and no node just lost", str(traffic.unexplained()), "-"),
                ("site's nodes lost", f"{len(traffic.lost_nodes)} killed", "-"),
            ],
        ),
    ]
    table = _table("", "with the lock", "without")
    for name, rows in sections:
        table.add_row(Text(name, "bold"))
        for row in rows:
            table.add_row(Text.assemble("  ", row[0]), *row[1:])
    return table


def verdict(unlocked: Act, traffic: Traffic) -> str:
    """What to say when everything held."""
    return (
        "It held: every sale counts, with one node killed, one hung and an office frozen;\n"
        f"{traffic.customers[True]} double clicks made {traffic.orders[True]} orders, and no "
        "report was built twice at once.\n"
        f"Without the lock {unlocked.lost_updates()} of {len(unlocked.sales)} seats were sold "
        f"twice, and\n{traffic.customers[False]} double clicks made {traffic.orders[False]} orders."
    )


# -- parts ----------------------------------------------------------------------------------------


def _title(title: str, clock: str, subtitle: str) -> Text:
    return Text.assemble((title, "bold"), f"   {clock.strip()}\n", (subtitle, "dim"))


def _table(*heads: str) -> Table:
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
    """One line, however narrow the terminal is."""
    return Text.assemble(*parts, style=style, no_wrap=True, overflow="ellipsis")


def _gap(room: Counter[str], number: int) -> list[Text]:
    return [Text()] if room["gap"] >= number else []


def _orders_table(traffic: Traffic) -> Table:
    table = _table("", "@single_flight", "without")
    for row in _orders(traffic):
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
            f"exports (streamed): {traffic.answers['export', 200]} sent, "
            f"{traffic.refused('export')} refused"
        ),
    ]


def _troubles(traffic: Traffic) -> list[Text]:
    """What should not be, a line each; mostly none."""
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


def _orders(traffic: Traffic) -> list[tuple[str, str | Text, str | Text]]:
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


def _locks(found: Survey, most: int) -> RenderableType:
    """What is held, the longest-lived first."""
    held = [lock for lock in found.locks if lock.kind is LockStatus.HELD]
    resting = sum(lock.kind is LockStatus.RESTING for lock in found.locks)
    table = _table("held now", "by", "on", "seconds left")
    table.columns[1].justify = "left"
    table.expand, table.columns[0].ratio, table.columns[1].ratio = True, 4, 5
    for column in table.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    for lock in held[:most]:
        left = "-" if lock.lowest is None else f"{lock.lowest:.1f}"
        table.add_row(shown(lock.name), shown(lock.holder), f"{lock.on}/{lock.of}", left)
    for _ in range(most - len(held)):
        table.add_row("")
    more = f"{len(held) - most} more, and " if len(held) > most else ""
    return Group(
        table, _line(f"{more}{resting} kept shut for a moment after an order", style="dim")
    )

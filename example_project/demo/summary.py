"""Make the summary of a run with an end: two tables, and the verdict."""

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from . import pictures
from .facts import Acts, Traffic


def offices(acts: Acts) -> Table:
    """Show the summary of acts 1 to 3."""
    under_the_lock = (acts.fenced, acts.locked)
    table = pictures.headed_table("ticket offices", "lock and fence", "lock alone", "neither")
    rows: list[tuple[str, ...]] = [
        ("sales, counted by the offices", *(str(len(act.sales)) for act in acts)),
        ("seats sold, says the row", *(str(act.row) for act in acts)),
        ("lost updates: seats sold twice", *(str(act.lost_updates()) for act in acts)),
        (
            "stale writes refused by the row",
            *(str(len(act.refused)) for act in under_the_lock),
            "-",
        ),
        ("offices frozen past their ttl", *(str(act.counts["frozen"]) for act in acts)),
        ("sales overlapping another", *(str(act.overlaps()) for act in acts)),
        ("sales of an office, least to most", *(_span(act.turns()) for act in acts)),
        (
            "fences increase with each holder",
            *("yes" if act.fences_increase() else "NO" for act in under_the_lock),
            "-",
        ),
        ("waits given up (LockTaken)", *(str(act.counts["taken"]) for act in under_the_lock), "-"),
        (
            "no majority (NodesUnavailable)",
            *(str(act.counts["unavailable"]) for act in under_the_lock),
            "-",
        ),
        ("nodes lost", ", ".join(f"1 {how}" for _, how in acts.fenced.lost_nodes), "-", "-"),
    ]
    for row in rows:
        table.add_row(Text.assemble("  ", row[0]), *row[1:])
    return table


def site(traffic: Traffic, tasks: Iterable[tuple[str, str]]) -> Table:
    """Show the summary of acts 4 and 5."""
    refused = traffic.refused("export")
    sections: list[tuple[str, list[tuple[str | Text, ...]]]] = [
        (
            "site",
            [
                *pictures.order_rows(traffic),
                ("reports: messages", str(traffic.asked), "-"),
                ("reports: built", str(traffic.built), "-"),
                ("reports: skipped", str(traffic.skipped), "-"),
                ("two runs of one report at once", str(traffic.together), "-"),
                ("second exports refused (409)", str(refused), "-"),
                ("refused: no majority (503)", str(len(traffic.unavailable)), "-"),
                ("refused (503) while no node failed", str(traffic.unexplained()), "-"),
                ("site's nodes lost", f"{len(traffic.lost_nodes)} killed", "-"),
            ],
        ),
        ("tasks", [(*row, "-") for row in tasks]),
    ]
    table = pictures.headed_table("", "with the lock", "without")
    for name, rows in sections:
        table.add_row(Text(name, "bold"))
        for row in rows:
            table.add_row(Text.assemble("  ", row[0]), *row[1:])
    return table


def verdict(acts: Acts, traffic: Traffic) -> str:
    """Return the verdict of a run in which everything held."""
    fenced, locked, neither = acts
    return (
        "It held: with lock and fence every sale counts, with one node killed, one hung\n"
        f"and {fenced.counts['frozen']} offices frozen; the row refused {len(fenced.refused)} "
        "stale writes.\n"
        f"With the lock alone, stale writes cost {locked.lost_updates()} of {len(locked.sales)} "
        f"sales; with neither, {neither.lost_updates()} of {len(neither.sales)}\n"
        "seats were sold twice.\n"
        f"{traffic.customers[True]} double clicks made {traffic.orders[True]} orders, and no "
        "report was built twice at once; without\n"
        f"the lock {traffic.customers[False]} double clicks made {traffic.orders[False]} orders.\n"
        "A task that was sent 20 times ran once, and a killed process's task was taken over."
    )


def _span(counts: Sequence[int]) -> str:
    return f"{min(counts)} to {max(counts)}"

"""``manage.py redlock_status``: the nodes, and every lock that is held."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from django_redlock import conf
from django_redlock.inspection import patterns
from django_redlock.inspection.results import Health, HeldLock, LockStatus, Survey, age, shown
from django_redlock.inspection.survey import LIMIT, survey

if TYPE_CHECKING:
    from argparse import ArgumentParser
    from collections.abc import Iterator, Sequence

    from django_redlock.backend import Backend

EXIT: Final = {Health.OK: 0, Health.DEGRADED: 3, Health.NO_MAJORITY: 4}
WIDTH: Final = 120  # columns where the output is no terminal
NOTHING: Final = "-"
COLOURS: Final = {
    Health.OK: "green",
    Health.DEGRADED: "yellow",
    Health.NO_MAJORITY: "red",
    LockStatus.HELD: "green",
    LockStatus.PARTIAL: "yellow",
    LockStatus.SPLIT: "yellow",
    LockStatus.UNCLEAR: "red",
    "up": "green",
    "no vote": "yellow",
    "down": "red",
}


class Command(BaseCommand):
    """Print what ``inspection.survey`` finds, as tables or as JSON."""

    help = (
        "Show the nodes and every lock that is held. Exit status: 0 all nodes vote, 3 some do "
        "not, 4 no majority does, so no lock can be taken."
    )
    requires_system_checks = ()  # it must run when something is wrong

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument(
            "names",
            nargs="*",
            metavar="NAME",
            help="show these locks only, held or free; of a pattern (* ? [a-z], in quotes; a "
            "backslash before one of these means the character) the held ones that match",
        )
        parser.add_argument(
            "--alias",
            action="append",
            dest="aliases",
            metavar="ALIAS",
            help="an alias of REDLOCK; may be repeated (default: all)",
        )
        parser.add_argument("--json", action="store_true", help="print one JSON document")
        parser.add_argument(
            "--limit",
            type=int,
            default=LIMIT,
            metavar="N",
            help="show at most N locks of each alias, besides those that are named "
            "(default: %(default)s)",
        )

    def handle(self, *_: Any, **options: Any) -> None:
        """Survey the aliases, print, and exit by the worst of them."""
        try:
            aliases = dict.fromkeys(options["aliases"] or conf.aliases())
            backends = [conf.backend(alias) for alias in aliases]
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from None
        if not backends:
            raise CommandError("REDLOCK names no alias: there is nothing to show")
        wanted = _Wanted(options["names"])
        try:
            surveys = [wanted.survey(backend, options["limit"]) for backend in backends]
        except ValueError as error:
            raise CommandError(str(error)) from None
        if options["json"]:
            self._write(json.dumps(as_json(surveys), indent=2) + "\n")
        else:
            output = _Output(self.stdout)
            console = self._console(output, options)
            for position, each in enumerate(surveys):
                if position:
                    console.print()
                _Page(console).show(each, wanted)
            self._write(output.getvalue())
        code = EXIT[_worst(surveys)]
        if code:
            raise SystemExit(code)

    def _write(self, text: str) -> None:
        """Print it all. Who reads only the beginning, as ``head`` does, is no error."""
        try:
            self.stdout.write(text, ending="")
            self.stdout.flush()
        except BrokenPipeError:
            # Or Python finds the rest in the buffer when it ends, and complains.
            with Path(os.devnull).open("w") as nowhere:
                os.dup2(nowhere.fileno(), self.stdout.fileno())

    def _console(self, output: _Output, options: dict[str, Any]) -> Console:
        return Console(
            file=output,
            width=None if output.isatty() else WIDTH,
            color_system=None if options["no_color"] else "auto",
            force_terminal=options["force_color"] or None,
            markup=False,
            highlight=False,
            emoji=False,
        )


class _Output(io.StringIO):
    """What will be printed at once, for a console that wants to know where."""

    def __init__(self, to: OutputWrapper) -> None:
        super().__init__()
        self._to = to

    @property
    def encoding(self) -> str:  # type: ignore[override] # of a StringIO it is None
        """That of the output."""
        return getattr(self._to, "encoding", None) or "utf-8"

    def isatty(self) -> bool:
        """Whether the output is a terminal."""
        return self._to.isatty()


class _Wanted:
    """What the arguments ask for: names, and held locks whose names match a pattern.

    A pattern is looked up as a name, too, and shown if that is taken: it is the name of
    somebody's lock, perhaps of another client, which is in no index.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self.arguments = [patterns.parse(text) for text in arguments]
        self.patterns = [each for each in self.arguments if each.is_pattern]

    def survey(self, backend: Backend, limit: int) -> Survey:
        """Ask the nodes of an alias.

        Raises:
            ValueError: what cannot be a lock's name, or a limit not from 1 to 10,000.
        """
        names = [each.name for each in self.arguments]
        matching = self._matches if self.patterns else None
        found = survey(backend, names, limit=limit, matching=matching, memory=True)
        shown_free = {each.name for each in self.arguments if not each.is_pattern}
        locks = [lock for lock in found.locks if lock.on or lock.name in shown_free]
        return replace(found, locks=tuple(locks))

    def _matches(self, name: str) -> bool:
        return any(each.matches(name) for each in self.patterns)

    def unmet(self, found: Survey) -> Iterator[str]:
        """What was asked for and is not held, as far as that is known; a free name has a line."""
        if not (self.arguments or found.locks):
            yield "No lock is held."
        names = [lock.name for lock in found.locks]
        for each in self.patterns if not found.truncated else ():
            if each.name not in names and not any(map(each.matches, names)):
                yield f"No held lock matches '{each.name}'."


def _worst(surveys: Sequence[Survey]) -> Health:
    return max((each.health for each in surveys), key=EXIT.__getitem__)


# -- tables ---------------------------------------------------------------------------------------


class _Page:
    """One alias on a console. All text goes through ``text``, so none of it is markup."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def text(self, content: str, style: str = "") -> Text:
        """Text as it is, escaped where the output cannot show it or should not."""
        encoding = self.console.encoding
        plain = shown(content).encode(encoding, "backslashreplace").decode(encoding)
        return Text(plain, style, overflow="fold")

    def show(self, found: Survey, wanted: _Wanted) -> None:
        """Print the sentence, the nodes and the locks of one alias."""
        self.console.print(
            self.text(found.alias, "bold"),
            self.text(found.summary, COLOURS[found.health]),
            sep=": ",
        )
        self.console.print()
        self._table(
            ("node", "state", "version", "uptime", "role", "round trip", "guard"),
            [self._node_row(found, i) for i in range(len(found.nodes))],
            folded=2,
        )
        for sentence in found.advice:
            self.console.print(self.text(sentence, "dim"))
        self.console.print()
        if found.locks:
            self._table(
                ("lock", "holder", "on", "seconds left", "is"),
                [self._lock_row(lock) for lock in found.locks],
                folded=2,
            )
        if found.complete:
            for sentence in wanted.unmet(found):
                self.console.print(self.text(sentence))
        elif not found.locks:
            self.console.print(self.text("Too few nodes answered to know what is held."))
        for sentence in _left_out(found, wanted):
            self.console.print(self.text(sentence, "yellow"))

    def _table(self, heads: Sequence[str], rows: list[list[Text]], *, folded: int) -> None:
        table = Table(
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),  # and one that the box has: two between the columns
            pad_edge=False,
            show_edge=False,
            header_style="bold",
        )
        for position, head in enumerate(heads):
            table.add_column(self.text(head), no_wrap=position >= folded, overflow="fold")
        for row in rows:
            table.add_row(*row)
        self.console.print(table)

    def _node_row(self, found: Survey, i: int) -> list[Text]:
        node, state, why = found.nodes[i], found.state(i), found.why(i)
        risky = state == "up" and found.warning(i)
        round_trip = NOTHING if node.round_trip is None else f"{node.round_trip * 1000:.2f} ms"
        return [
            self.text(node.label),
            self.text(f"{state}: {why}" if why else state, "yellow" if risky else COLOURS[state]),
            self.text(node.software or NOTHING),
            self.text(NOTHING if node.uptime is None else age(node.uptime)),
            self.text(node.role or NOTHING),
            self.text(round_trip),
            self.text(f"{node.guard_left:.0f} s" if node.guard_left else NOTHING),
        ]

    def _lock_row(self, lock: HeldLock) -> list[Text]:
        return [
            self.text(lock.name),
            self.text(_holders(lock)),
            self.text(f"{lock.on} of {lock.of}"),
            self.text(_left(lock)),
            self.text(lock.kind, COLOURS.get(lock.kind, "")),
        ]


def _left_out(found: Survey, wanted: _Wanted) -> Iterator[str]:
    """What is not shown of what is held."""
    if found.beyond:
        yield f"{found.beyond} more match; --limit shows more."
    elif found.truncated and not wanted.patterns:
        yield f"More locks are held than these {len(found.locks)}; --limit shows more."
    if found.unsearched:
        yield "More names are held than were looked at: others may match, too."


def _holders(lock: HeldLock) -> str:
    """Who holds the name; where nobody does, everybody who left a key, and on how many nodes."""
    if not lock.on:
        return NOTHING
    unknown = "another client"
    if len(lock.owners) == 1 or lock.kind in {LockStatus.HELD, LockStatus.RESTING}:
        return lock.holder or unknown
    return ", ".join(f"{each.label or unknown} on {each.on}" for each in lock.owners)


def _left(lock: HeldLock) -> str:
    if not lock.on:
        return NOTHING
    if lock.lowest is None:
        return "never expires"
    if lock.highest is None:
        return f"{lock.lowest:.1f} to never"
    low, high = f"{lock.lowest:.1f}", f"{lock.highest:.1f}"
    return low if low == high else f"{low} to {high}"


# -- JSON -----------------------------------------------------------------------------------------


def as_json(surveys: Sequence[Survey]) -> dict[str, Any]:
    """The document of ``--json``; its keys are listed in the documentation and stay."""
    return {
        "health": _worst(surveys).value,
        "aliases": {each.alias: _alias_json(each) for each in surveys},
    }


def _alias_json(found: Survey) -> dict[str, Any]:
    return {
        "health": found.health.value,
        "majority": found.majority,
        "truncated": found.truncated,
        "beyond": found.beyond,
        "nodes": [
            {
                "node": node.label,
                "voting": node.voting,
                "answered": heard,
                "why": node.why,
                "version": node.software,
                "role": node.role,
                "uptime": _rounded(node.uptime),
                "round_trip": node.round_trip
                if node.round_trip is None
                else round(node.round_trip, 6),
                "guard_left": _rounded(node.guard_left),
                "maxmemory": told and told.limit,
                "maxmemory_policy": told and told.policy,
                "evicted_keys": told and told.evicted,
                "evicts": told and told.threatens,
            }
            for i, (node, heard, told) in enumerate(
                zip(found.nodes, found.heard, found.evictions, strict=True)
            )
        ],
        "locks": [_lock_json(lock, found) for lock in found.locks],
    }


def _lock_json(lock: HeldLock, found: Survey) -> dict[str, Any]:
    return {
        "name": lock.name,
        "kind": lock.kind.value,
        "holder": lock.holder,
        "fence": lock.fence,
        "on": lock.on,
        "of": lock.of,
        "lowest": _rounded(lock.lowest),
        "highest": _rounded(lock.highest),
        "cells": [
            {
                "node": node.label,
                "left": _rounded(cell.left),
                "owner": cell.owner,
                "holder": cell.label,
            }
            for node, cell in zip(found.nodes, lock.cells, strict=True)
            if cell is not None
        ],
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)

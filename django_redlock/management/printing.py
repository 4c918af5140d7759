"""What the commands have in common: the aliases they are asked for, and how they print.

With rich there are colours, and long texts are folded inside their column. Without it the text is
plain and aligned.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import unicodedata
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, OutputWrapper
from django.utils.translation import gettext, ngettext

from django_redlock import conf
from django_redlock.backend import Backend
from django_redlock.inspection.examination import Examination
from django_redlock.inspection.rows import EXIT, Blocks, Paragraph, Span, Table, document
from django_redlock.inspection.survey import Health, Report

T = TypeVar("T", bound=Report | Examination)
WIDTH: Final = 120  # columns where the output is no terminal
# Of a terminal: its second screen without a cursor and without lines that wrap, and back again.
SECOND, FIRST = "\x1b[?1049h\x1b[?25l\x1b[?7l", "\x1b[?7h\x1b[?25h\x1b[?1049l"
HOME, END_OF_LINE, END_OF_SCREEN = "\x1b[H", "\x1b[K", "\x1b[J"
STYLES: Final = {"good": "green", "odd": "yellow", "bad": "red", "strong": "bold", "quiet": "dim"}


class NodesCommand(BaseCommand):
    """A command that asks the nodes of aliases, and exits with the status of the worst."""

    requires_system_checks = ()  # it must run when something is wrong

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare ``--alias`` and ``--json``."""
        parser.add_argument(
            "--alias",
            action="append",
            dest="aliases",
            metavar="ALIAS",
            help="an alias of REDLOCK; may be repeated (default: all)",
        )
        parser.add_argument("--json", action="store_true", help="print one JSON document")

    def backends(self, aliases: Sequence[str] | None) -> list[Backend]:
        """Return the backends of these aliases, each once; without any, of all.

        Raises:
            CommandError: the settings are wrong, or name no alias.
        """
        try:
            found = [conf.backend(alias) for alias in dict.fromkeys(aliases or conf.aliases())]
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from None
        if not found:
            raise CommandError(gettext("REDLOCK names no alias: there is nothing to show"))
        return found

    def show(
        self,
        found: Sequence[T],
        blocks: Callable[[T], Blocks],
        options: dict[str, Any],
    ) -> None:
        """Print what was found of each alias, as tables or as JSON, and exit.

        Raises:
            SystemExit: with the status of the alias that is worst off, unless that is 0.
        """
        if options["json"]:
            text = json.dumps(document(found), indent=2) + "\n"
        else:
            text = self.text(found, blocks, options)
        self.finish(found, text)

    def finish(self, found: Sequence[T], text: str) -> None:
        """Print the text, and exit.

        Raises:
            SystemExit: as ``show``.
        """
        write(self.stdout, text)
        code = EXIT[Health.worst([each.health for each in found])]
        if code:
            raise SystemExit(code)

    def text(
        self,
        found: Sequence[T],
        blocks: Callable[[T], Blocks],
        options: dict[str, Any],
        head: Sequence[Paragraph] = (),
    ) -> str:
        """Return the tables of each alias, below the paragraphs of ``head``."""
        shown: list[Paragraph | Table] = [*head]
        for i, alias in enumerate(found):
            shown += [(), *blocks(alias)] if i else blocks(alias)
        no_color, force_color = options["no_color"], options["force_color"]
        return printed(shown, self.stdout, no_color=no_color, force_color=force_color)


@contextmanager
def screen(to: OutputWrapper) -> Iterator[Callable[[str], None]]:
    """Lend the second screen of a terminal, as ``top`` has it; what this gives shows a text there.

    Ctrl-C ends the block without an error. So does SIGTERM, with its exit status: the terminal must
    not be left with a screen that nobody updates.
    """

    def show(text: str) -> None:
        lines, most = text.splitlines(), shutil.get_terminal_size().lines - 1
        if len(lines) > most:
            left = len(lines) - most + 1
            more = ngettext(
                "%(count)s more line: enlarge the window, or ask for less",
                "%(count)s more lines: enlarge the window, or ask for less",
                left,
            )
            lines[most - 1 :] = [more % {"count": left}]
        write(to, HOME + "".join(f"{line}{END_OF_LINE}\n" for line in lines) + END_OF_SCREEN)

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        write(to, SECOND)
        with suppress(KeyboardInterrupt):
            yield show
    finally:
        signal.signal(signal.SIGTERM, before)
        write(to, FIRST)


def write(to: OutputWrapper, text: str) -> None:
    """Print the text. A reader that closes the pipe early, as ``head`` does, is no error."""
    try:
        to.write(text, ending="")
        to.flush()
    except BrokenPipeError:
        # Else Python would flush the rest when it ends, and fail.
        with Path(os.devnull).open("w") as nowhere:
            os.dup2(nowhere.fileno(), to.fileno())


def encodable(text: str, to: OutputWrapper) -> str:
    """Return the text; what ``to`` cannot show is escaped."""
    return text.encode(_encoding(to), "backslashreplace").decode(_encoding(to))


def _encoding(to: OutputWrapper) -> str:
    return getattr(to, "encoding", None) or "utf-8"


def printed(
    blocks: Iterable[Paragraph | Table],
    to: OutputWrapper,
    *,
    no_color: bool = False,
    force_color: bool = False,
) -> str:
    """Return paragraphs and tables as the text to print; what ``to`` cannot show is escaped."""

    def encoded(span: Span) -> Span:
        return span._replace(text=encodable(span.text, to))

    shown = [
        block._replace(
            heads=tuple(encodable(head, to) for head in block.heads),
            rows=[list(map(encoded, row)) for row in block.rows],
        )
        if isinstance(block, Table)
        else tuple(map(encoded, block))
        for block in blocks
    ]
    try:
        return _with_rich(shown, to, _encoding(to), no_color=no_color, force_color=force_color)
    except ImportError:  # rich is an extra
        return _plain(shown)


def _width(text: str) -> int:
    """Return how many columns of a terminal it takes: Chinese and Japanese take two each."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))


def _plain(blocks: Iterable[Paragraph | Table]) -> str:
    """Return lines; columns are as wide as their longest text, two spaces apart."""
    lines = []
    for block in blocks:
        if not isinstance(block, Table):
            lines.append("".join(span.text for span in block))
            continue
        rows = [list(block.heads), *([span.text for span in row] for row in block.rows)]
        widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
        rows.insert(1, ["-" * width for width in widths])
        for row in rows:
            pairs = zip(row, widths, strict=True)
            padded = (text + " " * (width - _width(text)) for text, width in pairs)
            lines.append("  ".join(padded).rstrip())
    return "".join(f"{line}\n" for line in lines)


def _with_rich(
    blocks: Iterable[Paragraph | Table],
    to: OutputWrapper,
    encoding: str,
    *,
    no_color: bool,
    force_color: bool,
) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    class Output(io.StringIO):
        """What will be printed at once, for a console that wants to know where."""

        @property
        def encoding(self) -> str:  # type: ignore[override] # of a StringIO it is None
            return encoding

        def isatty(self) -> bool:
            return to.isatty()

    output = Output()
    console = Console(
        file=output,
        width=None if to.isatty() else WIDTH,
        color_system=None if no_color else "auto",
        force_terminal=force_color or None,
        markup=False,
        highlight=False,
        emoji=False,
    )

    def text(span: Span) -> Text:  # so that none of it is markup
        return Text(span.text, STYLES.get(span.mood, ""), overflow="fold")

    for block in blocks:
        if not isinstance(block, Table):
            console.print(*map(text, block), sep="")
            continue
        table = RichTable(
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),  # and one that the box has: two between the columns
            pad_edge=False,
            show_edge=False,
            header_style="bold",
        )
        for position, head in enumerate(block.heads):
            table.add_column(head, no_wrap=position not in block.folded, overflow="fold")
        for row in block.rows:
            table.add_row(*map(text, row))
        console.print(table)
    return output.getvalue()

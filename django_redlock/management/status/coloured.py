"""Print with rich, where it is installed: colours, and long texts folded inside their column."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from .page import Span, Table
from .plain import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.core.management.base import OutputWrapper

    from .page import Paragraph

WIDTH: Final = 120  # columns where the output is no terminal


class Coloured:
    """A console. All text is ``Text``, so none of it is markup.

    Args:
        to: where it will be printed.
        no_color, force_color: Django's own options.
    """

    def __init__(self, to: OutputWrapper, *, no_color: bool, force_color: bool) -> None:
        self._output = _Output(to)
        self._console = Console(
            file=self._output,
            width=None if self._output.isatty() else WIDTH,
            color_system=None if no_color else "auto",
            force_terminal=force_color or None,
            markup=False,
            highlight=False,
            emoji=False,
        )

    def show(self, blocks: Iterable[Paragraph | Table]) -> None:
        """Print paragraphs and tables."""
        for block in blocks:
            if isinstance(block, Table):
                self._console.print(self._table(block))
            else:
                self._console.print(*map(self._text, block), sep="")

    def getvalue(self) -> str:
        """All that was printed."""
        return self._output.getvalue()

    def _text(self, span: Span) -> Text:
        return Text(printable(span.text, self._console.encoding), span.style, overflow="fold")

    def _table(self, table: Table) -> RichTable:
        made = RichTable(
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0),  # and one that the box has: two between the columns
            pad_edge=False,
            show_edge=False,
            header_style="bold",
        )
        for position, head in enumerate(table.heads):
            made.add_column(head, no_wrap=position not in table.folded, overflow="fold")
        for row in table.rows:
            made.add_row(*map(self._text, row))
        return made


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

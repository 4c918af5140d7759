"""Print aligned text, without colours: where rich is not installed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_redlock.inspection.results import shown

from .page import Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from django.core.management.base import OutputWrapper

    from .page import Paragraph


class Plain:
    """Collect lines of text; columns are as wide as their longest text, two spaces apart."""

    def __init__(self, to: OutputWrapper) -> None:
        self._encoding = getattr(to, "encoding", None) or "utf-8"
        self._printed: list[str] = []

    def show(self, blocks: Iterable[Paragraph | Table]) -> None:
        """Print paragraphs and tables."""
        for block in blocks:
            if isinstance(block, Table):
                self._table(block)
            else:
                self._printed.append("".join(self._text(span.text) for span in block))

    def getvalue(self) -> str:
        """All that was printed."""
        return "".join(f"{text}\n" for text in self._printed)

    def _text(self, text: str) -> str:
        return printable(text, self._encoding)

    def _table(self, table: Table) -> None:
        rows = [list(table.heads), *([self._text(span.text) for span in row] for row in table.rows)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        rows.insert(1, ["-" * width for width in widths])
        for row in rows:
            padded = (text.ljust(width) for text, width in zip(row, widths, strict=True))
            self._printed.append("  ".join(padded).rstrip())


def printable(text: str, encoding: str) -> str:
    """``text``, escaped where the output cannot show it or should not."""
    return shown(text).encode(encoding, "backslashreplace").decode(encoding)

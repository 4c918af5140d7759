"""Print the words of each page: prose by hand and its budget, tables, code, and what is generated.

    python -m dev.tools.words docs/_build/html

What is generated is what the built page has beyond its source: reference, API, figures.
"""

from __future__ import annotations

import sys
import tomllib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from .prose import DOCS, ROOT, pages, pieces, plain, words
from .walk import Page

BUDGETS: Final = DOCS / "budgets.toml"
KINDS: Final = ("prose", "table", "code")


def by_hand(text: str) -> Counter[str]:
    """Count the words of a page's source, by kind."""
    found: Counter[str] = Counter()
    for piece in pieces(text):
        found[piece.kind] += words(plain(piece.text) if piece.kind == "prose" else piece.text)
    return found


def rows(built: Path, sources: Iterable[Path]) -> list[tuple[str, list[int]]]:
    """Return each page with its words by hand, by kind, and those that are generated."""
    found = []
    for source in sources:
        counted = by_hand(source.read_text(encoding="utf-8"))
        own = [counted[kind] for kind in KINDS]
        name = str(source.relative_to(ROOT)).removeprefix("docs/").removesuffix(".md")
        html = built / f"{name}.html"
        whole = Page.read(html).words if DOCS in source.parents and html.is_file() else sum(own)
        found.append((name, [*own, max(0, whole - sum(own))]))
    return found


def budgets() -> dict[str, int]:
    """Return how many words of prose a page may have."""
    found: dict[str, int] = tomllib.loads(BUDGETS.read_text(encoding="utf-8"))["words"]
    return found


def main(built: Path) -> None:
    """Print the table of all pages with their sums."""
    found, most = rows(built, pages()), budgets()
    heads = ("by hand", "of", "in tables", "in code", "generated")
    print(f"{'words of':36}" + "".join(f"{head:>10}" for head in heads))
    for name, (prose, *others) in found:
        allowed = f"{most[name]:,}" if name in most else "-"
        cells = [f"{prose:,}", allowed, *(f"{count:,}" for count in others)]
        over = "  more" if prose > most.get(name, prose) else ""
        print(f"{name:36}" + "".join(f"{cell:>10}" for cell in cells) + over)
    sums = [sum(each) for each in zip(*(counts for _, counts in found), strict=True)]
    sums.insert(1, sum(most.get(name, 0) for name, _ in found))
    print(f"{f'{len(found)} pages':36}" + "".join(f"{count:>10,}" for count in sums))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

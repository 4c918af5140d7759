"""Print the words of each page: prose, tables and code by hand, and what is generated.

    python -m tools.words docs/_build/html

What is generated is what the built page has beyond its source: reference, API, figures.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from .prose import DOCS, ROOT, pages, pieces, plain, words
from .walk import Page

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


def main(built: Path) -> None:
    """Print the table of all pages with their sums."""
    found = rows(built, pages())
    print(f"{'words of':36}{'by hand':>10}{'in tables':>10}{'in code':>10}{'generated':>10}")
    for name, counts in found:
        print(f"{name:36}" + "".join(f"{count:>10,}" for count in counts))
    sums = [sum(each) for each in zip(*(counts for _, counts in found), strict=True)]
    print(f"{f'{len(found)} pages':36}" + "".join(f"{count:>10,}" for count in sums))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

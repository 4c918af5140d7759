"""Look in the built search index for what people type, and fail where they would not find the page.

    python -m dev.tools.find docs/_build/html

The index is scored as Sphinx's script scores it: an entry of the index by how much of it was typed,
titles, words of titles, words of the text.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

from .prose import DOCS

BEGIN: Final = "Search.setIndex("
AMONG: Final = 3  # the page must be one of so many
# As in searchtools.js of Sphinx.
ENTRY, TITLE, TITLE_WORD, PART_OF_TITLE, WORD, PART = 100, 100, 15, 7, 5, 2


def load(built: Path) -> dict[str, Any]:
    """Return the index of built pages."""
    text = (built / "searchindex.js").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text[text.index(BEGIN) + len(BEGIN) : text.rindex(")")])
    return found


def search(index: dict[str, Any], query: str) -> list[str]:
    """Return the pages that a query finds, the best first."""
    typed = query.lower()
    best: dict[int, float] = defaultdict(float)
    for entry, places in index["indexentries"].items():
        if typed in entry and len(typed) >= len(entry) / 2:
            for page, _, main in places:
                if main:  # Sphinx lists the others after all pages
                    best[page] = max(best[page], ENTRY * len(typed) / len(entry))
    for title, places in index["alltitles"].items():
        if typed in title.lower() and len(typed) >= len(title) / 2:
            for place in places:
                best[place[0]] = max(best[place[0]], TITLE * len(typed) / len(title))
    by_word = [_of_word(index, word) for word in typed.split()]
    for page in set.intersection(*(set(each) for each in by_word)):
        best[page] = max(best[page], sum(each[page] for each in by_word) / len(by_word))
    return [index["docnames"][page] for page in sorted(best, key=lambda page: -best[page])]


def _of_word(index: dict[str, Any], word: str) -> dict[int, float]:
    found: dict[int, float] = defaultdict(float)
    for terms, whole, part in (
        (index["titleterms"], TITLE_WORD, PART_OF_TITLE),
        (index["terms"], WORD, PART),
    ):
        for term, places in terms.items():
            # The index has stems; what was typed begins with the stem, or the other way round.
            score = whole if term == word or word.startswith(term) else part
            if term == word or (len(term) > PART and (term in word or word in term)):
                for page in [places] if isinstance(places, int) else places:
                    found[page] = max(found[page], score)
    return found


def main(built: Path) -> int:
    """Print what each query finds; return 1 if one does not find its page among the first."""
    index, conf = load(built), runpy.run_path(str(DOCS / "conf.py"))
    failed = False
    for pages, queries in conf["SEARCHED"]:
        wanted = next((each for each in pages if each in index["docnames"]), "")
        for query in queries:
            found = search(index, query)[:AMONG]
            wrong = "" if wanted in found else f"  FAILED: not {wanted}"
            failed = failed or bool(wrong)
            print(f"{query:34}{', '.join(found)}{wrong}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

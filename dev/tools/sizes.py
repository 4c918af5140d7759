"""Say which folder has more lines than `dev/sizes.toml` allows: a part of `make check`.

    python -m dev.tools.sizes
    python -m dev.tools.sizes --print   # the lines of each folder, as the file would have them

Package, tests, models, soaks and docs are counted by their folders, each with all that is below it;
"." is what lies beside the folders. A folder without a number is named, too, and a number without a
folder. One that is smaller than its number by a good piece is no error: it is mentioned, so that
the number can follow.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

# The lines of each folder of each of what is counted.
Sizes: TypeAlias = Mapping[str, Mapping[str, int]]

ROOT: Final = Path(__file__).parents[2]
NUMBERS: Final = ROOT / "dev/sizes.toml"
COUNTED: Final = ("django_redlock", "tests", "dev/models", "dev/soak", "docs")
TEXTS: Final = frozenset([".py", ".lua", ".c", ".html", ".css", ".js", ".md", ".toml", ".txt"])
MADE: Final = frozenset({"__pycache__", "_build"})
STEP: Final = 50  # a number is the next multiple: a change of a few lines needs no other
FAR: Final = 2 * STEP  # below its number, a folder is mentioned


def counted(root: Path) -> Sizes:
    """Count the lines of texts, by folder."""
    return {top: _below(root / top) for top in COUNTED}


def _below(top: Path) -> Mapping[str, int]:
    found: Counter[str] = Counter()
    for path in top.rglob("*"):
        parts = path.relative_to(top).parts
        if path.suffix in TEXTS and not MADE & {*parts} and path.is_file():
            folder = parts[0] if len(parts) > 1 else "."
            found[folder] += path.read_text(encoding="utf-8").count("\n")
    return found


def faults(sizes: Sizes, numbers: Sizes) -> Iterator[str]:
    """Yield what has outgrown its number, has none, or is gone."""
    for top in COUNTED:
        allowed = numbers.get(top, {})
        for folder, lines in sorted(sizes[top].items()):
            name = f"{top}/{folder}"
            if folder not in allowed:
                yield f"{name} has {lines:,} lines and no number"
            elif lines > allowed[folder]:
                yield f"{name} has {lines:,} lines; its number is {allowed[folder]:,}"
        for folder in sorted(allowed.keys() - sizes[top].keys()):
            yield f"{top}/{folder} has a number and no lines"


def main() -> None:
    """Print the faults, and fail if there are any."""
    parser = argparse.ArgumentParser(prog="python -m dev.tools.sizes", description=__doc__)
    parser.add_argument("--print", action="store_true", help="print the lines of each folder")
    sizes = counted(ROOT)
    if parser.parse_args().print:
        for top in COUNTED:
            print(f"\n[{top if top.isidentifier() else repr(top)}]")
            for folder, lines in sorted(sizes[top].items()):
                name = folder if folder != "." else '"."'
                print(f"{name} = {-(-lines // STEP) * STEP}")
        return
    numbers: Sizes = tomllib.loads(NUMBERS.read_text(encoding="utf-8"))
    found = list(faults(sizes, numbers))
    for each in found:
        print(each)
    if found:
        sys.exit("Make it smaller; or change its number in dev/sizes.toml, and say why beside it.")
    for top in COUNTED:
        total = f"{top}: {sum(sizes[top].values()):,} lines of {sum(numbers[top].values()):,}"
        far = [each for each, lines in sizes[top].items() if lines < numbers[top][each] - FAR]
        print(total + "; far below: " * bool(far) + ", ".join(sorted(far)))


if __name__ == "__main__":
    main()

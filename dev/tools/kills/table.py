"""The rows of what was played, and the page about them."""

from __future__ import annotations

import ast
import functools
import json
import tomllib
from collections import Counter, defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final, TypeAlias

from .mutants import Mutant, folder, moved

Rows: TypeAlias = dict[Mutant, dict[str, Any]]

EQUIVALENT: Final = Path(__file__).parent / "equivalent.toml"
OUTCOMES: Final = ("killed", "survived", "equivalent", "not applied")


def read(file: Path, root: Path) -> Rows:
    """Return the rows of a file: the last one of each mutant, where its text is now."""
    found = {}
    tree = functools.cache(lambda name: ast.parse((root / name).read_text(encoding="utf-8")))
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        row = json.loads(line)
        killers = row.get("killers", ())
        row["killers"] = killers if isinstance(killers, dict) else dict.fromkeys(killers, "")
        mutant = Mutant.of(row)
        here = (root / mutant.file).exists() and moved(mutant, tree(mutant.file))
        found[here or mutant] = row if here else {**row, "gone": "its text is gone"}
    return found


def equivalents() -> dict[tuple[str, ...], str]:
    """Return the mutants that change nothing, by their texts, each with the reason."""
    listed = tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["mutant"]
    return {_text(Mutant.of({"line": 0, **each})): each["reason"] for each in listed}


def _text(mutant: Mutant) -> tuple[str, ...]:
    return mutant.file, mutant.function, mutant.before, mutant.after


def lost(mutant: Mutant, row: dict[str, Any], before: Rows) -> list[str]:
    """Return the tests that killed a mutant before which nothing kills now."""
    return [] if row["outcome"] != "survived" else [*before.get(mutant, {}).get("killers", ())]


def page(rows: Rows, before: Rows) -> str:
    """Return the page about what was played, and what an earlier play killed beyond it."""
    reasons = equivalents()
    lists: dict[str, dict[Mutant, str]] = defaultdict(dict)
    folders: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant, row in sorted(rows.items()):
        outcome, killers = row["outcome"], row["killers"]
        played = f"{row['passed']} tests passed, and {row['covering']} run the line"
        if outcome == "survived" and _text(mutant) in reasons:
            outcome, played = "equivalent", reasons[_text(mutant)]
        for name in (folder(mutant.file), "all"):
            folders[name][outcome] += 1
        if earlier := lost(mutant, row, before):
            lists["Killed before, and not now"][mutant] = ", ".join(earlier)
        if outcome != "killed":
            lists[outcome.capitalize()][mutant] = row["refused"] or played
        elif len(killers) == 1 and not before:
            lists["Killed by one test of those played"][mutant] = f"{', '.join(killers)}; {played}"
        if "timeout" in killers.values():
            lists["Killed by a timeout"][mutant] = ", ".join(killers)
    text = [f"| folder | mutants | {' | '.join(OUTCOMES)} |", "|---" * (2 + len(OUTCOMES)) + "|"]
    for name in [*sorted({*folders} - {"all"}), "all"]:
        counted = folders[name]
        figures = " | ".join(str(counted[outcome]) for outcome in OUTCOMES)
        text.append(f"| {name} | {counted.total()} | {figures} |")
    for title, found in lists.items():
        text += ["", f"## {title}: {len(found)}", ""]
        text += [f"- {mutant}: {what}" for mutant, what in found.items()]
    text += ["", _took(rows.values())]
    return "\n".join(text) + "\n"


def _took(rows: Collection[dict[str, Any]]) -> str:
    seconds, worked = (sum(row.get(key, 0) for row in rows) for key in ("seconds", "worked"))
    each = max(1, len(rows))
    return (
        f"A mutant took {seconds / each:.1f} s, of which a processor worked {worked / each:.1f} s."
    )

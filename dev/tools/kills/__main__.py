"""The command: which mutants are played against which tests."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import pytest
from _pytest.mark.expression import Expression

from .lines import Record
from .mutants import Mutant, drawn
from .player import KILLERS, Play, Player
from .table import lost, page, read

ROOT: Final = Path.cwd()
CACHE: Final = ROOT / ".cache" / "kills"


def options() -> argparse.Namespace:
    """Return what is wanted."""
    parser = argparse.ArgumentParser(
        prog="make kills", description="Which tests kill which mutants."
    )
    more = parser.add_argument
    more("-m", dest="marks", default="", help="the tests with these marks, as of pytest")
    more("--mutants", type=int, default=200, help="how many are drawn")
    more("--again", type=Path, help="play the mutants of this file of rows, and compare")
    more("--without", type=Path, help="as if the tests were gone whose names begin with its lines")
    more("-k", dest="gone", help="as if the tests were gone that pytest would choose by this")
    more("--only", nargs="+", default=[], help="play these tests, without a record of their lines")
    more("--tests", type=int, default=400, help="the most that are played for a mutant")
    more("--workers", type=int, default=os.cpu_count(), help="mutants that are played at once")
    more("--package", type=Path, default=Path("django_redlock"), help="whose mutants")
    return parser.parse_args()


def digest(*folders: Path) -> str:
    """Return a name for the sources of some folders, or files."""
    whole = hashlib.sha256()
    for file in sorted(
        each for one in folders for each in [ROOT / one, *(ROOT / one).rglob("*.*")]
    ):
        if file.suffix in {".py", ".lua"} and file.is_file():
            whole.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return whole.hexdigest()[:8]


def stays(wanted: argparse.Namespace) -> Callable[[str], bool]:
    """Return what tells whether a test is played: it does not count as gone."""
    gone = []
    for line in wanted.without.read_text(encoding="utf-8").splitlines() if wanted.without else ():
        module, _, functions = line.strip().partition(": ")  # or "module: function function"
        gone += [f"{module}::{each}" for each in functions.split()] or [module]
    chosen = Expression.compile(wanted.gone) if wanted.gone else None

    def is_played(test: str) -> bool:
        parts = test, test.partition("[")[0], test.partition("::")[0]
        if any(each in parts or (each and test.startswith(f"{each}/")) for each in gone):
            return False
        return not (chosen and chosen.evaluate(lambda word, /, **_: word.lower() in test.lower()))

    return is_played


def tests_of(mutant: Mutant, earlier: Iterable[str], record: Record) -> list[str]:
    """Return the tests that run a mutant's line: those that killed it before come first."""
    running = record.running(ROOT / mutant.file, range(mutant.line, mutant.end + 1))
    known = [each for each in earlier if each in record.seconds]
    return [*known, *record.in_order(running - {*known})]


def main() -> None:
    """Play what was not played yet, and write the page."""
    wanted = options()
    CACHE.mkdir(parents=True, exist_ok=True)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(CACHE / "hypothesis")
    state = f"{digest(wanted.package)}-{digest(wanted.package, Path('tests'), Path('conftest.py'))}"
    marks = f"({wanted.marks}) and not alone" if wanted.marks else "not alone"
    rows = CACHE / f"{state}.jsonl"
    before = read(wanted.again, ROOT) if wanted.again else {}
    if cut := wanted.without or wanted.gone or wanted.only:
        before = before or read(rows, ROOT)
        name = (
            f"{cut} {wanted.without and wanted.without.read_text(encoding='utf-8')} {wanted.gone}"
        )
        rows = CACHE / f"{state}-{hashlib.sha256(name.encode()).hexdigest()[:8]}.jsonl"
    sources = {
        file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8")
        for file in (ROOT / wanted.package).rglob("*.py")
    }
    mutants = list(before) or drawn(sources)[: wanted.mutants]
    if wanted.without or wanted.gone:  # what survives all tests survives fewer
        mutants = [each for each in mutants if not before or before[each]["killers"]]
    played = read(rows, ROOT)
    left = [each for each in mutants if each not in played]
    record = (
        None
        if wanted.only
        else Record(CACHE / f"{state}.lines", wanted.package, marks, wanted.workers)
    )
    is_played = stays(wanted)
    found = []
    for mutant in left:
        was = before.get(mutant, {})
        tests = tests_of(mutant, was.get("killers", ()), record) if record else None
        some = (
            None if tests is None else [each for each in tests if is_played(each)][: wanted.tests]
        )
        enough = 1 if was.get("killers") else KILLERS
        found.append(Play(mutant, some, len(tests or ()), enough, was.get("gone", "")))
    status = pytest.ExitCode.NO_TESTS_COLLECTED  # as it says when a plugin has played
    if found:
        seconds = record.seconds if record else {}
        player = Player(found, ROOT / wanted.package, seconds, rows, wanted.workers)
        arguments = ["-q", "-s", "--no-header", "-m", marks, "-p", "no:xdist", "-p", "no:randomly"]
        plugins = ["-p", "no:cacheprovider", *wanted.only]
        status = pytest.ExitCode(pytest.main([*arguments, *plugins], plugins=[player]))
        played = read(rows, ROOT)
    shown = {each: played[each] for each in mutants if each in played}
    if wanted.only:  # some tests alone are compared with nothing
        before = {}
    text = page(shown, before)
    again = f"-again-{wanted.again.stem}" if wanted.again else ""
    file = rows.with_name(f"{rows.stem}{again}.md")
    file.write_text(f"# Mutants of {state}\n\n{text}", encoding="utf-8")
    print(text, f"The same is in {file.relative_to(ROOT)}.", sep="\n")
    if status not in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}:
        sys.exit(status)
    sys.exit(any(lost(mutant, row, before) for mutant, row in shown.items()))


if __name__ == "__main__":
    main()

"""Our client beside an earlier revision of it, in the same run."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Final

from benchmarks.result import Result
from benchmarks.revisions import checkout, compare
from benchmarks.revisions.checkout import NoSuchRevisionError
from benchmarks.stage import Stage

REVISION: Final = "7047006"  # the last one whose client was not written for speed
SCENARIOS: Final = ("with", "many tasks", "8 threads", "8 waiters")


def before(stage: Stage) -> Result:
    """Measure some scenarios of the comparison, unpinned; nothing where git lacks the revision."""
    with tempfile.TemporaryDirectory() as home:
        try:
            old = checkout.checkout(REVISION, Path(home) / "old")
        except NoSuchRevisionError as error:
            return Result(f"Beside {REVISION}", missing={REVISION: str(error)})
        new = checkout.working_tree(Path(home) / "new")
        chosen = [each for each in compare.SCENARIOS if each.label in SCENARIOS]
        result = compare.compare(stage, old, new, chosen, pinned=False)
    result.figures = {f"÷ {REVISION}, {name}": each for name, each in result.figures.items()}
    return result

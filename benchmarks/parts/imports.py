"""What `import django_redlock` adds to the start of a process that has Django and redis-py."""

from __future__ import annotations

import json
import subprocess
import sys

from benchmarks.processes import ROOT
from benchmarks.result import Result
from benchmarks.stage import Stage
from benchmarks.turns import spread

# A process prints the milliseconds until Django and redis-py are there, and until the package is.
PROGRAM = """
import json, time
start = time.perf_counter()
import django, redis
from django.conf import settings
settings.configure()
django.setup()
before = time.perf_counter()
{ours}
print(json.dumps([(each - start) * 1000 for each in (before, time.perf_counter())]))
"""
OURS = "import django_redlock"
FIGURE = "import django_redlock, above Django and redis-py, ms"


def imports(stage: Stage) -> Result:
    """Import Django and redis-py, and then the package, in one new process after the other."""
    result = Result(
        "The import",
        "Milliseconds from the start of a process until its imports are done and Django is set up.",
    )
    command = [sys.executable, "-c", PROGRAM.format(ours=OURS)]
    taken: list[tuple[float, float]] = []
    for turn in range(stage.effort.rounds + 1):
        said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        if turn:  # the first one may have to compile
            before, after = json.loads(said.stdout)
            taken.append((before, after))
    above = spread(after - before for before, after in taken)
    result.rows = [
        {"": "Django and redis-py", "ms": spread(before for before, _ in taken)},
        {"": f"and {OURS}", "ms": spread(after for _, after in taken)},
        {"": "the difference", "ms": above},
    ]
    result.figures[FIGURE] = above
    return result

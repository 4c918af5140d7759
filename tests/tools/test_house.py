"""`make house` runs and prints its lines; what the numbers are is nobody's rule."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

LINES = """\
django_redlock/ +\\d+ modules, [\\d,]+ lines
tests/ +\\d+ modules, [\\d,]+ lines
with +\\d+ files, \\d+ functions, \\d+ calls
async with +\\d+ files, \\d+ functions, \\d+ calls
"""


def test_it_prints_the_size_and_the_way_of_a_lock():
    """In a fresh process, on nodes of its own."""
    command = [sys.executable, "-m", "tools.house"]
    root = Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    assert re.fullmatch(LINES, done.stdout)

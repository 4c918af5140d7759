"""`make kills`: which mutants there are, where one is, and which tests of a small package kill."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from dev.tools.kills.mutants import Mutant, drawn, moved, mutants_of

ROOT = Path(__file__).parents[2]
CODE = """\
from threading import Event

def larger(a, b):
    if a > b:
        return a
    return b


def passed():
    gate = Event()
    gate.set()
    return gate.wait()
"""
TESTS = """\
import os
from big.small.code import larger, passed

def test_the_first():
    assert larger(2, 1) == 2

def test_the_second():
    assert larger(1, 2) == 2

def test_the_gate():
    assert passed()

def test_that_fails_by_itself():
    assert larger(1, 1) and "PYTEST_XDIST_WORKER" in os.environ
"""
# Line, before, after, and who must kill it.
MUTANTS = [
    (4, "a > b", "True", {"test_the_second"}),
    (4, "a > b", "a >= b", set()),
    (4, "a > b", "a < b", {"test_the_first", "test_the_second"}),
    (11, "gate.set()", "None", {"test_the_gate"}),
    (11, "gate.clear()", "None", set()),
]


@pytest.mark.parametrize(
    ("line", "changes"),
    [
        ("x = a < b", {"a < b → a <= b"}),
        ("x = a and b", {"a and b → a or b"}),
        ("x = not a", {"not a → a"}),
        ("x = a - b", {"a - b → a + b"}),
        ("x = [0, 1, True]", {"0 → 1", "1 → 0", "True → False"}),
        ("return a", {"a → None"}),
        ("a.b()", {"a.b() → None"}),
        ("x = a(lambda b=1: b, 0)", {"0 → 1"}),
        ("a.b = c", {"a.b = c → pass"}),
        ("if a: b", {"a → True", "a → False"}),
        ("x: Literal[1] = f'{1}'", set()),
    ],
)
def test_what_is_changed(line, changes):
    """Each kind of mutant; an annotation and a message stay."""
    found = mutants_of("m.py", f"def f(a=1):\n    {line}\n")
    assert {str(each).removeprefix("m.py:2 ") for each in found} == changes


def test_the_same_sources_give_the_same_mutants():
    """Their order is that of the sources, and its beginning has each folder's share."""
    calls = "    g()\n" * 50
    sources = {f"p/{folder}/m.py": f"def f():\n{calls}" for folder in "ab"}
    mutants = drawn(sources)
    assert mutants == drawn(dict(reversed(sources.items())))
    assert mutants != drawn({**sources, "p/a/n.py": ""})
    assert {sum(each.file == f"p/{folder}/m.py" for each in mutants[:20]) for folder in "ab"} == {
        10
    }


def test_a_line_that_moved_is_found_by_its_text():
    """Of equal texts that of the same function counts, and the nearest one."""
    mutant = Mutant("m.py", "f", 2, 2, 4, "drop", "g()", "None")
    now = "def e():\n    g()\n\ndef f():\n    g()\n    h()\n"
    assert moved(mutant, ast.parse(now)) == mutant._replace(line=5, end=5)
    assert moved(mutant, ast.parse("def f():\n    h()\n")) is None


def test_who_kills_which(tmp_path):
    """Mutants of a small package by hand; then as if a test were gone that alone kills one."""
    rows = tmp_path / "rows.jsonl"
    texts = [
        {"file": "big/small/code.py", "line": line, "before": before, "after": after}
        for line, before, after, _ in MUTANTS
    ]
    files = {
        "big/small/code.py": CODE,
        "big/__init__.py": "",
        "big/small/__init__.py": "",
        "tests/test_it.py": TESTS,
    }
    for name, text in {**files, "rows.jsonl": "\n".join(map(json.dumps, texts))}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    def play(status: int, *arguments: str) -> dict[tuple[str, str], dict[str, str]]:
        command = [sys.executable, "-m", "dev.tools.kills", "--package", "big/small", *arguments]
        places = os.pathsep.join([str(ROOT), str(tmp_path)])
        environ = {name: value for name, value in os.environ.items() if "XDIST" not in name}
        environ["PYTHONPATH"] = places
        ended = subprocess.run(command, cwd=tmp_path, env=environ, check=False)
        assert ended.returncode == status
        found = (tmp_path / ".cache/kills").glob("*.jsonl")
        newest = max(found, key=lambda each: each.stat().st_mtime_ns)
        return {
            (row["before"], row["after"]): {
                test.partition("::")[2]: why for test, why in row["killers"].items()
            }
            for row in map(json.loads, newest.read_text().splitlines())
        }

    played = play(0, "--again", str(rows))
    for _, before, after, killers in MUTANTS:
        assert {*played[before, after]} == killers, before
    assert played["gate.set()", "None"] == {"test_the_gate": "timeout"}
    shorter = play(1, "-k", "second or gate", "--workers", "1")
    assert not shorter["a > b", "True"]
    assert {*shorter["a > b", "a < b"]} == {"test_the_first"}

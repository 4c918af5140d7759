"""The tests behind a promise, folded: each with what its docstring says that it proves."""

from __future__ import annotations

import ast
from functools import cache

from tests.support.verdicts import nightly_in

from .markdown import ROOT, of_docstring


def tests(*ids: str) -> str:
    """Return a folded list of tests: what each proves, and whether `make nightly` alone plays it.

    Args:
        ids: of tests, as ``tests/nodes/test_exchange.py::test_a_vote``.

    Raises:
        ValueError: there is no such test, or it has no docstring.
    """
    count = f"{len(ids)} test{'s' * (len(ids) > 1)}"
    listed = "\n".join(f"- {_proves(each)} `{each}`{_nightly(each)}" for each in ids)
    return f'<details class="tests"><summary>{count}</summary>\n\n{listed}\n\n</details>'


def _proves(test: str) -> str:
    path, _, name = test.partition("::")
    said = _docstrings(path).get(name)
    if not said:
        msg = f"there is no test {test} with a docstring"
        raise ValueError(msg)
    return of_docstring(said.partition("\n\n")[0])


def _nightly(test: str) -> str:
    path, _, name = test.partition("::")
    marked = nightly_in(path)
    return " *(nightly)*" if marked is None or name in marked else ""


@cache
def _docstrings(path: str) -> dict[str, str]:
    file = ROOT / path
    if not file.is_file():
        return {}
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        each.name: ast.get_docstring(each) or ""
        for each in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(each, functions)
    }
